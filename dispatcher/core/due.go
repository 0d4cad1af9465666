package core

import (
	"math"
	"time"

	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// dueIndex is the part of a partition's due index that is in memory.
type dueIndex struct {
	to      store.Key // every row up to this due time is in memory
	count   int       // tasks that wait for their time in memory
	reading *Load
	left    store.Key // as in a lane
	gone    []uint64
	again   time.Time // a read did not work: not before then
}

// dueKey is the place of a row in the due index.
func dueKey(t *store.Task) store.Key {
	return store.Key{Sort: t.DueAt.UnixMicro(), Seq: t.ID.Seq()}
}

// await lets a task wait for its time: in memory if that is near, else in the store.
func (c *Core) await(it *item) {
	p := it.part
	if !it.t.DueAt.After(c.now) {
		c.ripe(it)
		return
	}
	d := &p.due
	k := dueKey(it.t)
	if p.stat.Scheduled <= 1 && !p.takeover.active && d.reading == nil { // it is the only one: nothing to read
		d.to = larger(d.to, store.Key{Sort: c.now.Add(c.cfg.TimerHorizon).UnixMicro()})
	}
	if k.Compare(d.to) > 0 || d.count >= c.cfg.TimerTasks || c.bytes > c.cfg.NodeWindowBytes {
		if k.Compare(d.to) <= 0 {
			d.to = before(k)
		}
		if d.reading != nil && (d.left == store.Key{} || k.Compare(d.left) < 0) {
			d.left = k
		}
		c.leaveMemory(it)
		c.armPartition(p)
		return
	}
	it.place = atDue
	d.count++
	c.timers.set(&it.timer, sooner(it.t.DueAt, expiry(it.t)))
}

// ripe takes a task whose time has come to its window. A retry that was pushed and refused has been paid for.
func (c *Core) ripe(it *item) {
	if c.expired(it) || isRetry(it.t) && !it.overdue && !c.affords(it) {
		return
	}
	c.queueUp(it)
}

// queueUp takes a task to its window that waits for nothing but its turn.
func (c *Core) queueUp(it *item) {
	if it.t.State != task.Queued && !it.overdue { // it runs from here; on disk it stays what it was until then
		it.overdue = true
		it.lane.overdue++
		it.lane.flow.function.arrived++
	}
	c.offer(it)
}

// settle says that a row's time having come needs no counting apart any more.
func (it *item) settle() {
	if it.overdue {
		it.overdue = false
		it.lane.overdue--
	}
}

// readDue pulls what comes due within the horizon, a slice at a time.
func (c *Core) readDue(p *partition) {
	d := &p.due
	if d.reading != nil || p.takeover.active || p.releasing || d.again.After(c.now) || p.stat.Scheduled == 0 && d.to != (store.Key{}) {
		return
	}
	until := c.now.Add(c.cfg.TimerHorizon)
	if d.to.Sort >= c.now.Add(c.cfg.TimerHorizon/2).UnixMicro() || d.count > c.cfg.TimerTasks/2 || p.db.queued > 2*c.cfg.CommitChanges {
		return
	}
	bytes := c.cfg.NodeWindowBytes - c.bytes
	if bytes <= 0 && d.count > 0 {
		return
	}
	d.left, d.gone = store.Key{}, d.gone[:0]
	d.reading = &Load{
		Kind: LoadDue, Database: p.db.index, Partition: p.id, Epoch: p.epoch, After: d.to, Until: until,
		Limit: min(c.cfg.Slice, max(c.cfg.TimerTasks-d.count, 1)), MaxBytes: max(bytes/4, 1), Inline: c.cfg.InlineBytes, context: p,
	}
	c.ask(d.reading)
}

// readDueDone takes the rows of readDue.
func (c *Core) readDueDone(p *partition, ld *Load, a LoadAnswer) {
	d := &p.due
	if d.reading != ld || p.dead {
		return
	}
	left, gone := d.left, d.gone
	d.reading, d.left, d.gone = nil, store.Key{}, d.gone[:0]
	defer c.armPartition(p)
	switch {
	case a.Err != nil:
		d.again = c.now.Add(readAgain)
		return
	case d.to != ld.After:
		c.readDue(p)
		return
	}
	all := !a.More && left == store.Key{}
	for _, t := range a.Rows {
		k := dueKey(t)
		if left != (store.Key{}) && k.Compare(left) >= 0 {
			break
		}
		d.to = k
		seq := t.ID.Seq()
		if p.items[seq] == nil && !contains(gone, seq) && !p.unknown(seq) {
			c.inHand(p.id, t.ID)
			c.recovered(p, t)
			if d.to != k { // there was no room for it
				return
			}
		}
	}
	if all {
		d.to = store.Key{Sort: ld.Until.UnixMicro() - 1, Seq: math.MaxUint64}
	}
	c.readDue(p)
}

// expiry returns when a waiting task expires; zero: never.
func expiry(t *store.Task) time.Time {
	at := t.Deadline
	if t.StartTTL > 0 && t.StartedAt.IsZero() {
		at = sooner(at, t.FirstDueAt.Add(t.StartTTL))
	}
	return at
}

// expired ends a waiting task whose start TTL or deadline has passed.
func (c *Core) expired(it *item) bool {
	at := expiry(it.t)
	if at.IsZero() || at.After(c.now) {
		return false
	}
	message := "deadline passed"
	if it.t.Deadline != at {
		message = "start TTL passed"
	}
	switch it.place {
	case atWindow:
		c.unwindow(it)
	case atBudget:
		c.leaveBudget(it)
	}
	t := it.edit()
	t.ErrClass, t.ErrMessage = task.ExpiredClass, message
	c.finish(it, t, task.Expired)
	return true
}

// alarm is called when a task's timer has come.
func (it *item) alarm(c *Core) {
	if it.part.dead {
		return
	}
	c.inHand(it.part.id, it.t.ID)
	switch it.place {
	case atWindow, atSuspect, atBudget:
		if !c.expired(it) {
			c.timers.set(&it.timer, expiry(it.t))
		}
	case atDue:
		it.part.due.count--
		it.place = atCommit
		c.ripe(it)
		if it.part.due.count == c.cfg.TimerTasks/4 {
			c.readDue(it.part)
		}
	case atFlight:
		c.flightAlarm(it)
	}
}

// larger returns the larger of two keys.
func larger(a, b store.Key) store.Key {
	if a.Compare(b) < 0 {
		return b
	}
	return a
}
