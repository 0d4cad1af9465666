package term

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	xterm "golang.org/x/term"
)

// IsTerminal reports whether f is a terminal.
func IsTerminal(f io.Writer) bool {
	file, ok := f.(*os.File)
	return ok && xterm.IsTerminal(int(file.Fd()))
}

// Status is what a progress line shows.
type Status struct {
	Done  int64
	Total int64  // 0: unknown, no bar is drawn
	Text  string // behind the bar; ours, not escaped
}

// A Progress is one line on a terminal that is drawn again ten times a second. On anything but a
// terminal it writes nothing. Start it with StartProgress, end it with Stop.
type Progress struct {
	stop chan struct{}
	once sync.Once
	done chan struct{} // closed when the line is gone
}

// StartProgress draws what status returns on w until Stop; it calls status from its own goroutine.
func StartProgress(w io.Writer, status func() Status) *Progress {
	p := &Progress{stop: make(chan struct{}), done: make(chan struct{})}
	if !IsTerminal(w) {
		close(p.done)
		return p
	}
	go func() {
		defer close(p.done)
		width := 80
		if n, _, err := xterm.GetSize(int(w.(*os.File).Fd())); err == nil && n > 20 {
			width = n
		}
		begin, tick := time.Now(), time.NewTicker(100*time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-p.stop:
				io.WriteString(w, "\r\x1b[K")
				return
			case now := <-tick.C:
				io.WriteString(w, "\r"+Line(status(), now.Sub(begin), width-1)+"\x1b[K")
			}
		}
	}()
	return p
}

// Stop removes the line and waits until it is gone. Further calls do nothing.
func (p *Progress) Stop() {
	p.once.Do(func() { close(p.stop) })
	<-p.done
}

// Line renders s after it has been going on for elapsed, in at most width characters.
func Line(s Status, elapsed time.Duration, width int) string {
	rate := ""
	if sec := elapsed.Seconds(); sec >= 0.1 && s.Done > 0 {
		rate = fmt.Sprintf("  %.0f/s", float64(s.Done)/sec)
	}
	line := fmt.Sprintf("%d%s  %s", s.Done, rate, s.Text)
	if s.Total > 0 {
		const cells = 24
		share := min(float64(s.Done)/float64(s.Total), 1)
		full := int(share * cells)
		line = fmt.Sprintf("%s%s %3.0f%%  %d/%d%s  %s", strings.Repeat("█", full), strings.Repeat("░", cells-full),
			share*100, s.Done, s.Total, rate, s.Text)
	}
	return Cut(strings.TrimRight(line, " "), width)
}
