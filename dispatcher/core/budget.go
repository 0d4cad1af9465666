package core

import (
	"fmt"
	"time"

	"github.com/headrace/headrace/flowcontrol/retrybudget"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// A function's retries have a budget (flowcontrol/retrybudget): a downstream that is down is not called three times as often
// because of it. It is paid when a retry's time has come, before the task goes to its window, so that first tries
// never wait behind retries. A retry without budget waits in memory, in the order in which it came; when many do, the
// next ones are given a later time in the store, one after the other at the rate of the budget. Each node has its own
// budget of a function, full when the node first sees it: nothing of it is on disk, and a new owner begins with what it has.

const (
	budgetTasks = 256       // of a function that wait in memory
	budgetAhead = time.Hour // no retry is put off for longer at once
	budgetEvery = time.Second / retrybudget.PerSecond
	budgetLeast = time.Second // nor for less: it is a write each
)

// budget is a function's.
type budget struct {
	f      *function // whose it is
	law    retrybudget.Budget
	queue  fifo[*item] // some may have left
	n      int         // that wait, without those
	timer  timer
	booked time.Time // the latest time that was given to a retry in the store
}

// isRetry reports whether the next try follows a failed one.
func isRetry(t *store.Task) bool {
	n := len(t.Tries)
	return n > 0 && t.Attempt > 1 && (t.Tries[n-1].Class == task.Retryable || t.Tries[n-1].Class == task.Timeout)
}

// affords pays for a retry whose time has come. False: it waits, or was put off.
func (c *Core) affords(it *item) bool {
	b := &it.lane.flow.function.budget
	if b.n == 0 && b.law.Take(c.now) {
		return true
	}
	if b.n >= budgetTasks || c.bytes > c.cfg.NodeWindowBytes {
		c.putOff(it, b)
		return false
	}
	it.place = atBudget
	b.queue.push(it)
	b.n++
	c.timers.set(&it.timer, expiry(it.t))
	c.armBudget(b)
	return false
}

// putOff gives a retry a later time, behind all that wait.
func (c *Core) putOff(it *item, b *budget) {
	b.booked = later(b.booked, c.now.Add(time.Duration(b.n)*budgetEvery)).Add(budgetEvery)
	after := min(max(b.booked.Sub(c.now), budgetLeast), budgetAhead)
	if after == budgetAhead { // they come at different times all the same
		after -= time.Duration(c.random() * float64(budgetAhead) / 5)
		b.booked = sooner(b.booked, c.now.Add(budgetAhead))
	}
	it.place = atCommit
	c.again(it, it.edit(), after)
}

// first counts a first try of the function.
func (b *budget) first(c *Core) {
	b.law.First(c.now)
	if b.n > 0 {
		c.timers.set(&b.timer, c.now.Add(b.law.Wait(c.now)))
	}
}

func (c *Core) armBudget(b *budget) {
	if b.n == 0 {
		c.timers.unset(&b.timer)
		return
	}
	c.timers.set(&b.timer, c.now.Add(b.law.Wait(c.now)))
}

// alarm lets retries go on as far as the budget goes.
func (b *budget) alarm(c *Core) {
	for left := c.cfg.Slice; b.n > 0 && left > 0; left-- {
		it := *b.queue.peek()
		if it.place != atBudget {
			b.queue.pop()
			continue
		}
		if !b.law.Take(c.now) {
			break
		}
		b.queue.pop()
		c.inHand(it.part.id, it.t.ID)
		c.leaveBudget(it)
		c.queueUp(it)
	}
	if b.n == 0 {
		b.queue = fifo[*item]{}
	}
	c.armBudget(b)
}

// leaveBudget takes a retry out of those that wait.
func (c *Core) leaveBudget(it *item) {
	it.lane.flow.function.budget.n--
	it.place = atCommit
	c.timers.unset(&it.timer)
}

// why says for what a retry waits.
func (b *budget) why() string {
	return fmt.Sprintf("waits for the retry budget of %s/%s (%d waiting): one goes for five first tries, and %g a second", b.f.tenant.name, b.f.name, b.n, retrybudget.PerSecond)
}
