package task

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Bounds of what an operator may say of adaptive limits.
const (
	MaxLimits      = 1000      // of a tenant
	MaxLimitValue  = 1_000_000 // attempts at once
	MaxLimitReason = 255       // bytes
)

// Limit is an operator's word about the adaptive limit of one downstream of a tenant. Min = Max fixes it.
type Limit struct {
	Downstream string
	Min        int       // never below; 0: 1
	Max        int       // never above; 0: as without this word
	Reason     string    // for people; at most MaxLimitReason bytes
	At         time.Time // when it was said
}

// Validate checks what a caller gives. Its error is a *FieldError.
func (l Limit) Validate() error {
	if err := Name("downstream", l.Downstream); err != nil {
		return err
	}
	switch {
	case l.Min < 0 || l.Min > MaxLimitValue:
		return &FieldError{Field: "min", Value: fmt.Sprint(l.Min), Want: "1 to 1000000, or 0 for 1"}
	case l.Max < 0 || l.Max > MaxLimitValue || l.Max != 0 && l.Max < l.Min:
		return &FieldError{Field: "max", Value: fmt.Sprint(l.Max), Want: "min to 1000000, or 0 for no bound of its own"}
	case l.Min == 0 && l.Max == 0:
		return &FieldError{Field: "max", Value: "0", Want: "a min or a max"}
	case len(l.Reason) > MaxLimitReason || !utf8.ValidString(l.Reason) || strings.ContainsFunc(l.Reason, isControl):
		return &FieldError{Field: "reason", Value: l.Reason, Want: "at most 255 bytes of UTF-8 without control characters"}
	}
	return nil
}
