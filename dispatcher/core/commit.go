package core

import (
	"errors"
	"time"

	"github.com/headrace/headrace/internal/mutant"
	"github.com/headrace/headrace/store"
)

// then says what follows once a change is on disk.
type then uint8

const (
	thenNothing  then = iota
	thenInserted      // a new task: to its window, its time, or the store
	thenEnded         // terminal
	thenPlaced        // a decision about a try, or a promotion: the task goes where its state says
	thenRecorded      // a running try is recorded
	thenPush          // an exclusive push is announced: it may leave
	thenAsked         // a cancel of a task in flight is requested
	thenReleased      // the partition is given back, and its state is gone
)

// queuedChange is a change that waits for a commit.
type queuedChange struct {
	store.Change
	it   *item
	then then
	part *partition
}

// pendingChange is what the core wants to know again when a change's commit returns.
type pendingChange struct {
	it    *item
	then  then
	sub   *submission // of an insert
	index int         // of the task in its submission
}

// partWork is one part of a commit, beside what the store gets.
type partWork struct {
	part    *partition
	pending []pendingChange // parallel to the part's changes
	subs    []*submission
}

// commitQueue holds a tenant's changes to one database. Decisions go before inserts: they free
// something, and there are at most as many as tries in flight.
type commitQueue struct {
	tenant    *tenant
	decisions fifo[queuedChange]
	submits   fifo[*submission]
	credit    int // changes that it may still take in this round
	listed    bool
}

// appliedCommit is a commit that has returned and whose results are worked off in slices.
type appliedCommit struct {
	c      *Commit
	rs     []store.PartResult
	sentAt time.Time
	part   int
	change int
}

// roundChanges is how many changes a tenant puts into a batch before it is the next one's turn.
const roundChanges = 32

// changeBytes is what a change counts beside its payload and result.
const changeBytes = 512

func (db *database) queue(t *tenant) *commitQueue {
	for int(db.index) >= len(t.queues) {
		t.queues = append(t.queues, nil)
	}
	q := t.queues[db.index]
	if q == nil {
		q = &commitQueue{tenant: t}
		t.queues[db.index] = q
	}
	if !q.listed {
		q.listed = true
		db.ring.push(q)
	}
	return q
}

// enqueue queues a decision.
func (c *Core) enqueue(p *partition, t *tenant, q queuedChange) {
	q.part = p
	p.db.queue(t).decisions.push(q)
	p.db.queued++
	p.pending++
}

// change queues a change of a task: its row becomes t as soon as it is on disk, and for the changes
// that follow at once.
func (c *Core) change(it *item, op store.Op, t *store.Task, follow then) {
	old := it.t
	it.t = t
	it.pend++
	c.enqueue(it.part, it.lane.flow.function.tenant, queuedChange{
		Change: store.Change{Op: op, Task: t, Old: old, KeepPayload: op == store.Update && t.Payload == nil && t.PayloadSize > 0},
		it:     it,
		then:   follow,
	})
}

// launch builds the next commit of a database if none is on its way.
func (c *Core) launch(db *database) {
	if db.inFlight != nil || db.ring.len() == 0 && len(db.flagged) == 0 || db.fullUntil.After(c.now) {
		return
	}
	cm := db.free
	if cm == nil {
		cm = &Commit{Database: db.index, Batch: &store.Batch{}}
	}
	db.free = nil
	db.number++
	cm.number = db.number
	cm.Batch.At = c.now
	c.fill(db, cm)
	c.flagParts(db, cm)
	if len(cm.Batch.Parts) == 0 {
		db.free = cm
		return
	}
	db.inFlight, db.leftAt = cm, c.now
	db.arm(c)
	fx := c.effects()
	fx.Commits = append(fx.Commits, cm)
}

// fill takes changes in fair order of tenants until the batch is full. A submit is never split.
func (c *Core) fill(db *database, cm *Commit) {
	changes, bytes := 0, 0
	for db.ring.len() > 0 {
		q := *db.ring.peek()
		q.credit += roundChanges
		for q.credit > 0 {
			switch {
			case q.decisions.len() > 0:
				if changes >= c.cfg.CommitChanges || bytes >= c.cfg.CommitBytes {
					return
				}
				d := q.decisions.pop()
				db.queued--
				if d.part.dead {
					continue
				}
				c.addDecision(cm, d)
				changes++
				q.credit--
				bytes += changeBytes
				if d.Task != nil && !d.KeepPayload {
					bytes += len(d.Task.Payload)
				}
				if d.Task != nil {
					bytes += len(d.Task.Result) + len(d.Task.Checkpoint)
				}
			case q.submits.len() > 0:
				s := *q.submits.peek()
				n := len(s.tasks)
				if changes > 0 && (changes+n > c.cfg.CommitChanges || bytes+s.bytes > c.cfg.CommitBytes) {
					return
				}
				q.submits.pop()
				db.queued -= n
				db.bytes -= s.bytes
				if s.part.dead {
					c.answerSubmit(s, ErrNotOwner)
					continue
				}
				c.addSubmit(cm, s)
				changes += n
				q.credit -= n
				bytes += s.bytes
			default:
				q.credit = 0
				q.listed = false
			}
		}
		db.ring.pop()
		if q.listed {
			db.ring.push(q)
		}
	}
}

// partOf returns the part of the batch that belongs to p, and its index.
func (cm *Commit) partOf(p *partition) int {
	if p.in == cm.number && p.part < len(cm.work) && cm.work[p.part].part == p {
		return p.part
	}
	n := len(cm.Batch.Parts)
	if n < cap(cm.Batch.Parts) {
		cm.Batch.Parts = cm.Batch.Parts[:n+1]
	} else {
		cm.Batch.Parts = append(cm.Batch.Parts, store.Part{})
	}
	if n < cap(cm.work) {
		cm.work = cm.work[:n+1]
	} else {
		cm.work = append(cm.work, partWork{})
	}
	part := &cm.Batch.Parts[n]
	part.Partition, part.Epoch, part.Floor, part.Seq, part.Release = p.id, p.epoch, 0, 0, false
	cm.work[n].part = p
	p.part, p.in = n, cm.number
	return n
}

func (c *Core) addDecision(cm *Commit, d queuedChange) {
	i := cm.partOf(d.part)
	part, w := &cm.Batch.Parts[i], &cm.work[i]
	part.Changes = append(part.Changes, d.Change)
	w.pending = append(w.pending, pendingChange{it: d.it, then: d.then})
}

// flagParts adds what partitions want to say beside changes.
func (c *Core) flagParts(db *database, cm *Commit) {
	kept, room := db.flagged[:0], c.cfg.CommitChanges
	for _, p := range db.flagged {
		if p.dead {
			continue
		}
		if p.floorDue {
			p.floorDue = false
			part := &cm.Batch.Parts[cm.partOf(p)]
			part.Floor, part.Seq = p.epoch, p.seq
			p.takeover.floorIn = cm.number
		}
		if p.releasing && !p.closing && c.mayRelease(p) {
			i := cm.partOf(p)
			part := &cm.Batch.Parts[i]
			part.Release, part.Seq = true, p.seq
			p.closing = true
			room -= c.writeSilence(p, cm, i, room)
		}
		if p.releasing && !p.closing {
			kept = append(kept, p)
		} else {
			p.flagged = false
		}
	}
	clear(db.flagged[len(kept):])
	db.flagged = kept
}

// Committed says what became of a Commit. SentAt is when it was sent to the database.
func (c *Core) Committed(now, sentAt time.Time, cm *Commit, rs []store.PartResult, err error) {
	c.enter(now)
	db := c.database(cm.Database)
	if db.inFlight != cm {
		return
	}
	db.inFlight = nil
	switch {
	case errors.Is(err, store.ErrFull) || err != nil && mutant.On("unknown-failed"):
		c.requeue(db, cm)
	case errors.Is(err, store.ErrUnavailable) && !errors.Is(err, store.ErrUnknown):
		c.failed(cm, ErrNotOwner) // nothing of it was done
	case err != nil && !mutant.On("unknown-done") || err == nil && len(rs) != len(cm.Batch.Parts):
		c.unknown(cm)
	default:
		if rs == nil {
			rs = make([]store.PartResult, len(cm.Batch.Parts))
		}
		db.fullTries, db.fullUntil = 0, time.Time{}
		for i := range cm.work {
			if p := cm.work[i].part; rs[i].Err == nil && !p.dead {
				c.checked(p, sentAt)
			}
		}
		db.applying.push(&appliedCommit{c: cm, rs: rs, sentAt: sentAt})
		c.applyCommits(db)
	}
	db.arm(c)
}

// applyCommits works off a slice of what has returned, in order.
func (c *Core) applyCommits(db *database) {
	for n := 0; db.applying.len() > 0 && n < c.cfg.Slice; {
		a := *db.applying.peek()
		if a.part == len(a.c.work) {
			db.applying.pop()
			db.reuse(a.c)
			continue
		}
		w := &a.c.work[a.part]
		r := &a.rs[a.part]
		if r.Err != nil {
			c.refused(w, r.Err)
			a.part, a.change = a.part+1, 0
			continue
		}
		part := &a.c.Batch.Parts[a.part]
		for a.change < len(w.pending) && n < c.cfg.Slice {
			i := a.change
			a.change++
			n++
			c.apply(w.part, &part.Changes[i], &w.pending[i], r.Existing[i], r.Busy[i])
		}
		if a.change == len(w.pending) {
			c.applied(w.part, part, a.c.number)
			a.part, a.change = a.part+1, 0
		}
	}
	c.hand.set = false
}

// reuse takes a commit's memory back. Only one that the store has answered: a store that gave up may
// still read it.
func (db *database) reuse(cm *Commit) {
	for i := range cm.work {
		w, p := &cm.work[i], &cm.Batch.Parts[i]
		clear(w.pending)
		clear(w.subs)
		clear(p.Changes)
		clear(p.Requests)
		w.part, w.pending, w.subs = nil, w.pending[:0], w.subs[:0]
		p.Changes, p.Requests = p.Changes[:0], p.Requests[:0]
	}
	cm.work, cm.Batch.Parts = cm.work[:0], cm.Batch.Parts[:0]
	db.free = cm
}

// apply does what follows from one change that is on disk.
func (c *Core) apply(p *partition, ch *store.Change, pc *pendingChange, existing *store.Task, busy bool) {
	if pc.then == thenReleased {
		return
	}
	if pc.then == thenInserted {
		c.inHand(p.id, ch.Task.ID)
		c.inserted(p, pc, existing, busy)
		return
	}
	if !p.dead {
		p.pending--
	}
	it := pc.it
	if it == nil || p.dead {
		return
	}
	c.inHand(p.id, it.t.ID)
	if it.pend--; it.pend == 0 {
		c.unkeep(it)
	}
	it.disk = ch.Task
	it.lane.count(ch.Old, -1)
	overdue := it.overdue
	it.settle()
	switch pc.then {
	case thenEnded:
		c.ended(it)
		return
	}
	it.lane.count(ch.Task, 1)
	if !ch.Old.Ready() && ch.Task.Ready() && !overdue {
		it.lane.flow.function.arrived++
	}
	switch pc.then {
	case thenPlaced:
		c.decided(it)
	case thenRecorded:
		c.recorded(it, ch.Task.Record)
	case thenPush:
		c.announcedPush(it, ch.Task.Record)
	case thenAsked:
		c.asked(it)
	}
}

// applied does what follows from a part as a whole.
func (c *Core) applied(p *partition, part *store.Part, number uint64) {
	if p.dead {
		return
	}
	if part.Floor != 0 && p.takeover.floorIn == number {
		c.floorRaised(p)
	}
	if part.Release {
		c.released(p)
	}
}

// refused ends a part that the store did not take: it has a newer epoch (R10).
func (c *Core) refused(w *partWork, err error) {
	answer := ErrNotOwner
	if !errors.Is(err, store.ErrFenced) {
		answer = ErrUnknownOutcome
	}
	for _, s := range w.subs {
		c.answerSubmit(s, answer)
	}
	if mutant.On("fenced-keeps") {
		return
	}
	c.lose(w.part, err)
}

// unknown ends what a commit with unknown outcome touched: nothing is answered as done or failed, the
// partitions are dropped and acquired again (R11).
func (c *Core) unknown(cm *Commit) { c.failed(cm, ErrUnknownOutcome) }

// failed answers the submits of a commit, and drops its partitions.
func (c *Core) failed(cm *Commit, answer error) {
	for i := range cm.work {
		w := &cm.work[i]
		for _, s := range w.subs {
			c.answerSubmit(s, answer)
		}
		c.lose(w.part, ErrUnknownOutcome)
	}
}

// requeue puts a commit back of which nothing was stored: the disk is full. Inserts are refused;
// decisions stay and are tried again, for they free space in the end.
func (c *Core) requeue(db *database, cm *Commit) {
	db.fullTries++
	db.fullUntil = c.now.Add(min(100*time.Millisecond<<min(db.fullTries-1, 6), 5*time.Second))
	var order []*commitQueue
	back := map[*commitQueue][]queuedChange{}
	for i := range cm.work {
		w, part := &cm.work[i], &cm.Batch.Parts[i]
		for _, s := range w.subs {
			c.answerSubmit(s, store.ErrFull)
		}
		if w.part.dead {
			continue
		}
		for j, pc := range w.pending {
			if pc.then == thenInserted || pc.then == thenReleased { // the latter is written anew with the release
				continue
			}
			ch := part.Changes[j]
			t := c.tenantOf(pc.it, ch)
			q := db.queue(t)
			if back[q] == nil {
				order = append(order, q)
			}
			back[q] = append(back[q], queuedChange{Change: ch, it: pc.it, then: pc.then, part: w.part})
			db.queued++
		}
		if part.Floor != 0 {
			w.part.floorDue = true
			c.flag(w.part)
		}
		if part.Release {
			w.part.closing, w.part.unheard = false, nil
			c.flag(w.part)
		}
	}
	for _, q := range order {
		q.decisions.unshift(back[q])
	}
	db.reuse(cm)
}

func (c *Core) tenantOf(it *item, ch store.Change) *tenant {
	if it != nil {
		return it.lane.flow.function.tenant
	}
	return c.tenant(ch.Func.Tenant)
}

// alarm wakes the loop: a full disk is tried again, an epoch read is due, a commit has become slow.
func (db *database) alarm(c *Core) {
	if c.now.Sub(db.readAt) >= epochReadEvery {
		db.readWanted = true
	}
	db.arm(c)
}

func (db *database) arm(c *Core) {
	at := db.readAt.Add(epochReadEvery)
	if db.readWanted && db.reading == nil {
		at = db.readAt.Add(c.readPause(db))
	}
	if db.fullUntil.After(c.now) {
		at = sooner(at, db.fullUntil)
	}
	if !at.After(c.now) {
		at = c.now.Add(epochReadEvery) // one is on its way
	}
	if db.held == 0 {
		at = time.Time{}
	}
	c.timers.set(&db.timer, at)
}

// count keeps the counters of the lane's partition and tenant: n is 1 for a row that is there now, -1 for one that was.
func (l *lane) count(t *store.Task, n int64) {
	if t.Ready() {
		l.part.stat.Backlog += n
		l.use.ready += n
		l.ready += n
	} else {
		l.part.stat.Scheduled += n
		l.use.scheduled = max(l.use.scheduled+n, 0)
	}
}
