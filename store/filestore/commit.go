package filestore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// commit is one batch in the making.
type commit struct {
	s       *Store
	b       *pebble.Batch
	applied []*store.Change       // so far, refused ones left out
	latest  map[task.ID]latest    // of applied; built when first asked for
	clients map[clientKey]task.ID // client ids that this batch takes
	later   later
}

// latest is what a batch did last with a task.
type latest struct {
	row     *store.Change
	payload *store.Change // the last that says what the payload is; nil if none does
}

type clientKey struct{ tenant, id string }

// Commit implements store.Store. The context does not cut it short: its outcome would be unknown.
func (s *Store) Commit(_ context.Context, batch *store.Batch) ([]store.PartResult, error) {
	s.writeMu.Lock()
	defer s.writeMu.Unlock()
	if !s.enter() {
		return nil, errClosed
	}
	defer s.leave()
	if err := s.writable(batch); err != nil {
		return nil, err
	}
	b := s.db.NewBatchWithSize(s.batchSize)
	defer b.Close()
	rs, err := s.build(b, batch)
	if err != nil {
		return nil, s.breakDown(fmt.Errorf("build a commit: %w", err))
	}
	if b.Empty() {
		return rs, nil
	}
	s.batchSize = max(b.Len()*5/4, s.batchSize*7/8, minBatchSize)
	if err := s.apply(b); err != nil {
		return nil, err
	}
	return rs, nil
}

// minBatchSize in bytes is room for a lone task.
const minBatchSize = 4 << 10

func (s *Store) build(b *pebble.Batch, batch *store.Batch) ([]store.PartResult, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := commit{s: s, b: b}
	rs := make([]store.PartResult, len(batch.Parts))
	for i := range batch.Parts {
		if err := c.part(batch.At, &batch.Parts[i], &rs[i]); err != nil {
			return nil, err
		}
	}
	return rs, s.writeFlows(b)
}

func (c *commit) part(at time.Time, part *store.Part, r *store.PartResult) error {
	p := c.s.partitions[part.Partition]
	if p == nil || part.Epoch == 0 || p.Epoch != part.Epoch {
		r.Err = fmt.Errorf("commit to partition %d under epoch %d: %w", part.Partition, part.Epoch, store.ErrFenced)
		return nil
	}
	before := p.Partition
	c.later.on = apart(part.Changes, p.Seq)
	for i := range part.Changes {
		holder, err := c.change(p, &part.Changes[i])
		if err != nil {
			return fmt.Errorf("change %d of partition %d: %w", i, p.ID, err)
		}
		if holder != nil {
			if r.Existing == nil {
				r.Existing = map[int]*store.Task{}
			}
			r.Existing[i] = holder
		}
	}
	if err := c.writeLater(p); err != nil {
		return err
	}
	for i := range part.Requests {
		if err := c.request(p, at, &part.Requests[i]); err != nil {
			return err
		}
	}
	p.Floor = max(p.Floor, part.Floor)
	p.Seq = max(p.Seq, part.Seq)
	if part.Release {
		p.Released = part.Epoch
	}
	if p.Partition == before {
		return nil
	}
	return c.s.writePartition(c.b, p)
}

// change adds one step. It returns the task that holds the client id of a refused Insert.
func (c *commit) change(p *partition, ch *store.Change) (holder *store.Task, err error) {
	switch ch.Op {
	case store.Insert:
		if ch.Task.ClientID != "" {
			if holder, err = c.takeClientID(ch.Task); holder != nil || err != nil {
				return holder, err
			}
		}
		err = c.insert(p, ch.Task)
	case store.Update:
		err = c.update(p, ch)
	case store.Finish:
		err = c.finish(p, ch)
	case store.PutFunc:
		k := appendText(appendText(appendPart(c.s.key[:0], funcSpace, p.ID), ch.Func.Tenant), ch.Func.Name)
		c.s.key, c.s.val = k, store.EncodeFunction(c.s.val[:0], ch.Func)
		return nil, c.b.Set(k, c.s.val, nil)
	default:
		err = fmt.Errorf("operation %d", ch.Op)
	}
	if err == nil {
		c.applied = append(c.applied, ch)
		if c.latest != nil {
			c.note(ch)
		}
	}
	return nil, err
}

func (c *commit) insert(p *partition, t *store.Task) error {
	c.s.count(p, t, +1)
	if err := c.putIndex(p, t); err != nil {
		return err
	}
	if err := c.putList(t); err != nil {
		return err
	}
	for k, v := range t.Labels {
		c.s.key = appendPlace(appendLabel(c.s.key[:0], t.Tenant, k+"="+v), t.CreatedAt, t.ID)
		if err := c.b.Set(c.s.key, nil, nil); err != nil {
			return err
		}
	}
	if t.Record != nil || t.Cancel != nil {
		if err := c.b.Set(c.rowKey(markSpace, t.ID), nil, nil); err != nil {
			return err
		}
	}
	return c.putRow(t, t.Payload, false)
}

func (c *commit) update(p *partition, ch *store.Change) error {
	old, t := ch.Old, ch.Task
	c.s.count(p, old, -1)
	c.s.count(p, t, +1)
	if old.Ready() != t.Ready() || old.Key() != t.Key() || !old.DueAt.Equal(t.DueAt) || old.Flow() != t.Flow() {
		if err := c.dropIndex(p, old); err != nil {
			return err
		}
		if err := c.putIndex(p, t); err != nil {
			return err
		}
	}
	if old.State != t.State {
		if err := c.moveList(old, t); err != nil {
			return err
		}
	}
	if was, is := old.Record != nil || old.Cancel != nil, t.Record != nil || t.Cancel != nil; was != is {
		k := c.rowKey(markSpace, t.ID)
		var err error
		if is {
			err = c.b.Set(k, nil, nil)
		} else {
			err = c.b.Delete(k, nil)
		}
		if err != nil {
			return err
		}
	}
	if !ch.KeepPayload {
		return c.putRow(t, t.Payload, false)
	}
	payload, apart, err := c.kept(t)
	if err != nil {
		return err
	}
	return c.putRow(t, payload, apart)
}

func (c *commit) finish(p *partition, ch *store.Change) error {
	old, t := ch.Old, ch.Task
	c.s.count(p, old, -1)
	if err := c.dropIndex(p, old); err != nil {
		return err
	}
	if err := c.moveList(old, t); err != nil {
		return err
	}
	if old.Record != nil || old.Cancel != nil {
		if err := c.b.Delete(c.rowKey(markSpace, t.ID), nil); err != nil {
			return err
		}
	}
	var payload []byte
	apart := false
	if t.State == task.Failed {
		var err error
		if payload, apart, err = c.kept(t); err != nil {
			return err
		}
	} else if t.PayloadSize > blobMin {
		if err := c.b.Delete(append(c.rowKey(blobSpace, t.ID), payloadBlob), nil); err != nil {
			return err
		}
	}
	return c.putRow(t, payload, apart)
}

// kept returns the stored payload of a hot row, or says that it is apart and stays where it is.
func (c *commit) kept(t *store.Task) (payload []byte, apart bool, err error) {
	switch {
	case t.PayloadSize == 0:
		return nil, false, nil
	case t.PayloadSize > blobMin:
		return nil, true, nil
	case len(t.Payload) == t.PayloadSize:
		return t.Payload, false, nil // still in memory: saves the read
	}
	if ch := c.last(t.ID).payload; ch != nil {
		return ch.Task.Payload, false, nil
	}
	v, closer, err := c.s.db.Get(c.rowKey(rowSpace, t.ID))
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, false, fmt.Errorf("task %s, whose payload shall stay: %w", t.ID, store.ErrNotFound)
	}
	if err != nil {
		return nil, false, err
	}
	defer closer.Close()
	f, err := readForm(v)
	if err != nil {
		return nil, false, err
	}
	return append([]byte(nil), f.payload...), false, nil
}

// last returns what this batch did last with a task; the zero value if nothing.
func (c *commit) last(id task.ID) latest {
	if c.latest == nil {
		c.latest = make(map[task.ID]latest, len(c.applied))
		for _, ch := range c.applied {
			c.note(ch)
		}
	}
	return c.latest[id]
}

func (c *commit) note(ch *store.Change) {
	l := c.latest[ch.Task.ID]
	l.row = ch
	if ch.Op == store.Insert || ch.Op == store.Update && !ch.KeepPayload {
		l.payload = ch
	}
	c.latest[ch.Task.ID] = l
}

// putRow writes the row, and what is too large for it beside it.
func (c *commit) putRow(t *store.Task, payload []byte, payloadElsewhere bool) error {
	if !payloadElsewhere && len(payload) > blobMin {
		if err := c.b.Set(append(c.rowKey(blobSpace, t.ID), payloadBlob), payload, nil); err != nil {
			return err
		}
	}
	if len(t.Result) > blobMin {
		if err := c.b.Set(append(c.rowKey(blobSpace, t.ID), resultBlob), t.Result, nil); err != nil {
			return err
		}
	}
	c.s.val = appendForm(c.s.val[:0], t, payload, t.Result, payloadElsewhere)
	return c.b.Set(c.rowKey(rowSpace, t.ID), c.s.val, nil)
}

func (c *commit) rowKey(space byte, id task.ID) []byte {
	c.s.key = appendRow(c.s.key[:0], space, id)
	return c.s.key
}

// takeClientID writes the task's client id, or returns the task that holds it.
func (c *commit) takeClientID(t *store.Task) (*store.Task, error) {
	key := clientKey{t.Tenant, t.ClientID}
	id, taken := c.clients[key]
	if !taken {
		var err error
		id, err = c.s.byClientID(c.s.db, t.Tenant, t.ClientID)
		switch {
		case err == nil:
			taken = true
		case !errors.Is(err, store.ErrNotFound):
			return nil, err
		}
	}
	if taken {
		return c.holder(id)
	}
	if c.clients == nil {
		c.clients = map[clientKey]task.ID{}
	}
	c.clients[key] = t.ID
	c.s.key = appendClient(c.s.key[:0], t.Tenant, t.ClientID)
	return nil, c.b.Set(c.s.key, t.ID[:], nil)
}

// holder returns a task as it is after what the batch has done so far.
func (c *commit) holder(id task.ID) (*store.Task, error) {
	if ch := c.last(id).row; ch != nil {
		t := *ch.Task
		t.Payload, t.Result = nil, nil
		return store.Decode(store.Encode(nil, &t)) // as it will be read
	}
	return c.s.find(c.s.db, id, bare)
}

func (c *commit) request(p *partition, at time.Time, r *store.Request) error {
	q := *r
	if q.At.IsZero() {
		q.At = at
	}
	if old := minute(at) - requestBuckets; old > p.purged {
		from := appendPart(nil, requestSpace, p.ID)
		if err := c.b.DeleteRange(from, appendSigned(appendPart(nil, requestSpace, p.ID), old), nil); err != nil {
			return err
		}
		p.purged = old
	}
	c.s.key = appendRequest(c.s.key[:0], p.ID, minute(q.At), q.Tenant, q.ID)
	c.s.val = store.EncodeRequest(c.s.val[:0], &q)
	return c.b.Set(c.s.key, c.s.val, nil)
}

// requestBuckets is how many minutes back requests are looked for.
const requestBuckets = int64(store.RequestLife / time.Minute)
