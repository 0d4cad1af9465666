package filestore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// snapshot runs f on one state of the database.
func (s *Store) snapshot(ctx context.Context, f func(r pebble.Reader) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !s.enter() {
		return errClosed
	}
	defer s.leave()
	snap := s.db.NewSnapshot()
	defer snap.Close()
	return f(snap)
}

// Epoch implements store.Store.
func (s *Store) Epoch(ctx context.Context, id uint32) (epoch store.Epoch, err error) {
	err = s.snapshot(ctx, func(r pebble.Reader) error {
		p, err := readPartition(r, id)
		epoch = p.Epoch
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("read the epoch of partition %d: %w", id, err)
	}
	return epoch, nil
}

// readPartition reads a partition's row; the zero Partition with its id if it is not there.
func readPartition(r pebble.Reader, id uint32) (store.Partition, error) {
	v, closer, err := r.Get(appendPart(nil, partSpace, id))
	if errors.Is(err, pebble.ErrNotFound) {
		return store.Partition{ID: id}, nil
	}
	if err != nil {
		return store.Partition{}, err
	}
	defer closer.Close()
	return store.DecodePartition(v)
}

// Recover implements store.Store.
func (s *Store) Recover(ctx context.Context, id uint32) (*store.Recovered, error) {
	out := new(store.Recovered)
	err := s.snapshot(ctx, func(r pebble.Reader) (err error) {
		if out.Partition, err = readPartition(r, id); err != nil {
			return err
		}
		err = s.scan(r, appendPart(nil, funcSpace, id), func(_, v []byte) error {
			f, err := store.DecodeFunction(v)
			out.Functions = append(out.Functions, f)
			return err
		})
		if err != nil {
			return err
		}
		return s.scan(r, appendPart(nil, markSpace, id), func(k, _ []byte) error {
			t, err := load(r, append([]byte{rowSpace}, k[1:]...), want{inline: -1, result: true})
			switch {
			case err != nil:
				return err
			case t.Record != nil:
				out.Recorded = append(out.Recorded, t)
			default:
				out.Cancels = append(out.Cancels, t)
			}
			return ctx.Err()
		})
	})
	if err != nil {
		return nil, fmt.Errorf("recover partition %d: %w", id, err)
	}
	return out, nil
}

// Flows implements store.Store.
func (s *Store) Flows(ctx context.Context, id uint32) ([]store.FlowStat, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var fs []store.FlowStat
	if p := s.partitions[id]; p != nil {
		for _, f := range p.flows {
			if f.ready > 0 {
				fs = append(fs, store.FlowStat{Flow: f.name, Ready: f.ready, Bytes: f.bytes})
			}
		}
	}
	return fs, ctx.Err()
}

// Ready implements store.Store.
func (s *Store) Ready(ctx context.Context, id uint32, f store.Flow, after store.Key, limit, maxBytes, inline int) ([]*store.Task, bool, error) {
	rows, more, err := s.page(ctx, appendFlow(nil, readySpace, id, f), id, after, math.MaxInt64, limit, maxBytes, inline)
	if err != nil {
		return nil, false, fmt.Errorf("read ready rows of partition %d: %w", id, err)
	}
	return rows, more, nil
}

// Due implements store.Store.
func (s *Store) Due(ctx context.Context, id uint32, after store.Key, until time.Time, limit, maxBytes, inline int) ([]*store.Task, bool, error) {
	rows, more, err := s.page(ctx, appendPart(nil, dueSpace, id), id, after, until.UnixMicro(), limit, maxBytes, inline)
	if err != nil {
		return nil, false, fmt.Errorf("read due rows of partition %d: %w", id, err)
	}
	return rows, more, nil
}

// page reads the rows of an index range behind a cursor, with Sort before until.
func (s *Store) page(ctx context.Context, prefix []byte, id uint32, from store.Key, until int64, limit, maxBytes, inline int) (rows []*store.Task, more bool, err error) {
	if from == (store.Key{}) {
		from.Sort = math.MinInt64
	}
	start := append(appendIndex(append([]byte(nil), prefix...), from), 0) // behind the cursor
	n := len(prefix)
	err = s.snapshot(ctx, func(r pebble.Reader) error {
		it, err := r.NewIter(&pebble.IterOptions{LowerBound: start, UpperBound: after(prefix)})
		if err != nil {
			return err
		}
		defer it.Close()
		// Rows wait about in the order in which they came: seeking on from row to row is twice as fast
		// as looking each of them up.
		all := appendPart(nil, rowSpace, id)
		rowIt, err := r.NewIter(&pebble.IterOptions{LowerBound: all, UpperBound: after(slices.Clone(all))})
		if err != nil {
			return err
		}
		defer rowIt.Close()
		size := 0
		var key []byte
		for ok := it.First(); ok; ok = it.Next() {
			at := readIndex(it.Key()[n:])
			if at.Sort >= until && until != math.MaxInt64 {
				return nil
			}
			if len(rows) >= limit {
				more = true
				return nil
			}
			key = appendSeq(appendPart(key[:0], rowSpace, id), at.Seq)
			t, err := seek(rowIt, r, key, want{inline: inline, result: true})
			if err != nil {
				return fmt.Errorf("row %d: %w", at.Seq, err)
			}
			size += len(t.Payload)
			if len(rows) > 0 && size > maxBytes {
				more = true
				return nil
			}
			rows = append(rows, t)
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		return it.Error()
	})
	return rows, more, err
}

// seek is load by an iterator over rows. Errors: store.ErrNotFound.
func seek(it *pebble.Iterator, r pebble.Reader, key []byte, w want) (*store.Task, error) {
	if !it.SeekGE(key) || !bytes.Equal(it.Key(), key) {
		if err := it.Error(); err != nil {
			return nil, err
		}
		return nil, store.ErrNotFound
	}
	v, err := it.ValueAndErr()
	if err != nil {
		return nil, err
	}
	return decode(r, v, w)
}

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, id task.ID) (t *store.Task, err error) {
	err = s.snapshot(ctx, func(r pebble.Reader) error {
		t, err = s.find(r, id, whole)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("get task %s: %w", id, err)
	}
	return t, nil
}

// find reads a hot or finished row. Errors: store.ErrNotFound.
func (s *Store) find(r pebble.Reader, id task.ID, w want) (*store.Task, error) {
	t, err := load(r, appendRow(nil, rowSpace, id), w)
	if err == nil && t.ID != id {
		err = store.ErrNotFound // somebody guesses ids
	}
	if err != nil {
		return nil, err
	}
	return t, nil
}

// ByClientID implements store.Store.
func (s *Store) ByClientID(ctx context.Context, tenant, clientID string) (id task.ID, err error) {
	err = s.snapshot(ctx, func(r pebble.Reader) error {
		id, err = s.byClientID(r, tenant, clientID)
		return err
	})
	if err != nil {
		return task.ID{}, fmt.Errorf("look up a client's id: %w", err)
	}
	return id, nil
}

func (s *Store) byClientID(r pebble.Reader, tenant, clientID string) (task.ID, error) {
	v, closer, err := r.Get(appendClient(nil, tenant, clientID))
	if errors.Is(err, pebble.ErrNotFound) {
		return task.ID{}, store.ErrNotFound
	}
	if err != nil {
		return task.ID{}, err
	}
	defer closer.Close()
	return task.IDFromBytes(v)
}

// Request implements store.Store.
func (s *Store) Request(ctx context.Context, id uint32, tenant, requestID string, now time.Time) (q *store.Request, err error) {
	err = s.snapshot(ctx, func(r pebble.Reader) error {
		last := minute(now)
		for m := last + 1; m >= last-requestBuckets; m-- {
			v, closer, err := r.Get(appendRequest(nil, id, m, tenant, requestID))
			if errors.Is(err, pebble.ErrNotFound) {
				continue
			}
			if err != nil {
				return err
			}
			q, err = store.DecodeRequest(v)
			closer.Close()
			if err != nil {
				return err
			}
			if !q.At.Before(now.Add(-store.RequestLife)) && !q.At.After(now.Add(time.Minute)) {
				return nil
			}
		}
		return store.ErrNotFound
	})
	if err != nil {
		return nil, fmt.Errorf("look up a request: %w", err)
	}
	return q, nil
}

// Partitions implements store.Store.
func (s *Store) Partitions(ctx context.Context) (ps []store.Partition, err error) {
	err = s.snapshot(ctx, func(r pebble.Reader) error {
		return s.scan(r, []byte{partSpace}, func(_, v []byte) error {
			p, err := store.DecodePartition(v)
			ps = append(ps, p)
			return err
		})
	})
	if err != nil {
		return nil, fmt.Errorf("read partitions: %w", err)
	}
	return ps, nil
}
