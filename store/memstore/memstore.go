package memstore

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// Data is what would be on the disk. Its zero value is an empty database.
type Data struct {
	mu         sync.Mutex // guards following
	partitions map[uint32]*partition
	clientIDs  map[clientKey]task.ID
	requests   []request
	written    int64
	config     configuration
	server     int // grows when the data is replaced by a backup
}

type partition struct {
	epoch, floor, released store.Epoch
	server                 int // Data.server when the epoch was raised
	seq                    uint64
	functions              map[function]store.Function
	hot, history           table
}

// table holds rows by sequence number. They have been through the codec and are never changed.
type table struct {
	rows map[uint64]*store.Task
	seqs []uint64 // ascending
}

type (
	function  struct{ tenant, name string }
	clientKey struct{ tenant, id string }
)

type request struct {
	partition uint32
	form      []byte
}

// Fault is the answer of Store.Fail.
type Fault struct {
	Err   error
	Apply bool // the call takes effect before it fails: an answer that got lost
}

// Store is one process's view of a Data.
type Store struct {
	data *Data
	// Fail, if set, is asked at the start of each call that returns an error, with the method's name.
	// The zero Fault lets it pass. It must not call the store.
	Fail func(op string) Fault
}

var _ store.Store = (*Store)(nil)

// New returns a store with data of its own.
func New() *Store { return Open(new(Data)) }

// Open returns a store on data.
func Open(data *Data) *Store { return &Store{data: data} }

// Data returns what the store is open on.
func (s *Store) Data() *Data { return s.data }

// do runs f under the lock, unless the call shall fail before it. It returns f's error, or the one
// that was asked for.
func (s *Store) do(ctx context.Context, op string, f func(d *Data) error) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	var fault Fault
	if s.Fail != nil {
		fault = s.Fail(op)
	}
	if fault.Err != nil && !fault.Apply {
		return fmt.Errorf("%s: %w", op, fault.Err)
	}
	s.data.mu.Lock()
	defer s.data.mu.Unlock()
	err := f(s.data)
	if fault.Err != nil {
		err = fault.Err
	}
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return nil
}

// partition returns a partition, nil if it is not there.
func (d *Data) partition(id uint32) *partition { return d.partitions[id] }

// put stores a row under its number.
func (tb *table) put(t *store.Task) {
	if tb.rows == nil {
		tb.rows = map[uint64]*store.Task{}
	}
	seq := t.ID.Seq()
	if i, found := slices.BinarySearch(tb.seqs, seq); !found {
		tb.seqs = slices.Insert(tb.seqs, i, seq)
	}
	tb.rows[seq] = t
}

func (tb *table) remove(seq uint64) {
	if i, found := slices.BinarySearch(tb.seqs, seq); found {
		tb.seqs = slices.Delete(tb.seqs, i, i+1)
		delete(tb.rows, seq)
	}
}

// pick returns the rows that want wants, by sequence number. They go out as copies only.
func (tb *table) pick(want func(*store.Task) bool) []*store.Task {
	var ts []*store.Task
	for _, seq := range tb.seqs {
		if t := tb.rows[seq]; want(t) {
			ts = append(ts, t)
		}
	}
	return ts
}

// task returns a row, hot or finished, nil if it is not there.
func (p *partition) task(seq uint64) *store.Task {
	if t, ok := p.hot.rows[seq]; ok {
		return t
	}
	return p.history.rows[seq]
}

// copied returns a copy whose fields may be set. Slices and maps are shared: nobody changes them.
func copied(t *store.Task) *store.Task {
	c := *t
	return &c
}

// Acquire implements store.Store.
func (s *Store) Acquire(ctx context.Context, id uint32, from store.Epoch) (store.Epoch, error) {
	return s.AcquireAbove(ctx, id, from, 0)
}

// AcquireAbove implements store.Store.
func (s *Store) AcquireAbove(ctx context.Context, id uint32, from, above store.Epoch) (epoch store.Epoch, err error) {
	err = s.do(ctx, "acquire", func(d *Data) error {
		p := d.partition(id)
		if p == nil && from == 0 {
			p = &partition{functions: map[function]store.Function{}}
			if d.partitions == nil {
				d.partitions = map[uint32]*partition{}
			}
			d.partitions[id] = p
		}
		if p == nil || p.epoch != from {
			return fmt.Errorf("partition %d from epoch %d: %w", id, from, store.ErrFenced)
		}
		p.epoch, p.server = max(p.epoch, above)+1, d.server
		epoch = p.epoch
		return nil
	})
	if err != nil {
		return 0, err
	}
	return epoch, nil
}

// Epoch implements store.Store.
func (s *Store) Epoch(ctx context.Context, id uint32) (epoch store.Epoch, err error) {
	err = s.do(ctx, "epoch", func(d *Data) error {
		if p := d.partition(id); p != nil {
			epoch = p.epoch
		}
		return nil
	})
	return epoch, err
}

// Partitions implements store.Store.
func (s *Store) Partitions(ctx context.Context) (ps []store.Partition, err error) {
	err = s.do(ctx, "partitions", func(d *Data) error {
		for _, id := range slices.Sorted(maps.Keys(d.partitions)) {
			ps = append(ps, d.partitions[id].stat(id))
		}
		return nil
	})
	return ps, err
}

func (p *partition) stat(id uint32) store.Partition {
	st := store.Partition{ID: id, Epoch: p.epoch, Floor: p.floor, Seq: p.seq, Released: p.released}
	for _, t := range p.hot.rows {
		st.Bytes += int64(t.PayloadSize)
		if t.Ready() {
			st.Ready++
		} else {
			st.Due++
		}
	}
	return st
}

// Settings implements store.Store.
func (s *Store) Settings() map[string]string {
	return map[string]string{"engine": "memory", "sync": "none"}
}

// DiskBytes implements store.Store: the bytes of all rows ever written, and of those that are there.
func (s *Store) DiskBytes() (written, occupied int64) {
	if s.Fail != nil {
		_ = s.Fail("disk bytes") // may hold it back; an error it has no way to return
	}
	s.data.mu.Lock()
	defer s.data.mu.Unlock()
	for _, p := range s.data.partitions {
		for _, tb := range []table{p.hot, p.history} {
			for _, t := range tb.rows {
				occupied += int64(len(store.Encode(nil, t)))
			}
		}
	}
	return s.data.written, occupied
}

// Close implements store.Store. The data stays.
func (s *Store) Close() error { return nil }

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, id task.ID) (t *store.Task, err error) {
	err = s.do(ctx, "get", func(d *Data) error {
		if p := d.partition(id.Partition()); p != nil {
			t = p.task(id.Seq())
		}
		if t == nil || t.ID != id {
			return fmt.Errorf("task %s: %w", id, store.ErrNotFound)
		}
		t = copied(t)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return t, nil
}

// ByClientID implements store.Store.
func (s *Store) ByClientID(ctx context.Context, tenant, clientID string) (id task.ID, err error) {
	err = s.do(ctx, "by client id", func(d *Data) error {
		var ok bool
		if id, ok = d.clientIDs[clientKey{tenant, clientID}]; !ok {
			return store.ErrNotFound
		}
		return nil
	})
	if err != nil {
		return task.ID{}, err
	}
	return id, nil
}

// Request implements store.Store.
func (s *Store) Request(ctx context.Context, id uint32, tenant, requestID string, now time.Time) (r *store.Request, err error) {
	err = s.do(ctx, "request", func(d *Data) error {
		for _, stored := range d.requests {
			q, err := store.DecodeRequest(stored.form)
			if err != nil {
				panic(err) // nobody else writes here
			}
			if stored.partition == id && q.Tenant == tenant && q.ID == requestID &&
				!q.At.Before(now.Add(-store.RequestLife)) && !q.At.After(now.Add(time.Minute)) {
				r = q // the newest
			}
		}
		if r == nil {
			return store.ErrNotFound
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}
