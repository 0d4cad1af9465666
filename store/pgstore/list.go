package pgstore

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"math"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// List implements store.Store. Live and finished tasks are two lists that are merged here. A list is a
// merge of the ranges of one index, one for each (function, state) that the filter leaves open: with both given, each
// entry read is a row returned; else up to limit entries of each range are read. A label reads one entry and one row for each
// task with that label.
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
	functions := []string{f.Function}
	if f.Function == "" && f.Label == "" {
		err := s.read(ctx, "Names", []any{f.Tenant}, func(rows pgx.Rows) (err error) {
			functions, err = pgx.CollectRows(rows, pgx.RowTo[string])
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	// Live first: a task that ends between the two reads is in both, never in none.
	hot := stream{s: s, f: f, query: "ListHot", limit: limit}
	old := stream{s: s, f: f, query: "ListHistory", limit: limit}
	for st := task.Scheduled; st <= task.Expired; st++ {
		if f.State != task.StateUnspecified && f.State != st || f.Live && st.Terminal() || f.Finished && !st.Terminal() {
			continue
		}
		in := &hot
		if st.Terminal() {
			in = &old
		}
		for _, function := range functions {
			in.lists = append(in.lists, listBase(f.Tenant, function)|int64(st))
		}
	}
	if f.Label != "" {
		hot.query, old.query = "LabelHot", "LabelHistory"
	}
	live, err := hot.read(ctx, after)
	if err != nil {
		return nil, err
	}
	ended, err := old.read(ctx, after)
	if err != nil {
		return nil, err
	}
	return merge(live, ended, limit), nil
}

// stream is one of the two lists.
type stream struct {
	s     *Store
	f     store.Filter
	query string
	lists []int64 // the ranges
	limit int
}

// read returns the first rows behind a cursor, newest first.
func (st *stream) read(ctx context.Context, after store.Cursor) (ts []*store.Task, err error) {
	if len(st.lists) == 0 {
		return nil, nil
	}
	created, id := int64(math.MaxInt64), task.ID(bytes.Repeat([]byte{0xff}, len(task.ID{})))
	if after != (store.Cursor{}) {
		created, id = after.CreatedAt.UnixMicro(), after.ID
	}
	var key any = st.lists
	if st.f.Label != "" {
		key = labelKey(st.f.Tenant, st.f.Label)
	}
	for {
		read := 0
		err := st.s.read(ctx, st.query, []any{key, created, id, int64(st.limit)}, func(rows pgx.Rows) error {
			for rows.Next() {
				var body pgtype.DriverBytes
				if err := rows.Scan(&created, (*[16]byte)(&id), &body); err != nil {
					return err
				}
				t, err := decode(id, body)
				if err != nil {
					return err
				}
				if read++; st.wants(t) && len(ts) < st.limit {
					t.Result = nil
					ts = append(ts, t)
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		if read < st.limit || len(ts) >= st.limit {
			return ts, nil
		}
	}
}

// wants looks at what the index does not say, or says by a hash.
func (st *stream) wants(t *store.Task) bool {
	f := st.f
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
