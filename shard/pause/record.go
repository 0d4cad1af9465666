package pause

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/headrace/headrace/task"
)

// record is a tenant's key; ruleJSON one of its rules.
type record struct {
	Rules []ruleJSON `json:"rules"`
}

type ruleJSON struct {
	Function string    `json:"function,omitempty"` // missing: any
	Band     string    `json:"band,omitempty"`     // missing: any
	Reason   string    `json:"reason,omitempty"`
	At       time.Time `json:"at"`
	Until    time.Time `json:"until,omitzero"`
}

// Encode returns a tenant's record.
func Encode(rules []task.Pause) []byte {
	var rec record
	for _, p := range rules {
		j := ruleJSON{Function: p.Function, Reason: p.Reason, At: p.At, Until: p.Until}
		if p.Band != task.AnyBand {
			j.Band = p.Band.String()
		}
		rec.Rules = append(rec.Rules, j)
	}
	b, err := json.Marshal(rec)
	if err != nil {
		panic(fmt.Sprintf("pause: encode a record: %v", err)) // all of its fields can be
	}
	return b
}

// decode reads a tenant's record; none has no rules.
func decode(b []byte) ([]task.Pause, error) {
	if len(b) == 0 {
		return nil, nil
	}
	var rec record
	if err := json.Unmarshal(b, &rec); err != nil {
		return nil, err
	}
	var rules []task.Pause
	for _, j := range rec.Rules {
		p := task.Pause{Function: j.Function, Band: task.AnyBand, Reason: j.Reason, At: j.At.UTC(), Until: j.Until}
		if !p.Until.IsZero() {
			p.Until = p.Until.UTC()
		}
		if j.Band != "" {
			b, err := task.ParseBand(j.Band)
			if err != nil {
				return nil, err
			}
			p.Band = b
		}
		rules = append(rules, p)
	}
	sortRules(rules)
	return rules, nil
}

func sortRules(rules []task.Pause) {
	slices.SortFunc(rules, func(a, b task.Pause) int {
		return cmp.Or(strings.Compare(a.Function, b.Function), cmp.Compare(a.Band+1, b.Band+1)) // any band first
	})
}

func equal(a, b task.Pause) bool {
	return a.Same(b) && a.Reason == b.Reason && a.At.Equal(b.At) && a.Until.Equal(b.Until)
}
