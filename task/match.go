package task

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// MaxMatchLabels is how many labels an executor may have, and a function ask for.
const MaxMatchLabels = 16

// ParseMatch reads labels of executors, such as "gpu=true,zone=a": keys as names of functions, values of 1-63 letters, digits, '.',
// '_', '-'. The empty text has none. Its error is a *FieldError for the field.
func ParseMatch(field, text string) (map[string]string, error) {
	if text == "" {
		return nil, nil
	}
	labels := map[string]string{}
	for _, pair := range strings.Split(text, ",") {
		k, v, ok := strings.Cut(pair, "=")
		if _, twice := labels[k]; !ok || twice {
			return nil, &FieldError{Field: field, Value: Shorten(text), Want: "key=value,key=value…, each key once"}
		}
		labels[k] = v
	}
	return labels, MatchLabels(field, labels)
}

// MatchLabels checks labels of an executor. Its error is a *FieldError for the field.
func MatchLabels(field string, labels map[string]string) error {
	if len(labels) > MaxMatchLabels {
		return &FieldError{Field: field, Value: fmt.Sprintf("%d labels", len(labels)), Want: "at most 16"}
	}
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		v := labels[k]
		if Name(field, k) != nil {
			return &FieldError{Field: field, Value: k, Want: "keys of 1-63 characters of a-z, 0-9, '.', '_', '-', the first a letter or digit"}
		}
		if len(v) < 1 || len(v) > MaxNameLen || strings.ContainsFunc(v, func(r rune) bool {
			return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r))
		}) {
			return &FieldError{Field: field, Value: v, Want: "values of 1-63 letters, digits, '.', '_', '-'"}
		}
	}
	return nil
}

// Matches reports whether labels have all that is asked for.
func Matches(labels, asked map[string]string) bool {
	for k, v := range asked {
		if labels[k] != v {
			return false
		}
	}
	return true
}
