package memstore

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// Recover implements store.Store.
func (s *Store) Recover(ctx context.Context, id uint32) (r *store.Recovered, err error) {
	err = s.do(ctx, "recover", func(d *Data) error {
		p := d.partition(id)
		r = &store.Recovered{Partition: store.Partition{ID: id}}
		if p == nil {
			return nil
		}
		r.Partition = p.stat(id)
		for _, f := range p.functions {
			r.Functions = append(r.Functions, f)
		}
		slices.SortFunc(r.Functions, func(a, b store.Function) int {
			return cmp.Or(strings.Compare(a.Tenant, b.Tenant), strings.Compare(a.Name, b.Name))
		})
		r.Recorded = p.hot.pick(func(t *store.Task) bool { return t.Record != nil })
		r.Cancels = p.hot.pick(func(t *store.Task) bool { return t.Record == nil && t.Cancel != nil })
		for _, ts := range [][]*store.Task{r.Recorded, r.Cancels} {
			for i, t := range ts {
				ts[i] = copied(t)
				ts[i].Payload = nil
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// hot returns a partition's hot rows: none if it is not there.
func (d *Data) hot(id uint32) *table {
	if p := d.partition(id); p != nil {
		return &p.hot
	}
	return new(table)
}

// Flows implements store.Store.
func (s *Store) Flows(ctx context.Context, id uint32) (fs []store.FlowStat, err error) {
	err = s.do(ctx, "flows", func(d *Data) error {
		for _, t := range d.hot(id).pick(func(t *store.Task) bool { return t.Ready() }) {
			i := slices.IndexFunc(fs, func(f store.FlowStat) bool { return f.Flow == t.Flow() })
			if i < 0 {
				i = len(fs)
				fs = append(fs, store.FlowStat{Flow: t.Flow()})
			}
			fs[i].Ready++
			fs[i].Bytes += int64(t.PayloadSize)
		}
		return nil
	})
	return fs, err
}

// Ready implements store.Store.
func (s *Store) Ready(ctx context.Context, id uint32, f store.Flow, after store.Key, limit, maxBytes, inline int) (rows []*store.Task, more bool, err error) {
	err = s.do(ctx, "ready", func(d *Data) error {
		ts := d.hot(id).pick(func(t *store.Task) bool { return t.Ready() && t.Flow() == f })
		rows, more = page(ts, (*store.Task).Key, after, limit, maxBytes, inline)
		return nil
	})
	return rows, more, err
}

// Due implements store.Store.
func (s *Store) Due(ctx context.Context, id uint32, after store.Key, until time.Time, limit, maxBytes, inline int) (rows []*store.Task, more bool, err error) {
	err = s.do(ctx, "due", func(d *Data) error {
		ts := d.hot(id).pick(func(t *store.Task) bool {
			return !t.Ready() && t.DueAt.UnixMicro() < until.UnixMicro()
		})
		due := func(t *store.Task) store.Key { return store.Key{Sort: t.DueAt.UnixMicro(), Seq: t.ID.Seq()} }
		rows, more = page(ts, due, after, limit, maxBytes, inline)
		return nil
	})
	return rows, more, err
}

// page returns the first of ts in key order behind after, within the limits.
func page(ts []*store.Task, key func(*store.Task) store.Key, after store.Key, limit, maxBytes, inline int) (rows []*store.Task, more bool) {
	if after == (store.Key{}) {
		after.Sort = math.MinInt64
	}
	slices.SortFunc(ts, func(a, b *store.Task) int { return key(a).Compare(key(b)) })
	bytes := 0
	for _, t := range ts {
		if key(t).Compare(after) <= 0 {
			continue
		}
		t = copied(t)
		if len(t.Payload) > inline {
			t.Payload = nil
		}
		bytes += len(t.Payload)
		if len(rows) >= limit || len(rows) > 0 && bytes > maxBytes {
			return rows, true
		}
		rows = append(rows, t)
	}
	return rows, false
}

// List implements store.Store.
func (s *Store) List(ctx context.Context, f store.Filter, after store.Cursor, limit int) (rows []*store.Task, more bool, err error) {
	err = s.do(ctx, "list", func(d *Data) error {
		want := func(t *store.Task) bool {
			return matches(f, t) && (after == store.Cursor{} || newer(after, place(t)) < 0)
		}
		var ts []*store.Task
		for _, id := range slices.Sorted(maps.Keys(d.partitions)) {
			p := d.partitions[id]
			ts = slices.Concat(ts, p.hot.pick(want), p.history.pick(want))
		}
		slices.SortFunc(ts, func(a, b *store.Task) int { return newer(place(a), place(b)) })
		more = len(ts) > limit
		rows = ts[:min(limit, len(ts))]
		for i, t := range rows {
			rows[i] = copied(t)
			rows[i].Payload, rows[i].Result = nil, nil
		}
		return nil
	})
	return rows, more, err
}

func place(t *store.Task) store.Cursor { return store.Cursor{CreatedAt: t.CreatedAt, ID: t.ID} }

// newer orders the newer first.
func newer(a, b store.Cursor) int {
	return cmp.Or(cmp.Compare(b.CreatedAt.UnixMicro(), a.CreatedAt.UnixMicro()), b.ID.Compare(a.ID))
}

func matches(f store.Filter, t *store.Task) bool {
	return t.Tenant == f.Tenant &&
		(f.Function == "" || f.Function == t.Function) &&
		(f.State == task.StateUnspecified || f.State == t.State) &&
		(f.Label == "" || labelled(t, f.Label)) &&
		(!f.Live || !t.State.Terminal()) &&
		(!f.Finished || t.State.Terminal())
}

func labelled(t *store.Task, label string) bool {
	for k, v := range t.Labels {
		if k+"="+v == label {
			return true
		}
	}
	return false
}
