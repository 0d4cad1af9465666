package loop

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/task"
)

// SetPauses makes rules the ones that hold for a tenant. It returns once they are in the mailbox: what is called after
// it finds them in force. Nobody may change the rules.
func (l *Loop) SetPauses(tenant string, rules []task.Pause) {
	l.post("pauses", func(now time.Time) {
		if len(rules) == 0 {
			delete(l.pauses, tenant)
		} else {
			l.pauses[tenant] = rules
		}
		l.enter("pauses", func(c *core.Core) { c.SetPauses(now, tenant, rules) })
	})
}

// AwaitPause waits until nothing that a rule covers can start on this node any more, and returns the partitions for
// which that is so (see core.PauseWait).
func (l *Loop) AwaitPause(ctx context.Context, w core.PauseWait) ([]uint32, error) {
	w.Reply = core.ReplyID(l.nextID())
	answer := make(chan core.PauseAnswer, 1) // Run writes once and never waits
	if err := l.postFor(ctx, "await pause", func(now time.Time) {
		l.pausing[w.Reply] = answer
		l.enter("await pause", func(c *core.Core) { c.AwaitPause(now, w) })
	}); err != nil {
		return nil, err
	}
	a, err := await(ctx, l, answer)
	return a.Partitions, err
}

// SetTenant changes a tenant's weight and class (core.Config.Standing says the same from now on).
func (l *Loop) SetTenant(tenant string, weight int, class task.TenantClass) {
	l.post("tenant", func(now time.Time) {
		l.enter("tenant", func(c *core.Core) { c.SetTenant(now, tenant, weight, class) })
	})
}

// pauseAnew tells a new core the rules.
func (l *Loop) pauseAnew() {
	for _, tenant := range slices.Sorted(maps.Keys(l.pauses)) {
		l.core.SetPauses(l.cfg.Now(), tenant, l.pauses[tenant])
	}
}
