package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/headrace/headrace/internal/term"
)

// The generated part of the page stands between these lines.
const (
	beginMark = "<!-- what follows is written by `make bench-peers` -->"
	endMark   = "<!-- what follows is written by hand -->"
)

// writePage writes the generated part of a file anew and leaves the rest alone.
func (r *results) writePage(file string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	head, rest, ok := strings.Cut(string(b), beginMark)
	_, tail, ok2 := strings.Cut(rest, endMark)
	if !ok || !ok2 {
		return fmt.Errorf("%s: no lines %s and %s", file, beginMark, endMark)
	}
	return os.WriteFile(file, []byte(head+beginMark+"\n\n"+r.markdown()+"\n"+endMark+tail), 0o644)
}

// title is a system's name for people.
var title = map[string]string{"headrace_postgres": "Headrace on Postgres", "headrace_embedded": "Headrace, embedded store", "river": "River",
	"asynq_everysec": "Asynq, fsync every second", "asynq_always": "Asynq, fsync always"}

func (r *results) markdown() string {
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p("`%s`, %s, on %s. %d round(s) of %.0f s a load, the systems turn by turn; figures are medians, ratios medians of the rounds'.",
		r.Command, r.When.Format("2006-01-02"), r.Machine, r.Rounds, r.Seconds)
	p("Payload %d bytes, a handler that does nothing, everything on the same cores. Others kept %.1f cores busy in the mean: compare within the run only.",
		r.PayloadBytes, r.Foreign)
	p("")
	p("| demanded | figure | bar | |")
	p("|---|---|---|---|")
	for _, x := range r.Bars {
		verdict := x.verdict()
		if x.Measured && !x.Reached {
			verdict = "**" + verdict + "**"
		}
		if x.Note != "" {
			verdict += "; " + x.Note
		}
		p("| %s | %s | %s | %s |", x.What, x.figure(), x.limit(), verdict)
	}
	p("")
	p("| full cycle | tasks/s | CPU a task, all processes | logged a task | loses on power loss |")
	p("|---|---|---|---|---|")
	for _, name := range names {
		s := *r.of(name)
		if s == nil {
			continue
		}
		loss := "nothing"
		if name == "asynq_everysec" {
			loss = "up to a second"
		}
		p("| %s | %s | %.1f µs | %.0f B | %s |", title[name], thousands(s.TasksPerS), s.CPUMicros, s.WALBytes, loss)
	}
	p("")
	p("| one by one | submits/s | p50 of a call |")
	p("|---|---|---|")
	for _, name := range names {
		if s := *r.of(name); s != nil && s.SubmitPerS > 0 && s.SubmitP50 > 0 {
			p("| %s | %s | %.2f ms |", title[name], thousands(s.SubmitPerS), s.SubmitP50)
		}
	}
	p("")
	p("| submit sent → handler started, 50 tasks/s | p50 | p99 | p50, best settings | p99 |")
	p("|---|---|---|---|---|")
	for _, name := range names {
		s := *r.of(name)
		switch {
		case s == nil:
		case s.StartBest != nil:
			p("| %s | %.2f ms | %.2f ms | %.2f ms | %.2f ms |", title[name], s.Start.P50, s.Start.P99, s.StartBest.P50, s.StartBest.P99)
		default:
			p("| %s | %.2f ms | %.2f ms | | |", title[name], s.Start.P50, s.Start.P99)
		}
	}
	p("")
	p("Versions: %s. Logged: Postgres' write-ahead log, Redis' append-only file; of the embedded store all that it writes, compactions too.", list(r.Versions))
	p("Settings:")
	p("")
	for _, name := range names {
		if s := *r.of(name); s != nil {
			p("- %s: %s", title[name], list(s.Settings))
		}
	}
	p("")
	p("All measurements: [bench/results/latest.json](../bench/results/latest.json).")
	return b.String()
}

func list(m map[string]string) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if m[k] != "" {
			parts = append(parts, k+" "+m[k])
		}
	}
	return strings.Join(parts, ", ")
}

// thousands writes 12345.6 as 12,346.
func thousands(f float64) string {
	s := fmt.Sprintf("%.0f", f)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// table writes the bars for a terminal.
func (r *results) table(w io.Writer) error {
	t := term.Table{Width: 160}
	t.Row("DEMANDED", "FIGURE", "BAR", "")
	for _, b := range r.Bars {
		t.Row(b.What, b.figure(), b.limit(), b.verdict())
	}
	_, err := t.WriteTo(w)
	return err
}
