package loadgen

import (
	"context"
	"time"

	"github.com/headrace/headrace/client"
)

// Target says where a scenario runs.
type Target struct {
	Addr, APIKey string
	Tenant       string            // all but Throttle, which has no other, take tenants whose names begin with it
	Phase        func(name string) // told when a phase begins; nil: nobody is
}

func (t *Target) phase(name string) {
	if t.Phase != nil {
		t.Phase(name)
	}
}

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

// Verdict is the end of each scenario's report.
type Verdict struct {
	Checks Checks `json:"checks"`
}

// All returns the checks.
func (v *Verdict) All() Checks { return v.Checks }

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

// submitAll submits a batch, whether ctx ends meanwhile or not. It returns how many tasks were accepted before the first
// that was not.
func submitAll(ctx context.Context, cl *client.Client, tasks []client.Task) (n int, err error) {
	out, err := cl.SubmitBatch(context.WithoutCancel(ctx), tasks)
	if err != nil {
		return 0, err
	}
	for _, o := range out {
		if o.Err != nil {
			return n, o.Err
		}
		n++
	}
	return n, nil
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
