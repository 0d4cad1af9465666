package term

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Escape returns s with everything that is not plain printable text written as Go escapes: control
// characters (new-lines and ESC too), the line separators U+0085, U+2028 and U+2029, characters that
// change the direction of text, and bytes that are no UTF-8. Printable text comes back unchanged.
func Escape(s string) string {
	if clean(s) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case printable(r):
			b.WriteString(s[i : i+n])
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r < 0x80:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
		i += n
	}
	return b.String()
}

// Cut returns Escape(s), at most width characters of it; what is cut is marked by '…'. Width at least 1.
func Cut(s string, width int) string {
	if len(s) > 8*width { // no more than that can matter, and s may have a megabyte
		s = strings.ToValidUTF8(s[:8*width], "") + "…"
	}
	s = Escape(s)
	if utf8.RuneCountInString(s) <= width {
		return s
	}
	return string([]rune(s)[:width-1]) + "…"
}

func clean(s string) bool {
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 || !printable(r) {
			return false
		}
		i += n
	}
	return true
}

// printable says yes to letters, marks, numbers, punctuation, symbols and the ASCII space; no to other
// spaces, controls and formats (the bidirectional ones among them).
func printable(r rune) bool { return unicode.IsPrint(r) }
