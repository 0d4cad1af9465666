package core

import (
	"time"

	"github.com/headrace/headrace/internal/mutant"
	"github.com/headrace/headrace/store"
)

// The roster is the executors that may hold a push of this node: those with a session or a try. Nodes that may take
// over are told of it, so that one that does knows whose answers end the grace (R12). An executor gets
// nothing before they know of it. How they are told, and for how long a node must wait for one that does not
// answer, is the shell's (package peer).

// enlist makes an executor that is new here known.
func (c *Core) enlist(x *executor) {
	if !c.cfg.Roster {
		x.listed = true
		return
	}
	c.numbered++
	x.number = c.numbered
	x.listed = mutant.On("push-unlisted")
	fx := c.effects()
	fx.Roster = append(fx.Roster, RosterChange{Executor: x.id, Number: x.number})
}

func (c *Core) delist(x *executor) {
	if c.cfg.Roster {
		fx := c.effects()
		fx.Roster = append(fx.Roster, RosterChange{Executor: x.id, Gone: true})
	}
}

// keepListed keeps the executor of a try in the roster until the decision about it is on disk: should this node die
// before, the executor holds an outcome that its successor has to ask for.
func (c *Core) keepListed(it *item, x *executor) {
	if mutant.On("undecided-delisted") {
		return
	}
	c.unkeep(it)
	it.deciding = x
	x.deciding++
}

func (c *Core) unkeep(it *item) {
	if x := it.deciding; x != nil {
		it.deciding = nil
		x.deciding--
		c.forgetExecutor(x)
	}
}

// hold and unhold say for which epochs the roster is complete.
func (c *Core) hold(p *partition) {
	if c.cfg.Roster {
		fx := c.effects()
		fx.Roster = append(fx.Roster, RosterChange{Partition: p.id, Epoch: p.epoch})
	}
}

func (c *Core) unhold(p *partition) {
	if c.cfg.Roster {
		fx := c.effects()
		fx.Roster = append(fx.Roster, RosterChange{Partition: p.id, Epoch: p.epoch, Gone: true})
	}
}

// lookUp sees whether an executor that opens a session is known by now.
func (c *Core) lookUp(x *executor) { x.listed = x.listed || x.number <= c.listedTo }

// Listed says that whoever may take over knows the executors up to a number: they may get pushes.
func (c *Core) Listed(now time.Time, upTo uint64) {
	c.enter(now)
	c.listedTo = max(c.listedTo, upTo)
	for _, s := range c.opened {
		if x := s.executor; !x.listed && x.number <= upTo {
			x.listed = true
			s.pool.ready(s)
		}
	}
}

// answered notes that an executor has said all that it holds, knowing the epochs of its hello: it refuses
// every older push from then on.
func (c *Core) answered(x *executor, known map[uint32]store.Epoch) {
	for _, p := range c.order {
		o := &p.takeover
		if o.active && o.awaited[x.id] && (known[p.id] == p.epoch || mutant.On("answer-of-any-epoch")) {
			delete(o.awaited, x.id)
			c.stepTakeover(p)
		}
	}
}

// allAnswered reports whether the grace of a takeover may end before its time: everybody who may hold a try of the
// owner before has answered, and every claim has found its task.
func (p *partition) allAnswered() bool {
	if p.takeover.awaited == nil || len(p.takeover.awaited) > 0 {
		return false
	}
	for _, g := range p.gets { // any, so the order does not matter
		if len(g.claims) > 0 && !mutant.On("grace-ends-amid-claims") {
			return false
		}
	}
	return true
}
