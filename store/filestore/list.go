package filestore

import (
	"bytes"
	"container/heap"
	"context"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// List implements store.Store. A filter by function, state, liveness or any of them together reads one
// index entry and one row for each row returned, and seeks once for each (state, function) of the
// tenant that the filter leaves open. A label reads one entry for each row with that label.
func (s *Store) List(ctx context.Context, f store.Filter, from store.Cursor, limit int) (rows []*store.Task, more bool, err error) {
	var place []byte // the last one that was returned; nil at the start
	if from != (store.Cursor{}) {
		place = appendPlace(nil, from.CreatedAt, from.ID)
	}
	err = s.snapshot(ctx, func(r pebble.Reader) error {
		l := lister{s: s, r: r, f: f, limit: limit}
		var err error
		if f.Label != "" {
			err = l.byLabel(ctx, place)
		} else {
			err = l.byState(ctx, place)
		}
		rows, more = l.rows, l.more
		return err
	})
	if err != nil {
		return nil, false, fmt.Errorf("list tasks of %s: %w", f.Tenant, err)
	}
	return rows, more, nil
}

type lister struct {
	s     *Store
	r     pebble.Reader
	f     store.Filter
	limit int
	rows  []*store.Task
	more  bool
}

// states returns the states that the filter leaves.
func (l *lister) states() (states []task.State) {
	for st := task.Scheduled; st <= task.Expired; st++ {
		if l.wants(st) {
			states = append(states, st)
		}
	}
	return states
}

func (l *lister) wants(st task.State) bool {
	return (l.f.State == task.StateUnspecified || l.f.State == st) &&
		(!l.f.Live || !st.Terminal()) && (!l.f.Finished || st.Terminal())
}

// take adds the row of a place unless the filter leaves it out. It reports whether the page is full.
func (l *lister) take(ctx context.Context, place []byte) (full bool, err error) {
	partition, seq := readPlace(place)
	t, err := load(l.r, appendSeq(appendPart(nil, rowSpace, partition), seq), bare)
	if err != nil {
		return false, fmt.Errorf("row %d of partition %d: %w", seq, partition, err)
	}
	if !l.wants(t.State) || l.f.Function != "" && t.Function != l.f.Function {
		return false, ctx.Err()
	}
	if len(l.rows) >= l.limit {
		l.more = true
		return true, nil
	}
	l.rows = append(l.rows, t)
	return false, ctx.Err()
}

func (l *lister) byLabel(ctx context.Context, place []byte) error {
	prefix := appendLabel(nil, l.f.Tenant, l.f.Label)
	n := len(prefix)
	start := prefix
	if place != nil {
		start = append(append(append([]byte(nil), prefix...), place...), 0)
	}
	it, err := l.r.NewIter(&pebble.IterOptions{LowerBound: start, UpperBound: after(append([]byte(nil), prefix...))})
	if err != nil {
		return err
	}
	defer it.Close()
	for ok := it.First(); ok; ok = it.Next() {
		if full, err := l.take(ctx, it.Key()[n:]); full || err != nil {
			return err
		}
	}
	return it.Error()
}

// head is the next entry of one (state, function) range of the list index.
type head struct{ prefix, place []byte }

// heads is a heap by place, the newest first.
type heads []head

func (h heads) Len() int           { return len(h) }
func (h heads) Less(i, j int) bool { return bytes.Compare(h[i].place, h[j].place) < 0 }
func (h heads) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *heads) Push(x any)        { *h = append(*h, x.(head)) }
func (h *heads) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// byState merges the ranges of the states and functions that the filter leaves.
func (l *lister) byState(ctx context.Context, place []byte) error {
	tenant := appendText([]byte{listSpace}, l.f.Tenant)
	it, err := l.r.NewIter(&pebble.IterOptions{LowerBound: tenant, UpperBound: after(append([]byte(nil), tenant...))})
	if err != nil {
		return err
	}
	defer it.Close()
	var hs heads
	for _, st := range l.states() {
		prefix := appendList(nil, l.f.Tenant, st)
		if l.f.Function != "" {
			hs = l.head(it, appendText(prefix, l.f.Function), place, hs)
			continue
		}
		// Skip from function to function: the entry after the last possible one of a function is the
		// first one of the next.
		for ok := it.SeekGE(prefix); ok && bytes.HasPrefix(it.Key(), prefix); {
			fn := append([]byte(nil), it.Key()[:len(it.Key())-placeLen]...)
			hs = l.head(it, fn, place, hs)
			ok = it.SeekGE(after(append([]byte(nil), fn...)))
			if err := ctx.Err(); err != nil {
				return err
			}
		}
	}
	heap.Init(&hs)
	for len(hs) > 0 {
		h := hs[0]
		if full, err := l.take(ctx, h.place); full || err != nil {
			return err
		}
		key := append(append([]byte(nil), h.prefix...), h.place...)
		var ok bool
		if it.Valid() && bytes.Equal(it.Key(), key) {
			ok = it.Next()
		} else {
			ok = it.SeekGE(append(key, 0))
		}
		if ok && bytes.HasPrefix(it.Key(), h.prefix) {
			hs[0].place = append([]byte(nil), it.Key()[len(h.prefix):]...)
			heap.Fix(&hs, 0)
		} else {
			heap.Pop(&hs)
		}
	}
	return it.Error()
}

// head adds the first entry of a range behind a place to hs, if there is one.
func (l *lister) head(it *pebble.Iterator, prefix, place []byte, hs heads) heads {
	start := prefix
	if place != nil {
		start = append(append(append([]byte(nil), prefix...), place...), 0)
	}
	if it.SeekGE(start) && bytes.HasPrefix(it.Key(), prefix) {
		hs = append(hs, head{prefix, append([]byte(nil), it.Key()[len(prefix):]...)})
	}
	return hs
}
