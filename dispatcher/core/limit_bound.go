package core

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/headrace/headrace/flowcontrol/gcra"
	"github.com/headrace/headrace/flowcontrol/shares"
	"github.com/headrace/headrace/task"
)

// A bound is a limit that a user set: of tries at once and of starts a second, of a tenant or of one of its functions. A
// function at its bound has no flow in any pool's order; a tenant at its bound leaves the order as a whole. So what
// waits for a bound costs nothing, and an end or a timer brings it back.
//
// A try counts from its choice to its end, also one that is taken over. While a takeover lasts nobody knows all that
// runs, nor after a panic (Forgot): no bound of tries lets anything start then, for settleMax at most. What
// runs in a partition that was lost counts on until somebody has taken it over.
//
// With Config.Shared the limit is all nodes' together, and this one has a lease of it (flowcontrol/shares): the shell brings
// BoundReport to the coordinator, and GrantBounds what it answers. Then it is the coordinator who waits for takeovers.

// settleMax is how long a bound waits for what runs and isn't known: as long as an executor without an owner goes on.
const settleMax = 30 * time.Second

// bound is one rule and what there is of it on this node.
type bound struct {
	rule     task.Bound
	tenant   *tenant
	function *function // nil: the tenant's own
	gone     int       // tries of partitions that were lost
	rate     gcra.Limiter
	lease    shares.Lease // of a shared one
	usedAt   time.Time    // when a try began or ended last
	shut     bool
	timer    timer // when the rate lets the next one start, or the lease ends
}

// goneTries are what ran in a partition when it was lost.
type goneTries struct {
	partition uint32
	epoch     uint64
	until     time.Time
	bounds    map[*bound]int
}

// BoundState is what there is to see of a bound on this node.
type BoundState struct {
	Tenant, Function string // Function "": of the tenant
	Running          int    // tries that count, also those of lost partitions
	Why              string // why nothing more may start now; "": something may
	Share            int    // tries at once that this node may have; 0 without a limit of them
	Rule             task.Bound
}

// SetBounds makes bs all the bounds of a tenant and its functions. Nobody may change them.
func (c *Core) SetBounds(now time.Time, tenant string, bs []task.Bound) {
	c.enter(now)
	if len(bs) == 0 {
		delete(c.boundRules, tenant)
	} else {
		c.boundRules[tenant] = bs
	}
	c.armSettling()
	t := c.tenants[tenant]
	if t == nil {
		return
	}
	c.bind(t, nil)
	for _, name := range slices.Sorted(maps.Keys(t.functions)) {
		c.bind(t, t.functions[name])
	}
}

// bind gives a function the bound that its tenant's rules have for it; no function: the tenant.
func (c *Core) bind(t *tenant, f *function) {
	name, at := "", &t.bound
	if f != nil {
		name, at = f.name, &f.bound
	}
	rules := c.boundRules[t.name]
	i := slices.IndexFunc(rules, func(b task.Bound) bool { return b.Function == name })
	b := *at
	switch {
	case i < 0 && b == nil:
		return
	case i < 0:
		c.timers.unset(&b.timer)
		c.bounds = slices.DeleteFunc(c.bounds, func(o *bound) bool { return o == b })
		for _, g := range c.gone {
			delete(g.bounds, b)
		}
		*at = nil
		b.shut = false
		b.moved(c)
		return
	case b == nil:
		b = &bound{tenant: t, function: f}
		b.timer.owner = b
		*at = b
		c.bounds = append(c.bounds, b)
	case b.rule == rules[i]:
		return
	}
	b.rule = rules[i]
	b.update(c)
}

// running counts the tries of the bound that this node knows.
func (b *bound) running() int {
	n := b.gone
	if b.function != nil {
		return n + b.function.flying
	}
	return n + b.tenant.flying.n
}

func (b *bound) per() gcra.Rate {
	return gcra.Rate{PerSecond: b.rule.Rate, Burst: float64(b.rule.BurstSize())}
}

// update looks whether something may start, and lets the flows in or out of the order.
func (b *bound) update(c *Core) {
	shut := b.rule.Concurrency > 0 && (b.running() >= b.allowed(c) || !c.cfg.Shared && c.counting())
	var again time.Time
	switch {
	case c.cfg.Shared:
		shut = shut || b.rule.Rate > 0 && b.lease.Tokens(c.now) == 0
		if !shut {
			again = b.lease.Ends(c.now)
		}
	case !shut && b.rule.Rate > 0:
		if wait := b.rate.Wait(c.now, b.per(), 1); wait > 0 {
			shut, again = true, c.now.Add(wait)
		}
	}
	c.timers.set(&b.timer, again)
	if shut != b.shut {
		b.shut = shut
		b.moved(c)
	}
}

// allowed is how many tries this node may have at once.
func (b *bound) allowed(c *Core) int {
	if c.cfg.Shared {
		return b.lease.Share(c.now)
	}
	return b.rule.Concurrency
}

func (b *bound) alarm(c *Core) { b.update(c) }

// moved takes what the bound covers into the order or out of it.
func (b *bound) moved(c *Core) {
	if f := b.function; f != nil {
		for _, fl := range f.flows {
			fl.update(c)
		}
		return
	}
	for _, s := range b.tenant.benches {
		s.shut(b.shut)
	}
}

// boundsChanged is called when a try of a function begins or has ended. An end shuts nothing.
func (c *Core) boundsChanged(f *function, begins bool) {
	for _, b := range [...]*bound{f.tenant.bound, f.bound} {
		if b == nil {
			continue
		}
		if b.usedAt = c.now; begins || b.shut {
			b.update(c)
		}
	}
}

// boundStarts counts a new start. What is overdrawn is waited for by the next.
func (c *Core) boundStarts(f *function) {
	for _, b := range [...]*bound{f.tenant.bound, f.bound} {
		switch {
		case b == nil || b.rule.Rate == 0:
		case c.cfg.Shared:
			b.lease.Spend()
		default:
			b.rate.Take(c.now, b.per(), 1)
		}
	}
}

// shutBy returns the bound that keeps a function from running; nil: none does.
func (f *function) shutBy() *bound {
	if b := f.tenant.bound; b != nil && b.shut {
		return b
	}
	if f.bound != nil && f.bound.shut {
		return f.bound
	}
	return nil
}

// takes reports whether limits let a try of the function start now.
func (f *function) takes(c *Core) bool { return f.down.takes(c) && f.shutBy() == nil }

// why says why nothing more may start.
func (b *bound) why(c *Core) string {
	of := "tenant " + b.tenant.name
	if b.function != nil {
		of = fmt.Sprintf("function %s of %s", b.function.name, b.tenant.name)
	}
	switch n := b.running(); {
	case !b.shut:
		return ""
	case b.rule.Concurrency > 0 && n >= b.rule.Concurrency:
		return fmt.Sprintf("limit of %s: %d of %d running", of, n, b.rule.Concurrency)
	case c.cfg.Shared && b.rule.Concurrency > 0 && n >= b.allowed(c):
		return fmt.Sprintf("limit of %s: %d of %d running on this node, its share of %d", of, n, b.allowed(c), b.rule.Concurrency)
	case !c.cfg.Shared && b.rule.Concurrency > 0 && c.counting():
		return fmt.Sprintf("limit of %s: what runs is being counted after a change of owners", of)
	}
	return fmt.Sprintf("limit of %s: %g starts a second", of, b.rule.Rate)
}

// settles notes that a takeover has begun: what runs in the partition is not known.
func (c *Core) settles(p *partition) {
	p.settleBy = c.now.Add(settleMax)
	c.settling = append(c.settling, p)
	if len(c.settling) == 1 {
		c.updateBounds()
	}
	c.armSettling()
}

// forgotten is a partition that an earlier core of this node had.
type forgotten struct {
	partition uint32
	until     time.Time
}

// Forgot says that an earlier core of this node had partitions, and that what runs in them is not known before they
// are open again, here: for settleMax at most bounds wait for that as for takeovers.
func (c *Core) Forgot(now time.Time, partitions []uint32) {
	c.enter(now)
	for _, p := range partitions {
		c.forgot = append(c.forgot, forgotten{p, c.now.Add(settleMax)})
	}
	c.armSettling()
	c.updateBounds()
}

// counting reports whether there may be tries that this node has yet to count.
func (c *Core) counting() bool { return len(c.settling) > 0 || len(c.forgot) > 0 }

// armSettling sets when something has lasted too long, if that matters to anybody.
func (c *Core) armSettling() {
	var next time.Time
	if len(c.boundRules) > 0 {
		for _, p := range c.settling {
			next = sooner(next, p.settleBy)
		}
		for _, g := range c.gone {
			next = sooner(next, g.until)
		}
		for _, o := range c.forgot {
			next = sooner(next, o.until)
		}
	}
	c.timers.set(&c.settleTimer.timer, next)
}

// settled is called when a takeover has ended, in whatever way.
func (c *Core) settled(p *partition) {
	was := c.counting()
	c.settling = slices.DeleteFunc(c.settling, func(o *partition) bool { return o == p })
	if !p.dead {
		c.forgot = slices.DeleteFunc(c.forgot, func(o forgotten) bool { return o.partition == p.id })
		c.dropGone(func(g *goneTries) bool { return g.partition == p.id })
	}
	if was && !c.counting() {
		c.updateBounds()
	}
}

func (c *Core) updateBounds() {
	for _, b := range c.bounds {
		b.update(c)
	}
}

// settleAlarm ends what has lasted too long.
type settleAlarm struct{ timer timer }

func (a *settleAlarm) alarm(c *Core) {
	c.settling = slices.DeleteFunc(c.settling, func(p *partition) bool { return !p.settleBy.After(c.now) })
	c.forgot = slices.DeleteFunc(c.forgot, func(o forgotten) bool { return !o.until.After(c.now) })
	c.dropGone(func(g *goneTries) bool { return !g.until.After(c.now) })
	c.armSettling()
	c.updateBounds()
}

// leaves notes what runs in a partition that is being lost.
func (c *Core) leaves(p *partition) {
	if len(c.bounds) == 0 {
		return
	}
	g := &goneTries{partition: p.id, epoch: uint64(p.epoch), until: c.now.Add(settleMax), bounds: map[*bound]int{}}
	for _, it := range p.items { // the order does not matter: they are counted
		if it.try == nil {
			continue
		}
		f := it.lane.flow.function
		for _, b := range [...]*bound{f.tenant.bound, f.bound} {
			if b != nil {
				g.bounds[b]++
				b.gone++
			}
		}
	}
	if len(g.bounds) == 0 {
		return
	}
	c.gone = append(c.gone, g)
	c.armSettling()
}

// dropGone forgets what ran in lost partitions where is says so: somebody counts it, or it is over.
func (c *Core) dropGone(is func(*goneTries) bool) {
	c.gone = slices.DeleteFunc(c.gone, func(g *goneTries) bool {
		if !is(g) {
			return false
		}
		for _, b := range c.bounds {
			if n := g.bounds[b]; n > 0 {
				b.gone -= n
				b.update(c)
			}
		}
		return true
	})
}

// BoundStates returns what there is to see of the bounds of a tenant ("": of all), by tenant and function, those after
// one of them only, most at most.
func (c *Core) BoundStates(tenant, afterTenant, afterFunction string, most int) []BoundState {
	names := []string{tenant}
	if tenant == "" {
		names = slices.Sorted(maps.Keys(c.boundRules))
	}
	var out []BoundState
	for _, name := range names {
		if tenant == "" && name < afterTenant {
			continue
		}
		rules := slices.Clone(c.boundRules[name])
		slices.SortFunc(rules, func(a, b task.Bound) int { return cmp.Compare(a.Function, b.Function) })
		for _, r := range rules {
			if name == afterTenant && r.Function <= afterFunction {
				continue
			}
			if len(out) == most {
				return out
			}
			s := BoundState{Tenant: name, Function: r.Function, Rule: r}
			if b := c.boundOf(name, r.Function); b != nil {
				s.Running, s.Why = b.running(), b.why(c)
				if r.Concurrency > 0 {
					s.Share = b.allowed(c)
				}
			}
			out = append(out, s)
		}
	}
	return out
}

func (c *Core) boundOf(tenant, function string) *bound {
	t := c.tenants[tenant]
	switch {
	case t == nil:
		return nil
	case function == "":
		return t.bound
	}
	if f := t.functions[function]; f != nil {
		return f.bound
	}
	return nil
}
