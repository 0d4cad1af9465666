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

// limitsAnew tells a new core the limits.
func (l *Loop) limitsAnew() {
	for _, tenant := range slices.Sorted(maps.Keys(l.limits)) {
		l.core.SetLimits(l.cfg.Now(), tenant, l.limits[tenant])
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
