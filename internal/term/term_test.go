package term_test

import (
	"bytes"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/headrace/headrace/internal/term"
)

// Names and errors with control characters can't forge lines or move the cursor (B145).
func TestEscape(t *testing.T) {
	for in, want := range map[string]string{
		"plain ü 漢 ok":        "plain ü 漢 ok",
		"a\r\nINFO forged":    `a\r\nINFO forged`,
		"\x1b[2J":             `\x1b[2J`,
		"next\u0085line":      `next\u0085line`,
		"sep\u2028\u2029":     `sep\u2028\u2029`,
		"bidi\u202eevil":      `bidi\u202eevil`,
		"nul\x00":             `nul\x00`,
		"\xff\xfe":            `\xff\xfe`,
		"tag\U000e0041":       `tag\U000e0041`,
		"replacement \ufffd!": "replacement \ufffd!",
	} {
		if got := term.Escape(in); got != want {
			t.Errorf("Escape(%q) = %s, want %s", in, got, want)
		}
	}
}

func TestCut(t *testing.T) {
	for _, c := range []struct {
		in    string
		width int
		want  string
	}{
		{"abc", 3, "abc"},
		{"abcd", 3, "ab…"},
		{"äöü", 3, "äöü"},
		{"\n\n", 3, `\n…`},
		{strings.Repeat("x", 1<<20), 4, "xxx…"},
		{strings.Repeat("漢", 1<<10), 2, "漢…"},
	} {
		if got := term.Cut(c.in, c.width); got != c.want {
			t.Errorf("Cut(%.10q, %d) = %q, want %q", c.in, c.width, got, c.want)
		}
	}
}

func TestTable(t *testing.T) {
	var tab term.Table
	tab.Row("ID", "STATE", "ERROR")
	tab.Row("grün", "queued", "")
	tab.Row("b", "failed", "two\nlines")
	var out bytes.Buffer
	if _, err := tab.WriteTo(&out); err != nil {
		t.Fatal(err)
	}
	want := "ID    STATE   ERROR\n" +
		"grün  queued\n" +
		"b     failed  two\\nlines\n"
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
}

// A pipe or file gets no progress at all; the line fits the terminal.
func TestProgress(t *testing.T) {
	var out bytes.Buffer
	p := term.StartProgress(&out, func() term.Status { t.Error("asked"); return term.Status{} })
	p.Stop()
	p.Stop()
	if out.Len() != 0 {
		t.Errorf("wrote %q", out.String())
	}
	line := term.Line(term.Status{Done: 500, Total: 1000, Text: "12 throttled"}, time.Second, 79)
	if want := strings.Repeat("█", 12) + strings.Repeat("░", 12) + "  50%  500/1000  500/s  12 throttled"; line != want {
		t.Errorf("got  %s\nwant %s", line, want)
	}
	if n := utf8.RuneCountInString(term.Line(term.Status{Done: 1, Total: 2, Text: strings.Repeat("x", 99)}, time.Second, 40)); n != 40 {
		t.Errorf("%d characters on a line of 40", n)
	}
}
