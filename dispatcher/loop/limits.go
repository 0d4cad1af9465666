package loop

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/task"
)

// SetLimits makes ls what operators say of a tenant's adaptive limits. Nobody may change them.
func (l *Loop) SetLimits(tenant string, ls []task.Limit) {
	l.post("limits", func(now time.Time) {
		if len(ls) == 0 {
			delete(l.limits, tenant)
		} else {
			l.limits[tenant] = ls
		}
		l.enter("limits", func(c *core.Core) { c.SetLimits(now, tenant, ls) })
	})
}

// SetBounds makes bs the limits that a tenant's user has set. Nobody may change them.
func (l *Loop) SetBounds(tenant string, bs []task.Bound) {
	l.post("bounds", func(now time.Time) {
		if len(bs) == 0 {
			delete(l.bounds, tenant)
		} else {
			l.bounds[tenant] = bs
		}
		l.enter("bounds", func(c *core.Core) { c.SetBounds(now, tenant, bs) })
	})
}

// BoundReport is what this node has to tell the coordinators of the limits that users set.
func (l *Loop) BoundReport(ctx context.Context) (r core.BoundReport, err error) {
	err = l.Do(ctx, func(c *core.Core) { r = c.BoundReport(l.cfg.Now()) })
	return r, err
}

// GrantBounds brings what a coordinator has answered.
func (l *Loop) GrantBounds(gs core.BoundGrants) {
	l.post("shares", func(now time.Time) { l.enter("shares", func(c *core.Core) { c.GrantBounds(now, gs) }) })
}

// limitsAnew tells a new core the limits.
func (l *Loop) limitsAnew() {
	for _, tenant := range slices.Sorted(maps.Keys(l.limits)) {
		l.core.SetLimits(l.cfg.Now(), tenant, l.limits[tenant])
	}
	for _, tenant := range slices.Sorted(maps.Keys(l.bounds)) {
		l.core.SetBounds(l.cfg.Now(), tenant, l.bounds[tenant])
	}
}

// LimitQuery says which limits are asked for, by tenant and downstream. "": any.
type LimitQuery struct {
	Tenant, Downstream           string
	AfterTenant, AfterDownstream string // only those after this one
	Most                         int
	Reset                        bool // the one that is named begins anew first
}

// limitSlice bounds how many limits one look at the core takes.
const limitSlice = 64

// Limits returns the adaptive limits of this node, in slices; each slice is consistent.
func (l *Loop) Limits(ctx context.Context, q LimitQuery) ([]core.LimitState, error) {
	if q.Reset {
		done := make(chan bool, 1) // Run writes once and never waits
		if err := l.postFor(ctx, "reset limit", func(now time.Time) {
			l.enter("reset limit", func(c *core.Core) { done <- c.ResetLimit(now, q.Tenant, q.Downstream) })
		}); err != nil {
			return nil, err
		}
		if there, err := await(ctx, l, done); err != nil || !there {
			return nil, err
		}
	}
	var out []core.LimitState
	for len(out) < q.Most {
		var part []core.LimitState
		n := min(limitSlice, q.Most-len(out))
		if err := l.Do(ctx, func(c *core.Core) {
			part = c.LimitStates(q.Tenant, q.Downstream, q.AfterTenant, q.AfterDownstream, n)
		}); err != nil {
			return nil, err
		}
		out = append(out, part...)
		if len(part) < n {
			break
		}
		q.AfterTenant, q.AfterDownstream = part[n-1].Tenant, part[n-1].Downstream
	}
	return out, nil
}

// Bounds returns the use of the limits that users set on this node, of a tenant ("": of all), those after one of them
// only, most at most; in slices, each of which is consistent.
func (l *Loop) Bounds(ctx context.Context, tenant, afterTenant, afterFunction string, most int) ([]core.BoundState, error) {
	var out []core.BoundState
	for len(out) < most {
		var part []core.BoundState
		n := min(limitSlice, most-len(out))
		if err := l.Do(ctx, func(c *core.Core) { part = c.BoundStates(tenant, afterTenant, afterFunction, n) }); err != nil {
			return nil, err
		}
		if out = append(out, part...); len(part) < n {
			break
		}
		afterTenant, afterFunction = part[n-1].Tenant, part[n-1].Function
	}
	return out, nil
}
