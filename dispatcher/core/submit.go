package core

import (
	"fmt"
	"time"

	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// maxQueued bounds what waits for a database's commits; beyond, it is slow.
const (
	maxQueuedChanges = 200_000
	maxQueuedBytes   = 64 << 20
)

// ExistsError says that a client's task id belongs to a different task.
type ExistsError struct {
	ID    task.ID // of the holder; zero: it was refused in an earlier call
	State task.State
}

func (e *ExistsError) Error() string {
	return fmt.Sprintf("the id belongs to task %v (%v) with another function or payload", e.ID, e.State)
}

// submission is one Submit on its way to disk.
type submission struct {
	part    *partition
	reply   ReplyID
	answers bool // false: somebody answered it already
	tenant  *tenant
	id      string // the request's
	tasks   []*store.Task
	items   []SubmitItem
	left    int // tasks whose fate is not known
	bytes   int
	request *request
}

// Submit takes tasks. They are answered in Effects.Submitted once they are on disk.
func (c *Core) Submit(now time.Time, s *Submit) {
	c.enter(now)
	p := c.parts[s.Partition]
	if p == nil || p.releasing {
		c.refuseSubmit(s.Reply, ErrNotOwner)
		return
	}
	c.inHand(p.id, task.ID{})
	if s.RequestID != "" && c.requests.attach(c, s) {
		return
	}
	db := p.db
	switch {
	case db.slow(c.now) || db.queued > maxQueuedChanges || db.bytes > maxQueuedBytes:
		c.refuseSubmit(s.Reply, ErrStoreSlow)
		return
	case db.fullUntil.After(c.now):
		c.refuseSubmit(s.Reply, store.ErrFull)
		return
	}
	sub := &submission{part: p, reply: s.Reply, answers: true, tenant: c.tenant(s.Tenant), id: s.RequestID, tasks: s.Tasks}
	sub.items = make([]SubmitItem, len(s.Tasks))
	for _, t := range s.Tasks {
		sub.bytes += changeBytes + len(t.Payload)
	}
	if s.RequestID == "" {
		c.queueSubmit(sub)
		return
	}
	c.requests.begin(c, s, sub)
}

func (c *Core) queueSubmit(sub *submission) {
	sub.left = 0
	for i := range sub.tasks {
		if sub.items[i].ID.IsZero() {
			sub.left++
		}
	}
	if sub.left == 0 {
		c.answerSubmit(sub, nil)
		return
	}
	var last *store.Task
	for _, t := range sub.tasks {
		if last == nil || t.Function != last.Function || t.Band != last.Band {
			c.storePolicy(c.lane(sub.part, t.Flow())) // it commits with the tasks
		}
		last = t
	}
	db := sub.part.db
	db.queue(sub.tenant).submits.push(sub)
	db.queued += len(sub.tasks)
	db.bytes += sub.bytes
}

// addSubmit puts a submission into a batch: only now its tasks get their numbers, so that they have
// the order of the commits.
func (c *Core) addSubmit(cm *Commit, sub *submission) {
	p := sub.part
	i := cm.partOf(p)
	part, w := &cm.Batch.Parts[i], &cm.work[i]
	w.subs = append(w.subs, sub)
	var ids []task.ID
	if sub.id != "" {
		ids = make([]task.ID, len(sub.tasks))
	}
	for k, t := range sub.tasks {
		if !sub.items[k].ID.IsZero() { // found by the look-up of a retry
			if ids != nil {
				ids[k] = sub.items[k].ID
			}
			continue
		}
		p.seq++
		t.ID = task.NewID(p.id, p.seq, c.cfg.Random())
		t.CreatedAt = cm.Batch.At
		if t.DueAt.IsZero() {
			t.DueAt = t.CreatedAt
		}
		if t.FirstDueAt.IsZero() {
			t.FirstDueAt = t.DueAt
		}
		t.State = task.Queued
		if t.DueAt.After(c.now) {
			t.State = task.Scheduled
		}
		t.Attempt = max(t.Attempt, 1)
		t.RequestID = sub.id
		if t.PayloadSize == 0 {
			t.PayloadSize = len(t.Payload)
		}
		if ids != nil {
			ids[k] = t.ID
		}
		part.Changes = append(part.Changes, store.Change{Op: store.Insert, Task: t})
		w.pending = append(w.pending, pendingChange{then: thenInserted, sub: sub, index: k})
	}
	part.Seq = p.seq
	if ids != nil {
		part.Requests = append(part.Requests, store.Request{ID: sub.id, Tenant: sub.tenant.name, At: cm.Batch.At, IDs: ids})
	}
}

// inserted does what follows from an insert whose commit is known.
func (c *Core) inserted(p *partition, pc *pendingChange, existing *store.Task, busy bool) {
	sub := pc.sub
	t := sub.tasks[pc.index]
	item := &sub.items[pc.index]
	p.known = t.ID.Seq() // they come in order
	switch {
	case busy:
		item.Err = ErrStoreSlow // this one, not its batch: who takes its client id has not ended
	case existing == nil:
		item.ID = t.ID
		if !p.dead {
			c.accept(p, t)
		}
	case existing.Function == t.Function && existing.PayloadHash == t.PayloadHash:
		item.ID, item.Dedup = existing.ID, true
	default:
		item.Err = &ExistsError{ID: existing.ID, State: existing.State}
	}
	if sub.left--; sub.left == 0 {
		c.answerSubmit(sub, nil)
	}
}

// accept takes a task that is on disk since a moment ago into memory, if there is room.
func (c *Core) accept(p *partition, t *store.Task) {
	p.stat.Bytes += int64(t.PayloadSize)
	l := c.lane(p, t.Flow())
	l.count(t, 1)
	if t.Ready() {
		l.flow.function.arrived++
	}
	l.use.bytes += int64(t.PayloadSize)
	if !l.expires && (!t.Deadline.IsZero() || t.StartTTL > 0) {
		if l.expires = true; l.more {
			c.armPartition(p)
		}
	}
	if p.items[t.ID.Seq()] != nil || c.leave(p, l, t) { // a read may have brought it before the commit's answer
		return
	}
	if len(t.Payload) > c.cfg.InlineBytes {
		u := *t
		u.Payload = nil
		t = &u
	}
	it := c.load(p, l, t)
	c.settle(it)
}

// answerSubmit answers a submission and all that attached to it.
func (c *Core) answerSubmit(sub *submission, err error) {
	if sub.answers {
		sub.answers = false
		fx := c.effects()
		a := SubmitAnswer{Reply: sub.reply, Err: err}
		if err == nil {
			a.Items = sub.items
		}
		fx.Submitted = append(fx.Submitted, a)
	}
	if sub.request != nil {
		c.requests.done(c, sub.request, sub.items, err)
		sub.request = nil
	}
	sub.tasks = nil
}

func (c *Core) refuseSubmit(r ReplyID, err error) {
	fx := c.effects()
	fx.Submitted = append(fx.Submitted, SubmitAnswer{Reply: r, Err: err})
}
