package core

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/headrace/headrace/flowcontrol/adaptive"
	"github.com/headrace/headrace/task"
)

// An adaptive limit (flowcontrol/adaptive) belongs to a downstream of a tenant. There is none until somebody names the
// downstream in a policy, an operator speaks of it, or a try of it is throttled: what never throttles is never
// slowed, and costs a pointer a try.
//
// Flows of a downstream without a free permit are in no pool's order; an end, a throttle or a timer brings them
// back. A try holds a permit from its choice to its end; one that is taken over holds one beyond the limit if need be.
const (
	// maxLimits bounds the limits of a node: some 2 KiB each.
	maxLimits = 10_000
	// limitMax is the largest limit without an operator's word.
	limitMax    = 100_000
	limitTick   = time.Second
	limitRest   = 10 * time.Second // from tick to tick of a limit that is not in use
	limitForget = 10 * time.Minute // without use
	// A retry_after from here on is meant for all who call the downstream; a shorter one for the try and its permit.
	closeFrom = time.Second
)

// limiter is the limit of one downstream while there is one.
type limiter struct {
	down    *downstream
	law     *adaptive.Limit
	gate    *adaptive.Gate
	open    bool      // a permit was free when it was looked at last
	resting bool      // ticks are limitRest apart
	usedAt  time.Time // when it was in use last
	again   timer     // when a permit that cools down may be free
	tick    limiterTick
}

type limiterTick struct {
	timer timer
	l     *limiter
}

func (l *limiter) alarm(c *Core)     { c.permits(l) }
func (t *limiterTick) alarm(c *Core) { c.tickLimit(t.l) }

// LimitState is what there is to see of a limit on this node.
type LimitState struct {
	Tenant, Downstream string
	Functions          []string // that call it, by name
	Active             bool     // there is a limit; else only what the operator said of it
	Limit              float64
	Min, Max           int
	Override           *task.Limit // nil: none. Nobody changes it
	InUse, Parked      int
	PausedUntil        time.Time // zero: it isn't
	Results, Throttles int       // in the window of the law
	Decisions          []adaptive.Decision
}

// SetLimits makes ls the operator's words about a tenant's limits, all together. Nobody may change them.
func (c *Core) SetLimits(now time.Time, tenant string, ls []task.Limit) {
	c.enter(now)
	if len(ls) == 0 {
		delete(c.limits, tenant)
	} else {
		c.limits[tenant] = ls
	}
	t := c.tenants[tenant]
	if t == nil {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(t.downs)) {
		c.override(t, t.downs[name])
	}
}

// override looks up what the operator says of a downstream.
func (c *Core) override(t *tenant, d *downstream) {
	d.override = nil
	ls := c.limits[t.name]
	if i := slices.IndexFunc(ls, func(l task.Limit) bool { return l.Downstream == d.name }); i >= 0 {
		d.override = &ls[i]
	}
	switch {
	case d.lim != nil:
		d.lim.law.SetConfig(d.config(), c.now)
		c.share(d.lim)
	case d.override != nil:
		c.activate(t, d)
	}
}

// ResetLimit lets a limit begin anew, as if nothing had been seen of the downstream. It reports whether there was one.
func (c *Core) ResetLimit(now time.Time, tenant, downstream string) bool {
	c.enter(now)
	t := c.tenants[tenant]
	if t == nil || t.downs[downstream] == nil || t.downs[downstream].lim == nil {
		return false
	}
	d := t.downs[downstream]
	c.forgetLimit(d)
	if d.managed() {
		c.activate(t, d)
	}
	return true
}

// config bounds the law.
func (d *downstream) config() adaptive.Config {
	cfg := adaptive.Config{Max: limitMax}
	if o := d.override; o != nil {
		cfg.Min = o.Min
		cfg.Max = cmp.Or(o.Max, max(limitMax, o.Min))
	}
	return cfg
}

// managed reports whether there shall be a limit before the first throttle.
func (d *downstream) managed() bool { return d.named > 0 || d.override != nil }

// activate gives a downstream its limit. What is in flight counts as in use.
func (c *Core) activate(t *tenant, d *downstream) {
	if c.limited >= maxLimits {
		return // as if it had never throttled, but for its pauses
	}
	l := &limiter{down: d, law: adaptive.New(d.config(), c.now), gate: adaptive.NewGate(c.now), usedAt: c.now, open: true}
	l.again.owner, l.tick.l = l, l
	l.tick.timer.owner = &l.tick
	d.lim = l
	c.limited++
	n := 0
	for it := t.flying.first; it != nil; it = it.flying.next {
		if y := it.try; y.down == d {
			c.permit(l, y)
			n++
		}
	}
	if n > l.law.Cap() {
		l.law.Begin(n, c.now)
	}
	c.timers.set(&l.tick.timer, c.now.Add(limitTick))
	c.share(l)
}

func (c *Core) forgetLimit(d *downstream) {
	c.timers.unset(&d.lim.again)
	c.timers.unset(&d.lim.tick.timer)
	d.lim = nil
	c.limited--
	d.update(c)
}

// permit takes a permit for a try in flight.
func (c *Core) permit(l *limiter, y *try) {
	y.permit = l
	if y.taken = !y.ackedAt.IsZero() && c.now.Sub(y.ackedAt) >= c.cfg.RecordAfter; y.taken {
		l.gate.Adopt()
	} else {
		l.gate.Start()
	}
	if l.usedAt = c.now; l.resting {
		l.resting = false
		c.timers.set(&l.tick.timer, c.now.Add(limitTick))
	}
}

// limitBegins takes a permit for a new try.
func (c *Core) limitBegins(f *function, y *try) {
	d := y.down
	if len(d.flowed) > 1 { // whose turn it was comes back last, when there is a permit again
		d.turned = slices.Index(d.flowed, f) + 1
	}
	if d.lim == nil {
		c.activate(f.tenant, d) // it counts the new one, too
		return
	}
	c.permit(d.lim, y)
	c.permits(d.lim)
}

// limitTook counts a try that its downstream takes, and that runs on.
func (c *Core) limitTook(y *try) {
	if l := y.permit; l != nil && !y.taken {
		y.taken = true
		l.gate.Accepted(true)
		l.law.OK(1)
	}
}

// limitDone counts a try that has succeeded.
func (c *Core) limitDone(y *try) {
	if l := y.permit; l != nil {
		y.done = true
		if !y.taken {
			l.gate.Accepted(false)
			l.law.OK(1)
		}
	}
}

// limitEnds returns the permit of a try. A throttled one cools down for at least after.
func (c *Core) limitEnds(y *try, throttled bool, after time.Duration) {
	l := y.permit
	y.permit = nil
	if l.down.lim != l {
		return // it began anew meanwhile
	}
	switch {
	case throttled:
		l.gate.Throttled(c.now, after, y.taken)
		l.law.Throttle(c.now, 1, l.gate.Parked())
	case (y.taken || y.done) && !y.ackedAt.IsZero():
		l.gate.End(c.now.Sub(y.ackedAt), y.taken)
	default:
		l.gate.End(0, y.taken)
	}
	c.share(l)
}

// limitThrottled takes a throttle of a try that ends now. It counts for the downstream whose permit the try has. If
// the handler names another one that is known, a long retry_after closes that one, too.
func (c *Core) limitThrottled(t *tenant, y *try, named string, after time.Duration) {
	d := y.down
	if d.lim == nil {
		c.activate(t, d)
	}
	if y.permit != nil {
		c.limitEnds(y, true, after)
	}
	if after < closeFrom {
		return
	}
	c.shut(d, c.now.Add(after))
	if o := t.downs[named]; o != nil && o != d {
		c.shut(o, c.now.Add(after))
	}
}

// share gives the gate what the law allows, all of it: each node has a limit of its own.
func (c *Core) share(l *limiter) {
	l.gate.SetShare(l.law.Cap(), l.law.Value())
	c.permits(l)
}

// permits lets the flows of a downstream in or out of their pools' order.
func (c *Core) permits(l *limiter) {
	n, again := l.gate.Free(c.now)
	c.timers.set(&l.again, again)
	if open := n > 0; open != l.open {
		l.open = open
		l.down.update(c)
	}
}

func (c *Core) tickLimit(l *limiter) {
	peak := l.gate.Peak()
	l.law.Tick(c.now, peak)
	c.share(l)
	if peak > 0 {
		l.usedAt = c.now
	}
	idle := c.now.Sub(l.usedAt)
	if idle >= limitForget {
		c.forgetLimit(l.down)
		return
	}
	every := limitTick
	if l.resting = idle >= limitRest; l.resting {
		every = limitRest
	}
	c.timers.set(&l.tick.timer, c.now.Add(every))
}

// LimitStates returns what there is to see of the limits of a tenant ("": of all), by tenant and downstream, those
// after one of them only, most at most.
func (c *Core) LimitStates(tenant, downstream, afterTenant, afterDownstream string, most int) []LimitState {
	names := []string{tenant}
	if tenant == "" {
		names = slices.Sorted(maps.Keys(c.tenants))
	}
	var out []LimitState
	for _, name := range names {
		t := c.tenants[name]
		if t == nil || name < afterTenant {
			continue
		}
		for _, dn := range slices.Sorted(maps.Keys(t.downs)) {
			d := t.downs[dn]
			if downstream != "" && dn != downstream || name == afterTenant && dn <= afterDownstream || d.lim == nil && !d.managed() && !d.until.After(c.now) {
				continue
			}
			if len(out) == most {
				return out
			}
			out = append(out, c.limitState(t, d))
		}
	}
	return out
}

func (c *Core) limitState(t *tenant, d *downstream) LimitState {
	cfg := d.config()
	s := LimitState{Tenant: t.name, Downstream: d.name, Override: d.override, Min: max(cfg.Min, 1), Max: cfg.Max}
	for _, f := range d.flowed {
		s.Functions = append(s.Functions, f.name)
	}
	slices.Sort(s.Functions)
	if d.until.After(c.now) {
		s.PausedUntil = d.until
	}
	if l := d.lim; l != nil {
		s.Active, s.Limit = true, l.law.Value()
		s.InUse, s.Parked = l.gate.InFlight(), l.gate.Parked()
		s.Results, s.Throttles = l.law.Window()
		s.Decisions = l.law.Decisions()
	}
	return s
}

// full says why a downstream has no permit.
func (d *downstream) full(tenant string) string {
	s := fmt.Sprintf("downstream %s of %s: %d of %d in use", d.name, tenant, d.lim.gate.InFlight(), d.lim.gate.Share())
	if n := d.lim.gate.Parked(); n > 0 {
		s += fmt.Sprintf(", %d cooling down after a throttle", n)
	}
	return s
}

// limitedBy returns why a limit keeps a stored task from running; "": none does.
func (c *Core) limitedBy(tenant, function string) string {
	if t := c.tenants[tenant]; t != nil {
		f := t.functions[function]
		switch {
		case f == nil:
		case f.shutBy() != nil:
			return f.shutBy().why(c)
		case f.down.lim != nil && !f.down.lim.open:
			return f.down.full(tenant)
		}
	}
	return ""
}
