package core

import (
	"errors"
	"time"

	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// getting is a look at a task that is not in memory, for all who want to know.
type getting struct {
	id      task.ID
	part    *partition
	load    *Load
	stale   bool // the task was in memory since the read was asked for: read again
	cancels []Cancel
	watches []WatchID
	claims  []sessionClaim
	kill    bool // it made the core panic
	timer   timer
}

type sessionClaim struct {
	s     *session
	claim claim
}

// get asks for a task, unless that is under way.
func (c *Core) get(p *partition, id task.ID) *getting {
	seq := id.Seq()
	g := p.gets[seq]
	if g == nil || g.id != id {
		g = &getting{id: id, part: p}
		g.timer.owner = g
		p.gets[seq] = g
		g.ask(c)
	}
	return g
}

func (g *getting) ask(c *Core) {
	g.stale = false
	g.load = &Load{Kind: LoadGet, Database: g.part.db.index, Partition: g.part.id, Epoch: g.part.epoch, ID: g.id, context: g}
	c.ask(g.load)
}

func (g *getting) alarm(c *Core) {
	if !g.part.dead {
		g.ask(c)
	}
}

// got takes the answer.
func (c *Core) got(g *getting, ld *Load, a LoadAnswer) {
	p := g.part
	if p.dead || g.load != ld {
		return
	}
	it := p.items[g.id.Seq()]
	if it != nil && it.t.ID != g.id {
		it = nil // its number was given again: the database was restored, and the one that is asked for is lost
	}
	switch {
	case it != nil: // it came into memory meanwhile
	case g.stale:
		g.ask(c)
		return
	case a.Err != nil && !errors.Is(a.Err, store.ErrNotFound), a.Err == nil && p.unknown(g.id.Seq()):
		c.timers.set(&g.timer, c.now.Add(readAgain))
		return
	}
	if p.gets[g.id.Seq()] == g {
		delete(p.gets, g.id.Seq())
	}
	if p.closing {
		for _, cl := range g.cancels {
			c.answerCancel(cl, CancelAnswer{Err: ErrNotOwner})
		}
		return
	}
	c.inHand(p.id, g.id)
	var t *store.Task
	if it == nil && a.Err == nil && len(a.Rows) == 1 && a.Rows[0].ID == g.id {
		t = a.Rows[0]
	}
	if it == nil && t != nil && !t.State.Terminal() {
		it = c.takeUp(p, g, t)
	}
	if it != nil {
		if g.kill && it.pend == 0 {
			c.kill(it)
		}
		for _, w := range g.claims {
			if !w.s.closed {
				c.claimItem(w.s, it, w.claim)
			}
		}
		for _, cl := range g.cancels {
			c.cancelItem(it, cl)
		}
		for _, w := range g.watches {
			c.event(w, it)
		}
		if it.place == atCommit && it.pend == 0 && !it.unsettled { // nobody wanted it after all
			if p.takeover.active {
				c.leaveMemory(it)
			} else {
				c.settle(it)
			}
		}
		return
	}
	for _, w := range g.claims {
		c.void(w.s, p, w.claim)
	}
	for _, cl := range g.cancels {
		c.answerCancel(cl, finishedAnswer(cl, t))
	}
	for _, w := range g.watches {
		c.storedEvent(w, t)
	}
}

// takeUp takes a live row into memory if somebody wants to change it. Nil: nobody does, it stays
// where it is.
func (c *Core) takeUp(p *partition, g *getting, t *store.Task) *item {
	wanted := g.kill
	for _, cl := range g.cancels {
		wanted = wanted || cl.Tenant == t.Tenant
	}
	for _, w := range g.claims {
		wanted = wanted || !w.s.closed && c.valid(p, t, w.claim.token)
	}
	if !wanted {
		return nil
	}
	if len(t.Payload) > 0 { // whatever becomes of it, the payload is on disk
		u := *t
		u.Payload = nil
		t = &u
	}
	return c.load(p, c.lane(p, t.Flow()), t)
}

// Loaded takes the answer to a Load.
func (c *Core) Loaded(now time.Time, l *Load, a LoadAnswer) {
	c.enter(now)
	// An answer to an older epoch, or to a core before this one, changes nothing.
	p := c.parts[l.Partition]
	switch x := l.context.(type) {
	case *lane:
		if x.part == p {
			c.pulled(x, l, a)
		}
	case *partition:
		if x == p {
			c.readDueDone(x, l, a)
		}
	case *getting:
		if x.part == p {
			c.got(x, l, a)
			c.stepTakeover(x.part)
		}
	case *sweep:
		if x.part == p {
			c.swept(x, l, a)
		}
	case *request:
		if c.requests.byKey[x.keys[0]] == x {
			c.requests.looked(c, x, a)
		}
	case lookup:
		if p == nil || p.epoch != l.Epoch {
			a = LoadAnswer{Err: ErrNotOwner} // another may have owned it meanwhile
		}
		c.found(x, a)
	}
	c.hand.set = false
}
