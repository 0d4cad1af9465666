package pgstore

import (
	_ "embed"
	"strings"
)

//go:embed sql/queries.sql
var queriesText string

// queries holds the statements of sql/queries.sql by name. A name that is not there is an empty
// statement, which no test of its method survives.
var queries = parseQueries(queriesText)

func parseQueries(text string) map[string]string {
	m := map[string]string{}
	for _, block := range strings.Split(text, "-- name: ")[1:] {
		name, body, _ := strings.Cut(block, "\n")
		var lines []string
		for line := range strings.Lines(body) {
			if !strings.HasPrefix(line, "--") {
				lines = append(lines, line)
			}
		}
		m[strings.TrimSpace(name)] = strings.TrimSpace(strings.Join(lines, ""))
	}
	return m
}
