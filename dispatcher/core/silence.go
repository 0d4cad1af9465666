package core

import (
	"time"

	"github.com/headrace/headrace/internal/mutant"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/store"
)

// A recorded try whose executor is out of reach is waited for until the orphan timeout after the last answered beat. A
// hand-over in between must not begin that time anew: nodes that restart one after the other would put the task
// off for ever. So the commit that releases a partition says, in each such record, for how long the executor's beats had not been
// answered by then. The successor raised its epoch after that commit, so by its own clock it may count from that much before
// the raise (ADR 41). What makes it true: the executor has no session here when the commit is built, no
// beat of it is answered for the partition afterwards, and only the very next epoch believes it.

// silentSince returns when a beat of the executor was answered last, as far as this owner of the partition knows.
func (p *partition) silentSince(x *executor) time.Time {
	since, ok := p.silent[x.id]
	if !ok {
		since = p.raisedAt
	}
	return later(x.answeredAt, since)
}

// believeSilence takes what the previous owner's release says in the records.
func (p *partition) believeSilence(recorded []*store.Task) {
	for _, t := range recorded {
		r := t.Record
		if r.Silent <= 0 || r.SilentBy != p.epoch-1 && !mutant.On("silence-of-any-epoch") {
			continue
		}
		if p.silent == nil {
			p.silent = map[string]time.Time{}
		}
		p.silent[r.Executor] = later(p.silent[r.Executor], p.raisedAt.Add(-r.Silent))
	}
}

// writeSilence adds to the release of a partition for how long executors out of reach have been silent: at most
// room tries; the rest is waited for from the raise. It returns how many it added.
func (c *Core) writeSilence(p *partition, cm *Commit, part, room int) (n int) {
	for _, it := range p.sorted() {
		if n == room {
			break
		}
		y := it.try
		if y == nil || y.executor.session != nil || it.t.Record == nil || it.t.Record.Token != y.token {
			continue
		}
		silent := c.now.Sub(p.silentSince(y.executor))
		if mutant.On("silence-from-raise") {
			silent = c.now.Sub(p.raisedAt)
		}
		if silent <= 0 {
			continue
		}
		if p.unheard == nil {
			p.unheard = map[*executor]bool{}
		}
		p.unheard[y.executor] = true
		t := it.edit()
		r := *t.Record
		r.Silent, r.SilentBy = silent, p.epoch
		t.Record = &r
		w := &cm.work[part]
		cm.Batch.Parts[part].Changes = append(cm.Batch.Parts[part].Changes, store.Change{
			Op: store.Update, Task: t, Old: it.t, KeepPayload: t.Payload == nil && t.PayloadSize > 0,
		})
		w.pending = append(w.pending, pendingChange{then: thenReleased})
		n++
	}
	return n
}

// heard returns the partitions for which a beat of the executor may be answered: all but those whose release says that
// it is silent.
func (c *Core) heard(x *executor, all []*headracev1.PartitionEpoch) []*headracev1.PartitionEpoch {
	if mutant.On("silence-answered") {
		return all
	}
	var some []*headracev1.PartitionEpoch
	for i, e := range all {
		p := c.parts[e.Partition]
		switch mute := p != nil && p.unheard[x]; {
		case mute && some == nil:
			some = append(make([]*headracev1.PartitionEpoch, 0, len(all)), all[:i]...)
		case !mute && some != nil:
			some = append(some, e)
		}
	}
	if some == nil {
		return all
	}
	return some
}

// unsilence is called when an executor is forgotten, and with it when it was answered last: what was said of
// it before says less than that.
func (c *Core) unsilence(x *executor) {
	if x.answeredAt.IsZero() {
		return
	}
	for _, p := range c.order {
		delete(p.silent, x.id)
	}
}
