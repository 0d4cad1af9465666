package core

import (
	"fmt"
	"time"

	"github.com/headrace/headrace/internal/mutant"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// denied is called when the executor says that it does not hold a push that was never confirmed. A
// default task runs again at once; an exclusive one, or one with a record, after the commit that says so (R2).
func (c *Core) denied(it *item) {
	y := it.try
	if !y.ackedAt.IsZero() {
		c.loss(it, "the executor does not hold it any more")
		return
	}
	if it.exclusive || it.t.Record != nil || it.pend > 0 || mutant.On("loss-undelivered") {
		c.giveUp(it)
		return
	}
	c.endTry(it)
	if it.t.Cancel != nil {
		c.endCancelled(it, "")
		return
	}
	c.settle(it)
}

// giveUp ends a push that can't have started any more, or that was never sent, by a commit. It spends
// nothing and is no loss (R17).
func (c *Core) giveUp(it *item) {
	t := it.edit()
	c.endRow(it, t, task.ClassNone, "")
	if mutant.On("give-up-in-memory") {
		t.LastToken = it.t.LastToken
		c.endTry(it)
		c.settle(it)
		return
	}
	undelivered := mutant.On("loss-undelivered")
	c.endTry(it)
	switch {
	case t.Cancel != nil:
		c.finishCancelled(it, t)
	case undelivered:
		c.lossRow(it, t, false)
	default:
		c.requeueRow(it, t)
	}
}

// undelivered gives up a push whose executor never came back to confirm or deny it. Once that is nothing: the
// executor died, or was cut off, at that moment. A task that kills its executor before the confirmation
// is out looks the same, and is no loss (R17); so these are counted apart, the task runs alone from the second
// on, and the tenth ends it (P5).
func (c *Core) undelivered(it *item) {
	t := it.edit()
	c.endRow(it, t, task.ClassNone, "")
	c.endTry(it)
	t.Undelivered++
	switch {
	case t.Cancel != nil:
		c.finishCancelled(it, t)
	case t.Undelivered >= task.MaxUndelivered:
		t.ErrClass = task.ExecutorLost
		t.ErrMessage = fmt.Sprintf("%d executors went away before they confirmed the start", t.Undelivered)
		t.Fingerprint = fingerprint(t.ErrClass, t.ErrMessage)
		c.finish(it, t, task.Failed)
	default:
		t.Suspect = t.Suspect || t.Undelivered > 1
		c.requeueRow(it, t)
	}
}

// loss counts a try that had started and ended without an outcome, by a commit.
func (c *Core) loss(it *item, why string) {
	alone := it.try.alone
	t := it.edit()
	c.endRow(it, t, task.ExecutorLost, why)
	c.endTry(it)
	if t.Cancel != nil {
		c.finishCancelled(it, t)
		return
	}
	c.lossRow(it, t, alone)
}

// lossRow writes a loss. From the second on, a task runs alone on its executor: only a loss that was
// nobody else's fault is the last.
func (c *Core) lossRow(it *item, t *store.Task, alone bool) {
	t.Losses++
	if t.Losses >= task.MaxLosses && alone {
		t.ErrClass = task.ExecutorLost
		c.finish(it, t, task.Failed)
		return
	}
	t.Suspect = t.Losses >= task.MaxLosses-1
	c.requeueRow(it, t)
}

// lostAt returns when the executor of a try that is out of reach can't run it any more: the function's
// orphan timeout after its last answered beat, or after this owner's epoch was raised (R7), less what
// the owner before had waited for it, if that released (silence.go). A timeout
// above the default counts once the record is on disk and the executor knows it (R9).
func (c *Core) lostAt(it *item) time.Time {
	y := it.try
	orphan := it.lane.flow.function.policy.OrphanTimeout
	if orphan > task.DefaultOrphanTimeout && y.record != started && !mutant.On("long-orphan-unrecorded") {
		orphan = task.DefaultOrphanTimeout
	}
	from := later(y.beatAt, it.part.silentSince(y.executor))
	switch {
	case mutant.On("recorded-requeued-early"):
		orphan = c.cfg.ShelfLife
	case mutant.On("requeued-with-session") && y.claimed:
		return c.now
	}
	return from.Add(orphan)
}

// pendingAgain is when a cancel's end is looked at again while a change of its task is on its way.
const pendingAgain = 50 * time.Millisecond

// armFlight sets the timer of a task in flight. One whose executor is in reach needs none: the executor
// reports, and its session tells when it is gone.
func (c *Core) armFlight(it *item) {
	y := it.try
	var at time.Time
	if y.session == nil && !c.waitsForOwner(it) {
		at = c.lostAt(it)
		if end := c.timedOutAt(it); !end.IsZero() {
			at = sooner(at, end)
		}
	}
	if it.t.Cancel != nil {
		end := c.cancelEnds(it)
		if it.pend > 0 { // a record, say, is on its way to disk: nothing is decided before
			end = later(end, c.now.Add(pendingAgain))
		}
		at = sooner(at, end)
	}
	if len(it.waiting) > 0 && !it.gaveUpStart && y.ackedAt.IsZero() {
		at = sooner(at, c.startEnds(it))
	}
	c.timers.set(&it.timer, at)
}

// waitsForOwner reports whether something is on its way that decides about the try first.
func (c *Core) waitsForOwner(it *item) bool { return !it.try.pushed }

// timedOutAt returns when the attempt of an executor out of reach is retried although no report came:
// a little after its own timeout (R18), by a clock that may be a tenth slower than this one. Zero: it has none.
func (c *Core) timedOutAt(it *item) time.Time {
	y := it.try
	if y.ackedAt.IsZero() {
		return time.Time{}
	}
	var end time.Time
	if y.timeout > 0 {
		end = y.ackedAt.Add(y.timeout)
	}
	if end = sooner(end, it.t.Deadline); end.IsZero() {
		return end
	}
	if mutant.On("timeout-early") {
		return end
	}
	drift := end.Sub(y.ackedAt) / 10
	if mutant.On("timeout-without-drift") {
		drift = 0
	}
	return end.Add(drift + c.cfg.ShelfLife + c.cfg.Grace)
}

// flightAlarm is called when the timer of a task in flight has come.
func (c *Core) flightAlarm(it *item) {
	y := it.try
	p := it.part
	if p.closing {
		return
	}
	if len(it.waiting) > 0 && !it.gaveUpStart && y.ackedAt.IsZero() && !c.startEnds(it).After(c.now) {
		it.gaveUpStart = true
		c.answerAsked(it)
	}
	if it.t.Cancel != nil && !c.cancelEnds(it).After(c.now) {
		c.cancelOver(it)
		return
	}
	if y.session == nil && y.pushed {
		switch end := c.timedOutAt(it); {
		case !end.IsZero() && !end.After(c.now):
			c.timedOut(it)
			return
		case !c.lostAt(it).After(c.now) && !mutant.On("recorded-waits-for-ever"):
			if y.ackedAt.IsZero() {
				c.undelivered(it)
			} else {
				c.loss(it, "the executor was out of reach for longer than the orphan timeout")
			}
			return
		}
	}
	c.armFlight(it)
}

// timedOut ends an attempt whose time has run out on an executor that can't be reached.
func (c *Core) timedOut(it *item) {
	t := it.edit()
	c.endRow(it, t, task.Timeout, "the attempt's time ran out on an executor out of reach")
	c.endTry(it)
	switch {
	case t.Cancel != nil:
		c.finishCancelled(it, t)
	case !t.Deadline.IsZero() && !t.Deadline.After(c.now):
		t.ErrClass, t.ErrMessage = task.ExpiredClass, "deadline passed"
		c.finish(it, t, task.Expired)
	case t.Attempt >= c.maxAttempts(it, t):
		c.finish(it, t, task.Failed)
	default:
		t.Attempt++
		c.again(it, t, it.lane.flow.function.policy.Backoff.Delay(t.Attempt-1, c.random()))
	}
}
