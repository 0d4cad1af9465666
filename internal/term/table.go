package term

import (
	"io"
	"strings"
	"unicode/utf8"
)

// A Table is text in columns. The zero value is an empty table without a head.
type Table struct {
	// Width bounds a cell in characters; longer ones are cut with a mark. 0: 60.
	Width int
	rows  [][]string
}

// Row adds a row. Cells are escaped.
func (t *Table) Row(cells ...string) {
	width := t.Width
	if width == 0 {
		width = 60
	}
	row := make([]string, len(cells))
	for i, c := range cells {
		row[i] = Cut(c, width)
	}
	t.rows = append(t.rows, row)
}

// WriteTo writes the table: columns two spaces apart, no space at the ends of lines.
func (t *Table) WriteTo(w io.Writer) (int64, error) {
	var widths []int
	for _, row := range t.rows {
		for i, c := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(c))
		}
	}
	var b strings.Builder
	for _, row := range t.rows {
		var line strings.Builder
		for i, c := range row {
			line.WriteString(c)
			line.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c)+2))
		}
		b.WriteString(strings.TrimRight(line.String(), " "))
		b.WriteByte('\n')
	}
	n, err := io.WriteString(w, b.String())
	return int64(n), err
}
