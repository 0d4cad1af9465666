package pgstore

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// List implements store.Store. Live and finished tasks are two lists that are merged here. Each is a merge of index ranges: of live
// tasks one for each flow (plain rows) and one for each function and state that the filter leaves open, of finished ones
// one for each function and state, whose entries are packs. A label reads one entry and one row or pack for each task
// with that label.
func (s *Store) List(ctx context.Context, f store.Filter, after store.Cursor, limit int) (rows []*store.Task, more bool, err error) {
	ctx, cancel := s.reading(ctx)
	defer cancel()
	if rows, err = s.list(ctx, f, after, limit+1); err != nil {
		return nil, false, fmt.Errorf("list tasks of %s: %w", f.Tenant, classify(err))
	}
	if len(rows) > limit {
		return rows[:limit], true, nil
	}
	return rows, false, nil
}

func (s *Store) list(ctx context.Context, f store.Filter, after store.Cursor, limit int) ([]*store.Task, error) {
	l := lister{s: s, f: f, limit: limit, created: math.MaxInt64, id: task.ID(bytes.Repeat([]byte{0xff}, len(task.ID{})))}
	if after != (store.Cursor{}) {
		l.created, l.id = after.CreatedAt.UnixMicro(), after.ID
	}
	if f.Label == "" {
		if err := l.ranges(ctx); err != nil {
			return nil, err
		}
	}
	// Live first: a task that ends between the two reads is in both, never in none.
	live, err := l.live(ctx)
	if err != nil {
		return nil, err
	}
	ended, err := l.ended(ctx)
	if err != nil {
		return nil, err
	}
	return merge(live, ended, limit), nil
}

// lister makes one page of a list: tasks older than (created, id).
type lister struct {
	s       *Store
	f       store.Filter
	limit   int
	created int64
	id      task.ID

	hot, places, old []int64  // ranges of the indexes
	partitions       []uint32 // of places
}

// ranges finds the ranges that the filter leaves open.
func (l *lister) ranges(ctx context.Context) error {
	return l.s.read(ctx, "Names", []any{l.f.Tenant, l.f.Function}, func(rows pgx.Rows) error {
		var function string
		var partition int64
		var band int16
		seen := map[string]bool{}
		_, err := pgx.ForEachRow(rows, []any{&function, &partition, &band}, func() error {
			if st := l.f.State; !l.f.Finished && (st == task.StateUnspecified || st == task.Queued) {
				f := store.Flow{Tenant: l.f.Tenant, Function: function, Band: task.Band(band)}
				l.partitions = append(l.partitions, uint32(partition))
				l.places = append(l.places, plainPlace(readyPlace(uint32(partition), f)))
			}
			if seen[function] {
				return nil
			}
			seen[function] = true
			for st := task.Scheduled; st <= task.Expired; st++ {
				if l.f.State != task.StateUnspecified && l.f.State != st || l.f.Live && st.Terminal() || l.f.Finished && !st.Terminal() {
					continue
				}
				list := listBase(l.f.Tenant, function) | int64(st)
				if st.Terminal() {
					l.old = append(l.old, list)
				} else {
					l.hot = append(l.hot, list)
				}
			}
			return nil
		})
		return err
	})
}

// live returns the first live tasks.
func (l *lister) live(ctx context.Context) (ts []*store.Task, err error) {
	if l.f.Finished || l.f.Label == "" && len(l.hot)+len(l.places) == 0 {
		return nil, nil
	}
	created, id := l.created, l.id
	for {
		query, args := "LabelHot", []any{labelKey(l.f.Tenant, l.f.Label), created, id, int64(l.limit)}
		if l.f.Label == "" {
			nums := make([]int64, len(l.places))
			for i, p := range l.partitions {
				nums[i] = under(p, id)
			}
			query, args = "ListHot", []any{l.hot, created, id, int64(l.limit), l.places, plainAge, max(created, created+plainAge), nums}
		}
		read := 0
		err := l.s.read(ctx, query, args, func(rows pgx.Rows) error {
			var r row
			_, err := pgx.ForEachRow(rows, []any{&created, &r.id, &r.body, &r.sort}, func() error {
				t, err := r.task()
				if read++; err == nil && l.wants(t) && len(ts) < l.limit {
					t.Result = nil
					ts = append(ts, t)
				}
				id = r.id
				return err
			})
			return err
		})
		if err != nil || read < l.limit || len(ts) >= l.limit {
			return ts, err
		}
	}
}

// ended returns the first finished tasks.
func (l *lister) ended(ctx context.Context) ([]*store.Task, error) {
	switch {
	case l.f.Live:
		return nil, nil
	case l.f.Label != "":
		return l.labelled(ctx)
	case len(l.old) == 0:
		return nil, nil
	}
	// A pack that holds a task older than the cursor is at most a span newer than it.
	created, block, sole := int64(math.MaxInt64), int64(math.MaxInt64), int16(manyTasks)
	if l.created < created {
		created = l.created | (1<<packSpan - 1)
	}
	var ts, ready []*store.Task
	seen := map[task.ID]bool{} // the first task of each pack: the last place is read again, as several packs may be there
	for want := l.limit; ; want *= 2 {
		read, cut := 0, false
		err := l.s.read(ctx, "ListHistory", []any{l.old, created, block, l.created, int64(want), int64(want), sole}, func(rows pgx.Rows) error {
			var mask, list int64
			var body pgtype.DriverBytes
			n := 0
			_, err := pgx.ForEachRow(rows, []any{&created, &block, &sole, &mask, &list, &body}, func() error {
				read++
				n += bits.OnesCount64(uint64(mask))
				first := true
				err := unpack(body, func(t *store.Task) error {
					if first {
						if seen[t.ID] {
							return errSeen
						}
						seen[t.ID], first = true, false
					}
					if l.wants(t) && l.older(t) {
						t.Result = nil
						ts = append(ts, t)
					}
					return nil
				})
				if err == errSeen {
					return nil
				}
				return err
			})
			cut = read >= want || n >= want
			return err
		})
		if err != nil {
			return nil, err
		}
		slices.SortFunc(ts, newer)
		if !cut {
			return append(ready, ts...), nil
		}
		// What is newer than the last pack that was read can't be behind others.
		safe := 0
		for safe < len(ts) && behindNone(ts[safe], created, block, sole) {
			safe++
		}
		ready, ts = append(ready, ts[:safe]...), ts[safe:]
		if len(ready) >= l.limit {
			return ready, nil
		}
	}
}

// errSeen ends the reading of a pack that was read before.
var errSeen = errors.New("seen")

// behindNone says that a task comes before all tasks of packs behind a place.
func behindNone(t *store.Task, created, block int64, sole int16) bool {
	return cmp.Or(cmp.Compare(t.CreatedAt.UnixMicro(), created), cmp.Compare(blockOf(t.ID), block), cmp.Compare(soleOf(t.ID), sole)) >= 0
}

func (l *lister) older(t *store.Task) bool {
	at := t.CreatedAt.UnixMicro()
	return at < l.created || at == l.created && t.ID.Compare(l.id) < 0
}

// labelled returns the first finished tasks with the filter's label.
func (l *lister) labelled(ctx context.Context) (ts []*store.Task, err error) {
	created, id := l.created, l.id
	for {
		var classes, soles []int16
		var days []int32
		var blocks, masks []int64
		var ids []task.ID
		err := l.s.read(ctx, "LabelHistory", []any{labelKey(l.f.Tenant, l.f.Label), created, id, int64(l.limit)}, func(rows pgx.Rows) error {
			var class int16
			var day int32
			_, err := pgx.ForEachRow(rows, []any{&class, &day, &created, (*[16]byte)(&id)}, func() error {
				ids, classes, days = append(ids, id), append(classes, class), append(days, day)
				blocks, soles, masks = append(blocks, blockOf(id)), append(soles, soleOf(id)), append(masks, int64(maskOf(id)))
				return nil
			})
			return err
		})
		if err != nil || len(ids) == 0 {
			return ts, err
		}
		asked := wanted(ids)
		var found []*store.Task
		err = l.s.read(ctx, "Packs", []any{classes, days, blocks, soles, masks}, func(rows pgx.Rows) (err error) {
			found, err = collectPacks(rows, func(t *store.Task) bool {
				first := asked[t.ID] // a pack comes once for each task in it
				delete(asked, t.ID)
				return first && l.wants(t)
			})
			return err
		})
		if err != nil {
			return nil, err
		}
		slices.SortFunc(found, newer)
		for _, t := range found {
			t.Result = nil
			ts = append(ts, t)
		}
		if len(ids) < l.limit || len(ts) >= l.limit {
			return ts[:min(len(ts), l.limit)], nil
		}
	}
}

// wants looks at what the index does not say, or says by a hash.
func (l *lister) wants(t *store.Task) bool {
	f := l.f
	if t.Tenant != f.Tenant || f.Function != "" && t.Function != f.Function || f.State != task.StateUnspecified && t.State != f.State {
		return false
	}
	if f.Label == "" {
		return true
	}
	for k, v := range t.Labels {
		if k+"="+v == f.Label {
			return true
		}
	}
	return false
}

func merge(a, b []*store.Task, limit int) []*store.Task {
	var ts []*store.Task
	for len(ts) < limit && (len(a) > 0 || len(b) > 0) {
		switch {
		case len(b) == 0 || len(a) > 0 && newer(a[0], b[0]) < 0:
			ts, a = append(ts, a[0]), a[1:]
		case len(a) > 0 && newer(a[0], b[0]) == 0: // it ended between the reads
			a = a[1:]
		default:
			ts, b = append(ts, b[0]), b[1:]
		}
	}
	return ts
}

// newer orders the newer first.
func newer(a, b *store.Task) int {
	return cmp.Or(cmp.Compare(b.CreatedAt.UnixMicro(), a.CreatedAt.UnixMicro()), b.ID.Compare(a.ID))
}
