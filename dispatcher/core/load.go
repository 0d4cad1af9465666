package core

import (
	"time"

	"github.com/headrace/headrace/flowcontrol/adaptive"
	"github.com/headrace/headrace/task"
)

// FunctionName names a function of a tenant.
type FunctionName struct{ Tenant, Name string }

// FunctionLoad is what a function has on the node.
type FunctionLoad struct {
	FunctionName
	Downstream string
	Waiting    int64 // tasks that are due, not running and not paused
	Running    int64 // tries in flight
	Arrived    uint64
	Ended      uint64
	Busy       time.Duration
	// Limit is how many tries at once its downstream bears on this node, where that throttles; negative: nobody knows
	// of any bound.
	Limit float64
}

// PoolLoad is the executors that run the same functions.
type PoolLoad struct {
	Functions []FunctionName // by tenant and name
	Executors []ExecutorLoad
}

// ExecutorLoad is one executor that has a session.
type ExecutorLoad struct {
	ID, Name string
	Slots    int
	Running  int           // tries of this node's partitions
	Busy     time.Duration // that those have run in all
	Draining bool
}

// took counts a try that its handler has ended. Others say nothing about how long one takes.
func (c *Core) took(it *item, class task.Class) {
	y := it.try
	if y.ackedAt.IsZero() {
		return
	}
	switch class {
	case task.ClassNone, task.Retryable, task.NonRetryable, task.Timeout:
		f := it.lane.flow.function
		f.ended++
		f.busy += max(c.now.Sub(y.ackedAt), 0)
	}
}

// Loads returns the functions that have something or had something since the node started, and the pools, neither in
// any order. It looks at every function and every session, and at no task.
func (c *Core) Loads(now time.Time) ([]FunctionLoad, []PoolLoad) {
	var fs []FunctionLoad
	for _, t := range c.tenants {
		limits := make(map[*downstream]float64, len(t.downs))
		for _, f := range t.functions {
			l := FunctionLoad{FunctionName: FunctionName{t.name, f.name}, Downstream: f.down.name, Arrived: f.arrived, Ended: f.ended, Busy: f.busy}
			for _, fl := range f.flows {
				ready := int64(0)
				for _, ln := range fl.lanes {
					ready += ln.ready + ln.overdue
				}
				l.Running += fl.running
				if fl.paused == nil {
					l.Waiting += max(ready-fl.running, 0)
				}
			}
			if l.Waiting == 0 && l.Running == 0 && l.Arrived == 0 {
				continue
			}
			limit, seen := limits[f.down]
			if !seen {
				limit = f.down.bears(now)
				limits[f.down] = limit
			}
			l.Limit = limit
			fs = append(fs, l)
		}
	}
	ps := make([]PoolLoad, 0, len(c.pools))
	for _, p := range c.pools {
		l := PoolLoad{Functions: make([]FunctionName, len(p.functions))}
		for i, f := range p.functions {
			l.Functions[i] = FunctionName{f.tenant.name, f.name}
		}
		for _, s := range p.all {
			x := s.executor
			if x.session != s {
				continue // its newer one counts
			}
			busy := time.Duration(int64(x.flying.n)*now.UnixMilli()-x.begunMillis) * time.Millisecond
			l.Executors = append(l.Executors, ExecutorLoad{x.id, x.name, x.slots, x.flying.n, max(busy, 0), s.draining})
		}
		if len(l.Executors) > 0 {
			ps = append(ps, l)
		}
	}
	return fs, ps
}

// bears returns how many tries the downstream bears at once here, where that holds something back; else -1. While
// nothing has throttled, its limit only grows with what is pushed, so it says nothing about executors.
func (d *downstream) bears(now time.Time) float64 {
	if d.until.After(now) {
		return 0
	}
	if d.lim == nil {
		return -1
	}
	law := d.lim.law
	_, throttles := law.Window()
	limited := throttles > 0 || d.override != nil && law.Value() >= float64(law.Config().Max)
	for _, dec := range law.Decisions() {
		switch dec.Reason {
		case adaptive.Decrease, adaptive.Nudge, adaptive.ProbeUndo:
			limited = true
		}
	}
	if !limited {
		return -1
	}
	return float64(law.Cap())
}
