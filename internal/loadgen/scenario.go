package loadgen

import (
	"context"
	"time"
)

// Check is one thing that a scenario must show.
type Check struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Bound float64 `json:"bound"`
	OK    bool    `json:"ok"`
}

// Checks are all that it must show.
type Checks []Check

func (cs *Checks) add(name string, value, bound float64, ok bool) {
	*cs = append(*cs, Check{Name: name, Value: round(value, 4), Bound: round(bound, 4), OK: ok})
}

func (cs *Checks) most(name string, value, bound float64) { cs.add(name, value, bound, value <= bound) }
func (cs *Checks) least(name string, value, bound float64) {
	cs.add(name, value, bound, value >= bound)
}

// OK reports whether all hold.
func (cs Checks) OK() bool {
	for _, c := range cs {
		if !c.OK {
			return false
		}
	}
	return true
}

// pass lets time pass.
func pass(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
