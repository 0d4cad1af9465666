package core

import (
	"time"

	"github.com/headrace/headrace/internal/mutant"
)

// Release gives a partition back in an orderly way (R13): it stops pushing, waits until no push is
// unconfirmed, records what runs, and says so in its last commit. Effects.Released names it then. If
// it takes too long, Drop it.
func (c *Core) Release(now time.Time, partition uint32) {
	c.enter(now)
	p := c.parts[partition]
	if p == nil || p.releasing {
		return
	}
	c.inHand(p.id, [16]byte{})
	p.releasing = true
	for _, it := range p.sorted() {
		if it.try != nil && !it.try.ackedAt.IsZero() && !mutant.On("release-unrecorded") {
			c.record(it)
		}
		if len(it.waiting) > 0 && it.try == nil && it.pend == 0 {
			for _, w := range it.waiting {
				c.answerCancel(w, CancelAnswer{Err: ErrNotOwner})
			}
			it.waiting = nil
		}
	}
	c.stepRelease(p)
}

// stepRelease goes on with a release when something has changed.
func (c *Core) stepRelease(p *partition) {
	if !p.releasing || p.closing || p.dead {
		return
	}
	c.flag(p)
}

// mayRelease reports whether the last commit may leave.
func (c *Core) mayRelease(p *partition) bool {
	if p.takeover.active || p.pending > 0 || p.recording > 0 {
		return false
	}
	return p.unsure == 0 || mutant.On("release-unconfirmed")
}

// released is called when the last commit is on disk.
func (c *Core) released(p *partition) {
	c.forget(p)
	fx := c.effects()
	fx.Released = append(fx.Released, p.id)
}
