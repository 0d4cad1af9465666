package core

import (
	"maps"
	"slices"
	"time"

	"github.com/headrace/headrace/internal/mutant"
	"github.com/headrace/headrace/task"
)

// A paused flow is in no pool's order, so it costs a turn nothing. Its windows stay in memory while there is
// room, so that what is in them expires on time; but all windows of paused flows together hold a pausedShare-th
// of the node's bytes at most: they drain nothing, and others need the room.
const pausedShare = 8

// pauses are the rules of one tenant that holds something here.
type pauses struct {
	tenant *tenant
	rules  []task.Pause // nobody changes them
	timer  timer        // when the next one ends by itself
}

// PauseWait asks for the moment from which on nothing that a rule covers starts here any more. The rule
// was set before.
type PauseWait struct {
	Reply    ReplyID
	Tenant   string
	Function string    // "": any
	Band     task.Band // task.AnyBand: any
}

// PauseAnswer answers a PauseWait: for which partitions it is true. The others, and those that come to this node
// later, have to be asked for again.
type PauseAnswer struct {
	Reply      ReplyID
	Partitions []uint32 // by number
}

// checkPatience is how long an answer waits for a check of the epoch once nothing else is missing.
const checkPatience = 2 * time.Second

// pauseWait is a PauseWait that is not answered yet.
type pauseWait struct {
	PauseWait
	askedAt time.Time
	parts   []*partition
	starts  map[*item]struct{} // pushes that are not confirmed: they may start still
	ends    time.Time          // no more, from then on
	timer   timer
}

// SetPauses makes rules the ones that hold for a tenant, all together. They hold at once for what is pushed from
// now on; the core keeps them for partitions to come.
func (c *Core) SetPauses(now time.Time, tenant string, rules []task.Pause) {
	c.enter(now)
	if len(rules) == 0 {
		delete(c.pauses, tenant)
	} else {
		c.pauses[tenant] = rules
	}
	if t := c.tenants[tenant]; t != nil {
		t.pauses.rules = rules
		c.repause(t)
	}
}

// repause applies a tenant's rules.
func (c *Core) repause(t *tenant) {
	c.armPauses(t)
	for _, name := range slices.Sorted(maps.Keys(t.functions)) {
		for _, fl := range t.functions[name].flows {
			c.pauseFlow(fl)
		}
	}
	c.turnLanes()
}

// armPauses sets when the next rule of a tenant ends by itself.
func (c *Core) armPauses(t *tenant) {
	var next time.Time
	for _, p := range t.pauses.rules {
		if !p.Over(c.now) {
			next = sooner(next, p.Until)
		}
	}
	c.timers.set(&t.pauses.timer, next)
}

func (p *pauses) alarm(c *Core) { c.repause(p.tenant) }

// pauseFlow takes a flow out of the order, or lets it in again.
func (c *Core) pauseFlow(fl *flow) {
	f := fl.function
	was := fl.paused
	fl.paused = task.PauseOf(f.tenant.pauses.rules, f.name, fl.band, c.now)
	if (was != nil) == (fl.paused != nil) {
		return
	}
	fl.update(c)
	for _, l := range fl.lanes {
		if fl.paused != nil {
			c.pausedBytes += l.memory()
		} else {
			c.pausedBytes -= l.memory()
		}
		if !l.turned {
			l.turned = true
			c.turned.push(l)
		}
	}
	if fl.paused == nil {
		return
	}
	for _, p := range f.pools { // suspects of the flow would keep a session empty for nothing
		var out []*item
		for n := p.suspects.len(); n > 0; n-- {
			it := p.suspects.pop()
			if it.place == atSuspect && it.lane.flow == fl && !it.part.dead {
				out = append(out, it)
			} else {
				p.suspects.push(it)
			}
		}
		for _, it := range out {
			c.timers.unset(&it.timer)
			c.offer(it)
		}
	}
}

// turnLanes goes on with lanes whose flow was paused or resumed: what is too much leaves memory, what lies in the
// store is pulled.
func (c *Core) turnLanes() {
	left := c.cfg.Slice
	for ; left > 0 && c.turned.len() > 0; left-- {
		l := *c.turned.peek()
		if p := l.part; l.flow.paused != nil && !p.dead && !p.releasing && l.len() > 0 && c.pausedBytes > c.cfg.NodeWindowBytes/pausedShare {
			c.inHand(p.id, l.last().it.t.ID)
			c.evict(l.last().it)
			continue
		}
		c.turned.pop()
		l.turned = false
		if l.flow.paused == nil {
			c.refill(l)
		}
	}
	if c.turned.len() > 0 {
		c.more = true
	}
	c.hand.set = false
}

// memory is what a lane's window counts.
func (l *lane) memory() int { return l.bytes + l.len()*overhead }

// fits reports whether a window may take a task beside what all of them hold: added is what that would grow by.
func (c *Core) fits(l *lane, size, added int) bool {
	if l.len() >= c.cfg.WindowTasks || l.bytes+size > c.cfg.WindowBytes || c.bytes+added > c.cfg.NodeWindowBytes {
		return false
	}
	return l.flow.paused == nil || c.pausedBytes+size+overhead <= c.cfg.NodeWindowBytes/pausedShare
}

// pausedBy returns why a rule keeps a stored task from running; "": none does.
func (c *Core) pausedBy(tenant, function string, b task.Band) string {
	if p := task.PauseOf(c.pauses[tenant], function, b, c.now); p != nil {
		return p.Why(tenant)
	}
	return ""
}

// AwaitPause is answered in Effects.Paused once no task that the rule covers can start any more: its pushes that
// were under way are confirmed, or out of their shelf life (as for a cancel, R16), and those of earlier
// owners are (R12). It takes the grace of a takeover at most, or what a check of the epoch takes: an owner without
// trust answers for nothing.
func (c *Core) AwaitPause(now time.Time, r PauseWait) {
	c.enter(now)
	w := &pauseWait{PauseWait: r, askedAt: c.now, parts: slices.Clone(c.order), starts: map[*item]struct{}{}}
	w.timer.owner = w
	for _, p := range w.parts {
		if !mutant.On("pause-before-grace") {
			w.ends = later(w.ends, p.takeover.graceAt)
		}
		if !c.now.Before(c.trust) && !mutant.On("pause-unchecked") { // the check goes on beside the wait
			p.db.readWanted = true
		}
	}
	if t := c.tenants[r.Tenant]; t != nil {
		scope := task.Pause{Function: r.Function, Band: r.Band}
		for it := t.flying.first; it != nil; it = it.flying.next {
			if it.try.pushed && it.try.ackedAt.IsZero() && !mutant.On("pause-unconfirmed") && scope.Covers(it.t.Function, it.t.Band) {
				w.starts[it] = struct{}{}
				w.ends = later(w.ends, c.startEnds(it))
			}
		}
	}
	c.pauseWaits = append(c.pauseWaits, w)
	w.step(c)
}

func (w *pauseWait) alarm(c *Core) { w.step(c) }

// step answers a wait if it is over.
func (w *pauseWait) step(c *Core) {
	ready := w.ends
	if len(w.starts) == 0 {
		ready = time.Time{}
		for _, p := range w.parts {
			if p.takeover.active && !p.dead && !mutant.On("pause-before-grace") { // it may end before the grace does
				ready = later(ready, p.takeover.graceAt)
			}
		}
	}
	if ready.After(c.now) {
		c.timers.set(&w.timer, ready)
		return
	}
	a := PauseAnswer{Reply: w.Reply}
	unchecked := false
	for _, p := range w.parts {
		switch {
		case p.dead:
		case c.now.Before(c.trust) || !p.checkedAt.Before(w.askedAt) || mutant.On("pause-unchecked"):
			a.Partitions = append(a.Partitions, p.id)
		default:
			unchecked = true
			p.db.readWanted = true
		}
	}
	if give := later(w.ends, w.askedAt).Add(checkPatience); unchecked && give.After(c.now) {
		c.timers.set(&w.timer, give)
		return
	}
	c.timers.unset(&w.timer)
	c.pauseWaits = slices.DeleteFunc(c.pauseWaits, func(o *pauseWait) bool { return o == w })
	fx := c.effects()
	fx.Paused = append(fx.Paused, a)
}

// noStart is called when a push is confirmed, or can't start any more.
func (c *Core) noStart(it *item) {
	for _, w := range slices.Clone(c.pauseWaits) {
		if _, ok := w.starts[it]; ok {
			delete(w.starts, it)
			if len(w.starts) == 0 {
				w.step(c)
			}
		}
	}
}

// stepPauses is called when something else has changed that waits depend on.
func (c *Core) stepPauses() {
	for _, w := range slices.Clone(c.pauseWaits) {
		w.step(c)
	}
}
