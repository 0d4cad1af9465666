package task

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Limits of the pause rules.
const (
	MaxPauses      = 64 // of a tenant
	MaxPauseReason = 255
)

// AnyBand is the band of a rule that holds for all of them.
const AnyBand Band = 255

// Pause is a rule that keeps waiting tasks of a tenant from starting: all of them, those of one function, of
// one band, or of one function in one band. What runs goes on, new tasks are taken, waiting ones expire.
type Pause struct {
	Function string    // "": any
	Band     Band      // AnyBand: any
	Reason   string    // for people; at most MaxPauseReason bytes
	At       time.Time // when it was made
	Until    time.Time // it ends by itself then; zero: when somebody resumes
}

// Validate checks what a caller gives. Its error is a *FieldError.
func (p Pause) Validate(now time.Time) error {
	if p.Function != "" {
		if err := Name("function", p.Function); err != nil {
			return err
		}
	}
	switch {
	case p.Band >= Bands && p.Band != AnyBand:
		return &FieldError{Field: "band", Value: p.Band.String(), Want: "high, normal or low, or none for all"}
	case len(p.Reason) > MaxPauseReason || !utf8.ValidString(p.Reason) || strings.ContainsFunc(p.Reason, isControl):
		return &FieldError{Field: "reason", Value: p.Reason, Want: "at most 255 bytes of UTF-8 without control characters"}
	case !p.Until.IsZero() && (!p.Until.After(now) || p.Until.Sub(now) > MaxDelay):
		return &FieldError{Field: "until_time", Value: p.Until.UTC().Format(time.RFC3339), Want: "a time in the next ten years"}
	}
	return nil
}

// Covers reports whether the rule holds for the tasks of a function in a band.
func (p Pause) Covers(function string, b Band) bool {
	return (p.Function == "" || p.Function == function) && (p.Band == AnyBand || p.Band == b)
}

// Same reports whether two rules hold for the same tasks: a tenant has one of these only.
func (p Pause) Same(q Pause) bool { return p.Function == q.Function && p.Band == q.Band }

// Over reports whether the rule has ended by itself.
func (p Pause) Over(now time.Time) bool { return !p.Until.IsZero() && !p.Until.After(now) }

// Name is the rule in short: tenant/function/band, with a star for any.
func (p Pause) Name(tenant string) string {
	function, band := "*", "*"
	if p.Function != "" {
		function = p.Function
	}
	if p.Band != AnyBand {
		band = p.Band.String()
	}
	return tenant + "/" + function + "/" + band
}

// Why says that the rule keeps a task from running, as a reason to wait.
func (p Pause) Why(tenant string) string {
	s := "paused by " + p.Name(tenant)
	if !p.Until.IsZero() {
		s += " until " + p.Until.UTC().Format(time.RFC3339)
	}
	if p.Reason != "" {
		s += fmt.Sprintf(" (%s)", p.Reason)
	}
	return s
}

// PauseOf returns the first of the rules that holds for the tasks of a function in a band at a time; nil: none.
func PauseOf(rules []Pause, function string, b Band, now time.Time) *Pause {
	i := slices.IndexFunc(rules, func(p Pause) bool { return p.Covers(function, b) && !p.Over(now) })
	if i < 0 {
		return nil
	}
	return &rules[i]
}
