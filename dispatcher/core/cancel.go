package core

import (
	"time"

	"github.com/headrace/headrace/internal/mutant"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// maxReason bounds the text of a cancel.
const maxReason = 1 << 10

// Cancel stops a task. It is answered in Effects.Cancelled once what the answer says is on disk and
// holds (R16).
func (c *Core) Cancel(now time.Time, r Cancel) {
	c.enter(now)
	p := c.parts[r.ID.Partition()]
	if p == nil || p.releasing {
		c.answerCancel(r, CancelAnswer{Err: ErrNotOwner})
		return
	}
	if p.db.slow(c.now) {
		c.answerCancel(r, CancelAnswer{Err: ErrStoreSlow})
		return
	}
	if len(r.Reason) > maxReason {
		r.Reason = r.Reason[:maxReason]
	}
	if it := c.item(r.ID); it != nil {
		c.cancelItem(it, r)
		return
	}
	g := c.get(p, r.ID)
	g.cancels = append(g.cancels, r)
}

func (c *Core) answerCancel(r Cancel, a CancelAnswer) {
	a.Reply = r.Reply
	fx := c.effects()
	fx.Cancelled = append(fx.Cancelled, a)
}

// finishedAnswer answers a cancel of a task that is not live; nil: there is none.
func finishedAnswer(r Cancel, t *store.Task) CancelAnswer {
	if t == nil || t.Tenant != r.Tenant {
		return CancelAnswer{Err: store.ErrNotFound}
	}
	return CancelAnswer{Outcome: headracev1.CancelOutcome_CANCEL_OUTCOME_ALREADY_FINISHED, Task: t}
}

// cancelItem takes a cancel of a task in memory.
func (c *Core) cancelItem(it *item, r Cancel) {
	switch {
	case it.t.Tenant != r.Tenant:
		c.answerCancel(r, CancelAnswer{Err: store.ErrNotFound})
	case it.try != nil:
		it.waiting = append(it.waiting, r)
		c.cancelFlight(it, r)
	case it.pend > 0 || it.unsettled: // a decision is on its way: what it leaves is cancelled
		it.waiting = append(it.waiting, r)
	case it.place == atCommit && it.part.takeover.active && it.t.ID.Seq() <= it.part.old && !mutant.On("cancel-unsettled"):
		// Somebody may run it: requested, and ended when nobody has claimed it (R12).
		it.waiting = append(it.waiting, r)
		it.unsettled = true
		it.part.takeover.unsettled = append(it.part.takeover.unsettled, it)
		c.request(it, r)
	default:
		it.waiting = append(it.waiting, r)
		c.leavePlace(it)
		c.endCancelled(it, r.Reason)
	}
}

// leavePlace takes a waiting task out of where it waits.
func (c *Core) leavePlace(it *item) {
	switch it.place {
	case atWindow:
		c.unwindow(it)
	case atDue:
		it.part.due.count--
	case atBudget:
		c.leaveBudget(it)
	}
	it.place = atCommit
	c.timers.unset(&it.timer)
}

// cancelFlight asks on disk for the end of a task in flight.
func (c *Core) cancelFlight(it *item, r Cancel) {
	if it.t.Cancel != nil { // asked before
		if it.disk != nil && it.disk.Cancel != nil {
			c.asked(it)
		}
		return
	}
	if mutant.On("cancel-in-memory") {
		t := it.edit()
		t.Cancel = &store.Cancel{At: c.now, Reason: r.Reason}
		it.t = t
		c.asked(it)
		return
	}
	c.request(it, r)
}

func (c *Core) request(it *item, r Cancel) {
	if it.t.Cancel != nil {
		return
	}
	t := it.edit()
	t.Cancel = &store.Cancel{At: c.now, Reason: r.Reason}
	c.change(it, store.Update, t, thenAsked)
}

// asked is called when the request is on disk: the executor is told.
func (c *Core) asked(it *item) {
	if it.try == nil {
		if it.pend > 0 {
			return
		}
		if it.unsettled && it.part.takeover.active {
			return // the end of the takeover decides
		}
		it.unsettled = false
		if it.place == atCommit {
			c.settle(it)
		}
		return
	}
	if it.try.pushed {
		c.sendCancel(it)
	}
	c.answerAsked(it)
	c.armFlight(it)
}

// sendCancel asks the executor to stop a try.
func (c *Core) sendCancel(it *item) {
	y := it.try
	if y.session == nil || y.cancelSent {
		return
	}
	y.cancelSent = true
	if y.cancelAt.IsZero() {
		y.cancelAt = c.now
	}
	id := it.t.ID
	m := c.message(y.session)
	m.Cancels = append(m.Cancels, &headracev1.CancelTry{
		TaskId: id[:], Token: wireToken(y.token), Cause: headracev1.CancelCause_CANCEL_CAUSE_CANCELLED,
		Reason: it.t.Cancel.Reason, Epoch: it.part.epoch,
	})
}

// answerAsked answers the cancels of a task in flight, once the request is on disk and the start is
// confirmed or can't happen any more.
func (c *Core) answerAsked(it *item) {
	if it.disk == nil || it.disk.Cancel == nil && !mutant.On("cancel-in-memory") || it.try == nil {
		return
	}
	if it.try.ackedAt.IsZero() && !it.gaveUpStart && !mutant.On("cancel-unconfirmed") {
		c.armFlight(it)
		return
	}
	for _, w := range it.waiting {
		c.answerCancel(w, CancelAnswer{Outcome: headracev1.CancelOutcome_CANCEL_OUTCOME_REQUESTED, Task: it.disk})
	}
	it.waiting = nil
}

// startEnds returns when an unconfirmed push can't start any more: the shelf life after the beat that
// it names, by the executor's clock, which may be slower than ours by a tenth.
func (c *Core) startEnds(it *item) time.Time {
	y := it.try
	if y.beatAt.IsZero() { // of an earlier owner
		return it.part.raisedAt.Add(c.cfg.Grace)
	}
	if mutant.On("start-ends-early") {
		return y.beatAt.Add(c.cfg.ShelfLife)
	}
	return y.beatAt.Add(c.cfg.ShelfLife * 11 / 10)
}

// cancelEnds returns when a cancelled try ends although nobody reports it: the grace after the executor
// was told, or after the request where it can't be told.
func (c *Core) cancelEnds(it *item) time.Time {
	from := it.try.cancelAt
	if from.IsZero() {
		from = later(it.t.Cancel.At, it.part.raisedAt)
	}
	return from.Add(it.lane.flow.function.policy.CancelGrace)
}

// cancelOver ends a cancelled task whose executor did not report in time.
func (c *Core) cancelOver(it *item) {
	t := it.edit()
	c.endRow(it, t, task.CancelledClass, "cancelled; the executor did not report an end in time")
	it.answer, it.answerToken = it.try.executor, it.try.token // that it is committed voids the try there
	c.endTry(it)
	c.finishCancelled(it, t)
}

// endCancelled ends a task that no try holds.
func (c *Core) endCancelled(it *item, reason string) {
	t := it.edit()
	if t.Cancel == nil {
		t.Cancel = &store.Cancel{At: c.now, Reason: reason}
	}
	c.finishCancelled(it, t)
}

// finishCancelled ends a task as cancelled. Its message is the reason that was given.
func (c *Core) finishCancelled(it *item, t *store.Task) {
	t.ErrClass = task.CancelledClass
	if t.Cancel != nil && t.Cancel.Reason != "" {
		t.ErrMessage = task.CutError(t.Cancel.Reason)
	} else if t.ErrMessage == "" {
		t.ErrMessage = "cancelled"
	}
	c.finish(it, t, task.Cancelled)
}

// cancelDecided cancels a task whose decision is on disk and left it alive. It reports true if the
// cancel has taken it over.
func (c *Core) cancelDecided(it *item) bool {
	if it.t.State.Terminal() || it.unsettled {
		return false
	}
	reason := it.waiting[0].Reason
	c.endCancelled(it, reason)
	return true
}
