package memstore

import (
	"context"
	"fmt"
	"time"

	"github.com/headrace/headrace/internal/mutant"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// Commit implements store.Store.
func (s *Store) Commit(ctx context.Context, b *store.Batch) (rs []store.PartResult, err error) {
	err = s.do(context.WithoutCancel(ctx), "commit", func(d *Data) error {
		for i := range b.Parts {
			rs = append(rs, d.commit(b.At, &b.Parts[i]))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return rs, nil
}

func (d *Data) commit(at time.Time, part *store.Part) store.PartResult {
	p := d.partition(part.Partition)
	if p == nil || part.Epoch == 0 || (p.epoch != part.Epoch || p.server != d.server) && !mutant.On("unfenced-commit") {
		return store.PartResult{Err: fmt.Errorf("commit to partition %d under epoch %d: %w", part.Partition, part.Epoch, store.ErrFenced)}
	}
	var r store.PartResult
	for i := range part.Changes {
		if holder := d.change(p, part.Partition, &part.Changes[i]); holder != nil {
			if r.Existing == nil {
				r.Existing = map[int]*store.Task{}
			}
			r.Existing[i] = holder
		}
	}
	p.floor = max(p.floor, part.Floor)
	p.seq = max(p.seq, part.Seq)
	if part.Release {
		p.released = part.Epoch
	}
	for _, q := range part.Requests {
		if q.At.IsZero() {
			q.At = at
		}
		d.requests = append(d.requests, request{part.Partition, store.EncodeRequest(nil, &q)})
	}
	return r
}

// change applies one step. It returns the task that holds the client id of a refused Insert.
func (d *Data) change(p *partition, id uint32, c *store.Change) *store.Task {
	if c.Op == store.PutFunc {
		p.functions[function{c.Func.Tenant, c.Func.Name}] = *c.Func
		return nil
	}
	t := *c.Task
	if t.ID.Partition() != id {
		panic(fmt.Sprintf("memstore: task %s in a part for partition %d", t.ID, id))
	}
	old := p.task(t.ID.Seq())
	switch c.Op {
	case store.Insert:
		if old != nil || t.State.Terminal() {
			panic(fmt.Sprintf("memstore: insert of task %s, which is there or %v", t.ID, t.State))
		}
		if t.PayloadSize != len(t.Payload) {
			panic(fmt.Sprintf("memstore: insert of task %s with %d bytes of payload, not %d", t.ID, len(t.Payload), t.PayloadSize))
		}
		if t.ClientID != "" {
			key := clientKey{t.Tenant, t.ClientID}
			if id, taken := d.clientIDs[key]; taken {
				holder := copied(d.partition(id.Partition()).task(id.Seq()))
				holder.Payload, holder.Result = nil, nil
				return holder
			}
			if d.clientIDs == nil {
				d.clientIDs = map[clientKey]task.ID{}
			}
			d.clientIDs[key] = t.ID
		}
	case store.Update, store.Finish:
		check(c, old)
		switch {
		case c.Op == store.Update && c.KeepPayload, t.State == task.Failed:
			t.Payload = old.Payload
		case t.State.Terminal():
			t.Payload = nil
		}
	default:
		panic(fmt.Sprintf("memstore: operation %d", c.Op))
	}
	form := store.Encode(nil, &t)
	d.written += int64(len(form))
	stored, err := store.Decode(form)
	if err != nil {
		panic(fmt.Sprintf("memstore: task %s: %v", t.ID, err))
	}
	if t.State.Terminal() {
		p.hot.remove(t.ID.Seq())
		p.history.put(stored)
	} else {
		p.hot.put(stored)
	}
	return nil
}

// check panics unless the change follows from the row that is stored.
func check(c *store.Change, stored *store.Task) {
	switch {
	case stored == nil || stored.ID != c.Task.ID:
		panic(fmt.Sprintf("memstore: change of task %s, which is not there", c.Task.ID))
	case stored.State.Terminal():
		panic(fmt.Sprintf("memstore: change of task %s, which is %v", c.Task.ID, stored.State))
	case (c.Op == store.Finish) != c.Task.State.Terminal():
		panic(fmt.Sprintf("memstore: operation %d makes task %s %v", c.Op, c.Task.ID, c.Task.State))
	case c.Old == nil:
		panic(fmt.Sprintf("memstore: change of task %s without the old row", c.Task.ID))
	}
	old := c.Old
	if old.State != stored.State || old.DueAt.UnixMicro() != stored.DueAt.UnixMicro() || old.Flow() != stored.Flow() ||
		old.Priority != stored.Priority || old.PayloadSize != stored.PayloadSize ||
		(old.Record == nil) != (stored.Record == nil) || (old.Cancel == nil) != (stored.Cancel == nil) {
		panic(fmt.Sprintf("memstore: task %s is %v due %v, its owner takes it for %v due %v",
			old.ID, stored.State, stored.DueAt, old.State, old.DueAt))
	}
	t := c.Task
	if t.Tenant != old.Tenant || t.Function != old.Function || t.ClientID != old.ClientID ||
		t.PayloadSize != old.PayloadSize || !t.CreatedAt.Equal(old.CreatedAt) {
		panic(fmt.Sprintf("memstore: task %s changes what is fixed for its life", t.ID))
	}
}
