package pgstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// Recover implements store.Store.
func (s *Store) Recover(ctx context.Context, partition uint32) (*store.Recovered, error) {
	ctx, cancel := s.reading(ctx)
	defer cancel()
	r, err := s.recover(ctx, partition)
	if err != nil {
		return nil, fmt.Errorf("recover partition %d: %w", partition, classify(err))
	}
	return r, nil
}

func (s *Store) recover(ctx context.Context, partition uint32) (*store.Recovered, error) {
	id := int64(partition)
	ps, err := s.partitions(ctx, &id)
	if err != nil {
		return nil, err
	}
	r := &store.Recovered{Partition: store.Partition{ID: partition}}
	if len(ps) == 0 {
		return r, nil
	}
	r.Partition = ps[0]
	err = s.read(ctx, "Functions", []any{id}, func(rows pgx.Rows) error {
		var body []byte
		_, err := pgx.ForEachRow(rows, []any{&body}, func() error {
			f, err := store.DecodeFunction(body)
			r.Functions = append(r.Functions, f)
			return err
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	var marked []*store.Task
	err = s.read(ctx, "Marked", []any{id}, func(rows pgx.Rows) (err error) {
		marked, err = collect(rows)
		return err
	})
	for _, t := range marked {
		if t.Record != nil {
			r.Recorded = append(r.Recorded, t)
		} else {
			r.Cancels = append(r.Cancels, t)
		}
	}
	return r, err
}

// Flows implements store.Store.
func (s *Store) Flows(ctx context.Context, partition uint32) ([]store.FlowStat, error) {
	ctx, cancel := s.reading(ctx)
	defer cancel()
	var fs []store.FlowStat
	err := s.read(ctx, "Flows", []any{int64(partition)}, func(rows pgx.Rows) (err error) {
		fs, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (f store.FlowStat, err error) {
			err = row.Scan(&f.Flow.Tenant, &f.Flow.Function, &f.Flow.Band, &f.Ready, &f.Bytes)
			return f, err
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("flows of partition %d: %w", partition, classify(err))
	}
	return fs, nil
}

// Ready implements store.Store.
func (s *Store) Ready(ctx context.Context, partition uint32, f store.Flow, after store.Key, limit, maxBytes, inline int) ([]*store.Task, bool, error) {
	want := func(t *store.Task) bool { return t.Ready() && t.Flow() == f }
	place := readyPlace(partition, f)
	rows, more, err := s.page(ctx, [2]int64{place, plainPlace(place)}, after, math.MaxInt64, limit, maxBytes, inline, want)
	if err != nil {
		return nil, false, fmt.Errorf("ready tasks of partition %d: %w", partition, classify(err))
	}
	return rows, more, nil
}

// Due implements store.Store.
func (s *Store) Due(ctx context.Context, partition uint32, after store.Key, until time.Time, limit, maxBytes, inline int) ([]*store.Task, bool, error) {
	want := func(t *store.Task) bool { return !t.Ready() }
	rows, more, err := s.page(ctx, [2]int64{duePlace(partition), noPlace}, after, until.UnixMicro(), limit, maxBytes, inline, want)
	if err != nil {
		return nil, false, fmt.Errorf("due tasks of partition %d: %w", partition, classify(err))
	}
	return rows, more, nil
}

// page reads rows of two places as one. Rows that are not wanted are another flow's, of the same hash: so
// unlikely that a page may end early for them, but it is never wrong.
func (s *Store) page(ctx context.Context, places [2]int64, after store.Key, until int64, limit, maxBytes, inline int,
	want func(*store.Task) bool) (ts []*store.Task, more bool, err error) {
	ctx, cancel := s.reading(ctx)
	defer cancel()
	for limit > 0 {
		sort, num := behind(after)
		read, total := 0, 0
		args := []any{places[0], sort, num, until, int64(limit) + 1, int64(maxBytes), int64(inline), places[1]}
		err := s.read(ctx, "Page", args, func(rows pgx.Rows) error {
			for rows.Next() {
				var r row
				var size int
				if err := rows.Scan(&r.id, &r.body, &r.sort, &r.payload, &size); err != nil {
					return err
				}
				t, err := r.task()
				if err != nil {
					return err
				}
				read++
				if after.Seq, after.Sort = t.ID.Seq(), t.DueAt.UnixMicro(); t.Ready() {
					after = t.Key()
				}
				if !want(t) {
					continue
				}
				if size <= inline {
					total += size
				}
				if more = len(ts) >= limit || len(ts) > 0 && total > maxBytes; more {
					return nil
				}
				ts = append(ts, t)
			}
			return nil
		})
		if err != nil {
			return nil, false, err
		}
		if more || len(ts) > 0 || read == 0 {
			return ts, more || read > len(ts), nil
		}
		// Strangers only: look behind them.
	}
	return ts, false, nil
}

// Get implements store.Store: a probe of the hot table, and if it is not there one for the days on which tasks
// of its block ended and one for each of them: one day, but for blocks around midnight or of tasks that waited.
func (s *Store) Get(ctx context.Context, id task.ID) (*store.Task, error) {
	ctx, cancel := s.reading(ctx)
	defer cancel()
	t, err := s.get(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("get task %s: %w", id, classify(err))
	}
	return t, nil
}

func (s *Store) get(ctx context.Context, id task.ID) (t *store.Task, err error) {
	type place struct {
		class int16
		day   int32
	}
	var places []place
	// In this order: a task that moves between the two reads is seen by the second.
	b := &pgx.Batch{}
	b.Queue(queries["Plan"]).Exec(func(pgconn.CommandTag) error { return nil })
	b.Queue(queries["GetHot"], id).QueryRow(func(row pgx.Row) error {
		t, err = scanWhole(row)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	b.Queue(queries["Blocks"], int64(id.Partition()), int64(id.Seq()>>blockBits)).Query(func(rows pgx.Rows) error {
		places, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (p place, err error) {
			err = row.Scan(&p.class, &p.day)
			return p, err
		})
		return err
	})
	if err := s.pool.SendBatch(ctx, b).Close(); err != nil {
		return nil, err
	}
	for _, p := range places {
		if t != nil {
			break
		}
		err := s.read(ctx, "GetHistory", []any{p.class, p.day, blockOf(id), soleOf(id), int64(maskOf(id))}, func(rows pgx.Rows) error {
			var body, payload pgtype.DriverBytes
			_, err := pgx.ForEachRow(rows, []any{&body, &payload}, func() error {
				return unpack(body, func(u *store.Task) error {
					if u.ID == id {
						t = u
						t.Payload = bytes.Clone(payload)
					}
					return nil
				})
			})
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	if t == nil {
		return nil, store.ErrNotFound
	}
	return t, nil
}

// scanWhole reads a hot row with its payload.
func scanWhole(rows pgx.Row) (*store.Task, error) {
	var r row
	var body, payload []byte
	if err := rows.Scan(&r.id, &body, &r.sort, &payload); err != nil {
		return nil, err
	}
	r.body, r.payload = body, payload
	return r.task()
}

// ByClientID implements store.Store.
func (s *Store) ByClientID(ctx context.Context, tenant, clientID string) (id task.ID, err error) {
	ctx, cancel := s.reading(ctx)
	defer cancel()
	err = s.readRow(ctx, "ByClientID", []any{tenant, []byte(clientID)}, (*[16]byte)(&id))
	if errors.Is(err, pgx.ErrNoRows) {
		err = store.ErrNotFound
	}
	if err != nil {
		return task.ID{}, fmt.Errorf("client id of %s: %w", tenant, classify(err))
	}
	return id, nil
}

// Request implements store.Store.
func (s *Store) Request(ctx context.Context, partition uint32, tenant, id string, now time.Time) (*store.Request, error) {
	ctx, cancel := s.reading(ctx)
	defer cancel()
	var body []byte
	args := []any{[]byte(id), now.Add(-store.RequestLife).UnixMicro(), now.Add(time.Minute).UnixMicro(), int64(partition), tenant}
	err := s.readRow(ctx, "Request", args, &body)
	if errors.Is(err, pgx.ErrNoRows) {
		err = store.ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("request to partition %d: %w", partition, classify(err))
	}
	return store.DecodeRequest(body)
}
