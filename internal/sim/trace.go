package sim

import (
	"fmt"
	"strings"
	"time"
)

// trace keeps the newest lines of a run. It is off at first: a seed that fails runs once more with it on.
type trace struct {
	on    bool
	beats bool // tell messages that hold a beat or its answer and nothing else
	most  int
	lines []string // a ring
	total int
}

// line adds one event in fixed columns: seconds, who, what, the facts.
func (tr *trace) line(now time.Duration, who, what, format string, args ...any) {
	if !tr.on {
		return
	}
	s := fmt.Sprintf("%11.6f  %-4s %-10s ", now.Seconds(), who, what) + fmt.Sprintf(format, args...)
	if len(tr.lines) < tr.most {
		tr.lines = append(tr.lines, s)
	} else {
		tr.lines[tr.total%tr.most] = s
	}
	tr.total++
}

// String returns the kept lines, oldest first.
func (tr *trace) String() string {
	var b strings.Builder
	if cut := tr.total - len(tr.lines); cut > 0 {
		fmt.Fprintf(&b, "… %d earlier lines: -lines=%d shows them\n", cut, tr.total)
	}
	for i := range tr.lines {
		b.WriteString(tr.lines[(tr.total+i)%len(tr.lines)])
		b.WriteByte('\n')
	}
	return b.String()
}
