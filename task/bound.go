package task

import (
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"
)

// Bounds of a Bound.
const (
	MaxBounds      = 1000      // of a tenant
	MinBoundRate   = 1e-4      // starts a second: one in three hours
	MaxBoundRate   = 1_000_000 // starts a second, and the burst
	MaxConcurrency = MaxLimitValue
)

// Bound is a limit that a user sets: of a tenant, or of one of its functions. What it holds back waits, and is never lost.
type Bound struct {
	Function    string    // "": of all of the tenant's functions together
	Concurrency int       // tries at once; 0: any number
	Rate        float64   // starts a second; 0: any number
	Burst       int       // starts at once after a rest; 0: one second's, at least 1. Only with a rate
	Reason      string    // for people; at most MaxLimitReason bytes
	At          time.Time // when it was said
}

// Validate checks what a caller gives. Its error is a *FieldError.
func (b Bound) Validate() error {
	if b.Function != "" {
		if err := Name("function", b.Function); err != nil {
			return err
		}
	}
	switch {
	case b.Concurrency < 0 || b.Concurrency > MaxConcurrency:
		return &FieldError{Field: "concurrency", Value: fmt.Sprint(b.Concurrency), Want: "1 to 1000000, or 0 for no limit"}
	case b.Rate != 0 && !(b.Rate >= MinBoundRate && b.Rate <= MaxBoundRate):
		return &FieldError{Field: "rate", Value: fmt.Sprint(b.Rate), Want: "0.0001 to 1000000 a second, or 0 for no limit"}
	case b.Burst < 0 || b.Burst > MaxBoundRate || b.Burst > 0 && b.Rate == 0:
		return &FieldError{Field: "burst", Value: fmt.Sprint(b.Burst), Want: "1 to 1000000 with a rate, or 0 for one second's"}
	case b.Concurrency == 0 && b.Rate == 0:
		return &FieldError{Field: "concurrency", Value: "0", Want: "a concurrency or a rate"}
	case len(b.Reason) > MaxLimitReason || !utf8.ValidString(b.Reason) || strings.ContainsFunc(b.Reason, isControl):
		return &FieldError{Field: "reason", Value: b.Reason, Want: "at most 255 bytes of UTF-8 without control characters"}
	}
	return nil
}

// BurstSize is how many starts may come at once after a rest.
func (b Bound) BurstSize() int {
	if b.Burst > 0 {
		return b.Burst
	}
	return max(1, int(math.Ceil(b.Rate)))
}
