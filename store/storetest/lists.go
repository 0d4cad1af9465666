package storetest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// Rows of one instant are told apart by id: pages of any size see each of them once, in one order.
func testListPages(t *testing.T, e *env) {
	total := 5000
	if testing.Short() {
		total = 600
	}
	e.acquire(1)
	e.acquire(2)
	var want []string
	for i := 0; i < total; {
		parts := make([]store.Part, 2)
		for j := range parts {
			id := uint32(j + 1)
			for range 100 {
				a := e.newTask(id, "acme", fmt.Sprint("f", i%3))
				a.CreatedAt = base
				parts[j].Changes = append(parts[j].Changes, insert(a))
				want = append(want, ids([]*store.Task{a})...)
				i++
			}
			parts[j].Partition, parts[j].Epoch = id, 1
		}
		if _, err := e.s.Commit(t.Context(), &store.Batch{At: base, Parts: parts}); err != nil {
			t.Fatal(err)
		}
	}
	for _, size := range []int{1, 7, 100, 1000, total, total + 1} {
		if size == 1 && total > 1000 && testing.Short() {
			continue
		}
		got := listAll(t, e, store.Filter{Tenant: "acme"}, size)
		if size == 1 {
			// The order of the others is compared with this one.
			sorted := slices.Sorted(slices.Values(ids(got)))
			if w := slices.Sorted(slices.Values(want)); !slices.Equal(sorted, w) {
				t.Fatalf("pages of 1: %d rows, %d distinct, want %d", len(got), len(slices.Compact(sorted)), total)
			}
			if !slices.IsSortedFunc(got, func(a, b *store.Task) int { return b.ID.Compare(a.ID) }) {
				t.Fatal("rows of one instant are not by id, the largest first")
			}
			want = ids(got)
		}
		if !slices.Equal(ids(got), want) {
			t.Fatalf("pages of %d: %d rows, not those of pages of 1", size, len(got))
		}
	}
}

// listAll pages through a list.
func listAll(t *testing.T, e *env, f store.Filter, size int) (all []*store.Task) {
	t.Helper()
	var at store.Cursor
	for {
		rows, more, err := e.s.List(t.Context(), f, at, size)
		if err != nil {
			t.Fatal(err)
		}
		if len(rows) > size || more && len(rows) != size {
			t.Fatalf("list %+v: a page of %d, more %v", f, len(rows), more)
		}
		all = append(all, rows...)
		if !more {
			return all
		}
		last := rows[len(rows)-1]
		at = store.Cursor{CreatedAt: last.CreatedAt, ID: last.ID}
	}
}

// Filters narrow, alone and together, newest first.
func testListFilters(t *testing.T, e *env) {
	e.acquire(1)
	var all []*store.Task
	states := []task.State{task.Scheduled, task.Queued, task.Retrying, task.Succeeded, task.Failed, task.Cancelled, task.Expired}
	for i := range 210 {
		a := e.newTask(1, "acme", fmt.Sprint("f", i%3))
		a.CreatedAt = base.Add(time.Duration(i*37%50) * time.Second)
		a.Labels = map[string]string{"n": fmt.Sprint(i % 2), "all": "yes"}
		end := states[i%len(states)]
		if !end.Terminal() {
			a.State = end
		}
		e.commit(1, insert(a))
		if end.Terminal() {
			done := ended(a, end)
			done.Result = []byte("r")
			e.commit(1, finish(a, done))
			a = done
		}
		all = append(all, bare(a))
	}
	e.commit(1, insert(e.newTask(1, "globex", "f0")))
	slices.SortFunc(all, func(a, b *store.Task) int {
		if c := b.CreatedAt.Compare(a.CreatedAt); c != 0 {
			return c
		}
		return b.ID.Compare(a.ID)
	})
	for _, function := range []string{"", "f0", "f1", "none"} {
		for state := task.StateUnspecified; state <= task.Expired; state++ {
			for _, label := range []string{"", "n=1", "all=yes", "all="} {
				for live := range 3 {
					f := store.Filter{Tenant: "acme", Function: function, State: state, Label: label, Live: live == 1, Finished: live == 2}
					var want []*store.Task
					for _, a := range all {
						if (function == "" || a.Function == function) && (state == 0 || a.State == state) &&
							(label == "" || label == "all=yes" || label == "n=1" && a.Labels["n"] == "1") &&
							(live == 0 || (live == 2) == a.State.Terminal()) {
							want = append(want, a)
						}
					}
					sameRows(t, fmt.Sprintf("%+v", f), listAll(t, e, f, 1000), want)
					sameRows(t, fmt.Sprintf("%+v by 9", f), listAll(t, e, f, 9), want)
				}
			}
		}
	}
}
