package storetest

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// A client's id belongs to the first task that takes it, in its tenant, for as long as the record is
// there; the second insert stores nothing and is told who holds it.
func testClientIDs(t *testing.T, e *env) {
	e.acquire(1)
	e.acquire(2)
	a := e.newTask(1, "acme", "f")
	a.ClientID, a.PayloadHash = "order-1", "0123456789abcdef"
	again, other := e.newTask(1, "acme", "f"), e.newTask(1, "globex", "f")
	again.ClientID, other.ClientID = "order-1", "order-1"
	r := e.commit(1, insert(a), insert(again), insert(other))
	if len(r.Existing) != 1 {
		t.Fatalf("existing = %v, want one", r.Existing)
	}
	same(t, "holder in the same batch", r.Existing[1], bare(a))
	elsewhere := e.newTask(2, "acme", "g")
	elsewhere.ClientID = "order-1"
	free := e.newTask(2, "acme", "g")
	r = e.commit(2, insert(free), insert(elsewhere))
	same(t, "holder in another partition", r.Existing[1], bare(a))
	for _, refused := range []*store.Task{again, elsewhere} {
		if _, err := e.s.Get(t.Context(), refused.ID); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("a refused task is there: %v", err)
		}
	}
	if p := partitionOf(t, e, 2); p.Ready != 1 || p.Bytes != 7 {
		t.Errorf("counters count a refused task: %+v", p)
	}
	done := ended(a, task.Succeeded)
	done.Result = []byte("result")
	e.commit(1, finish(a, done))
	e.reopen()
	r = e.commit(2, insert(elsewhere))
	same(t, "holder that has ended", r.Existing[0], bare(done))
	if id, err := e.s.ByClientID(t.Context(), "acme", "order-1"); id != a.ID || err != nil {
		t.Errorf("by client id = %v, %v", id, err)
	}
	for _, miss := range [][2]string{{"acme", "order-"}, {"acme", "order-11"}, {"acm", "order-1"}, {"acme", ""}} {
		if id, err := e.s.ByClientID(t.Context(), miss[0], miss[1]); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("by client id %q = %v, %v", miss, id, err)
		}
	}
}

// A duplicate is never turned away in favour of a task that is not stored.
func testClientIDOfRefusedPart(t *testing.T, e *env) {
	old := e.acquire(1)
	e.acquire(1)
	e.acquire(2)
	a, b := e.newTask(1, "acme", "f"), e.newTask(2, "acme", "f")
	a.ClientID, b.ClientID = "order-1", "order-1"
	rs, err := e.s.Commit(t.Context(), &store.Batch{At: base, Parts: []store.Part{
		{Partition: 1, Epoch: old, Changes: []store.Change{insert(a)}},
		{Partition: 2, Epoch: e.epochs[2], Changes: []store.Change{insert(b)}},
	}})
	if err != nil || rs[1].Err != nil || len(rs[1].Existing) != 0 {
		t.Fatalf("commit = %v, %v", rs, err)
	}
	if id, err := e.s.ByClientID(t.Context(), "acme", "order-1"); id != b.ID || err != nil {
		t.Errorf("by client id = %v, %v; want %v", id, err, b.ID)
	}
}

// A request is found by its partition, tenant and id from ten minutes ago to a minute ahead.
func testRequests(t *testing.T, e *env) {
	e.acquire(1)
	e.acquire(2)
	q := store.Request{ID: "\x00\x01\xff3456789abcdef", Tenant: "acme", At: base.Add(30 * time.Second),
		IDs: []task.ID{task.NewID(1, 1, 1), {}, task.NewID(1, 2, 2)}, Dedup: []bool{true, false, false}}
	plain := store.Request{ID: "plain-0123456789", Tenant: "acme", IDs: []task.ID{task.NewID(1, 3, 3)}}
	e.commitPart(store.Part{Partition: 1, Epoch: 1, Requests: []store.Request{q, plain}})
	e.reopen()
	get := func(partition uint32, tenant, id string, now time.Time) *store.Request {
		r, err := e.s.Request(t.Context(), partition, tenant, id, now)
		if err != nil && !errors.Is(err, store.ErrNotFound) || err == nil && r == nil {
			t.Fatal(r, err)
		}
		return r
	}
	for _, d := range []time.Duration{-time.Minute, 0, time.Second, store.RequestLife} {
		if r := get(1, "acme", q.ID, q.At.Add(d)); r == nil || fmt.Sprint(*r) != fmt.Sprint(q) {
			t.Errorf("after %v: %+v, want %+v", d, r, q)
		}
	}
	for _, d := range []time.Duration{-2 * time.Minute, -time.Minute - 1000, store.RequestLife + time.Microsecond, 24 * time.Hour} {
		if r := get(1, "acme", q.ID, q.At.Add(d)); r != nil {
			t.Errorf("after %v: %+v, want nothing", d, r)
		}
	}
	if get(2, "acme", q.ID, q.At) != nil || get(1, "globex", q.ID, q.At) != nil || get(1, "acme", q.ID+"x", q.At) != nil {
		t.Error("a request is found elsewhere")
	}
	if r := get(1, "acme", plain.ID, base); r == nil || !r.At.Equal(base) || r.Dedup != nil || !slices.Equal(r.IDs, plain.IDs) {
		t.Errorf("a request without a time and hits: %+v", r)
	}
	// New ones push out old ones, but none that may still be asked for.
	for i := range 30 {
		at := base.Add(time.Duration(i) * time.Minute)
		id := fmt.Sprintf("request-%08d", i)
		rs, err := e.s.Commit(t.Context(), &store.Batch{At: at, Parts: []store.Part{
			{Partition: 1, Epoch: 1, Requests: []store.Request{{ID: id, Tenant: "acme", At: at}}}}})
		if err != nil || rs[0].Err != nil {
			t.Fatal(rs, err)
		}
		for j := range i + 1 {
			r := get(1, "acme", fmt.Sprintf("request-%08d", j), at)
			if (r != nil) != (j >= i-10) {
				t.Fatalf("at minute %d: request of minute %d: %v", i, j, r)
			}
		}
	}
}

// A smaller floor or number changes nothing.
func testFloorAndSeq(t *testing.T, e *env) {
	e.acquire(1)
	for _, step := range []struct{ floor, seq, wantFloor, wantSeq uint64 }{
		{0, 0, 0, 0}, {5, 9, 5, 9}, {0, 0, 5, 9}, {4, 8, 5, 9}, {6, 1 << 40, 6, 1 << 40},
	} {
		e.commitPart(store.Part{Partition: 1, Epoch: 1, Floor: step.floor, Seq: step.seq})
		if p := partitionOf(t, e, 1); p.Floor != step.wantFloor || p.Seq != step.wantSeq {
			t.Errorf("after %+v: %+v", step, p)
		}
	}
	e.acquire(1)
	if p := partitionOf(t, e, 1); p.Epoch != 2 || p.Floor != 6 || p.Seq != 1<<40 {
		t.Errorf("after a change of owner: %+v", p)
	}
}

// The last commit of an owner says that nothing is left in the air; one that is refused says nothing.
func testRelease(t *testing.T, e *env) {
	first := e.acquire(1)
	if p := partitionOf(t, e, 1); p.Released != 0 {
		t.Errorf("at first: %+v", p)
	}
	e.commitPart(store.Part{Partition: 1, Epoch: first, Release: true})
	e.reopen()
	second := e.acquire(1)
	r, err := e.s.Recover(t.Context(), 1)
	if err != nil || r.Partition.Released != first || r.Partition.Epoch != second {
		t.Errorf("after a release and a change of owner: %+v, %v", r.Partition, err)
	}
	third := e.acquire(1)
	if rs, err := e.s.Commit(t.Context(), &store.Batch{Parts: []store.Part{{Partition: 1, Epoch: second, Release: true}}}); err != nil || !errors.Is(rs[0].Err, store.ErrFenced) {
		t.Errorf("late release = %v, %v", rs, err)
	}
	e.commitPart(store.Part{Partition: 1, Epoch: third, Floor: 1})
	if p := partitionOf(t, e, 1); p.Released != first {
		t.Errorf("after a late release: %+v", p)
	}
}

// Names that are the start of other names, and ids with odd bytes, don't run into each other.
func testNamesApart(t *testing.T, e *env) {
	e.acquire(1)
	names := []string{"a", "a.", "a0", "aa", "a-b", "ab"}
	labels := []string{"k", "k=", "k=v", "k=v\x00", "k=vv", "k\x00"}
	counts := map[string]int{}
	for i, tenant := range names {
		for j, function := range names {
			for n := range 1 + i + j {
				a := e.newTask(1, tenant, function)
				a.ClientID = names[j] + fmt.Sprint(n)
				a.Labels = map[string]string{labels[j]: ""}
				e.commit(1, insert(a))
				counts[tenant]++
				counts[tenant+"/"+function]++
			}
		}
	}
	list := func(f store.Filter) int {
		rows, more, err := e.s.List(t.Context(), f, store.Cursor{}, 1000)
		if err != nil || more {
			t.Fatal(more, err)
		}
		for _, r := range rows {
			if r.Tenant != f.Tenant {
				t.Fatalf("list of %q has a task of %q", f.Tenant, r.Tenant)
			}
		}
		return len(rows)
	}
	for _, tenant := range append(names, "", "b") {
		if n := list(store.Filter{Tenant: tenant}); n != counts[tenant] {
			t.Errorf("tenant %q: %d rows, want %d", tenant, n, counts[tenant])
		}
		for j, function := range names {
			want := counts[tenant+"/"+function]
			if n := list(store.Filter{Tenant: tenant, Function: function}); n != want {
				t.Errorf("function %q of %q: %d rows, want %d", function, tenant, n, want)
			}
			if n := list(store.Filter{Tenant: tenant, Label: labels[j] + "="}); n != want {
				t.Errorf("label %q of %q: %d rows, want %d", labels[j], tenant, n, want)
			}
			if n := len(drain(t, e, store.Flow{Tenant: tenant, Function: function, Band: task.Normal}, 50)); n != want {
				t.Errorf("flow %q of %q: %d rows, want %d", function, tenant, n, want)
			}
		}
	}
}

// What Commit answered is there after a crash; an owner goes on under a new epoch.
func testCrash(t *testing.T, e *env) {
	e.acquire(1)
	var all []*store.Task
	for i := range 20 {
		a := e.newTask(1, "acme", "f")
		e.commit(1, insert(a))
		all = append(all, a)
		if i%3 == 0 {
			done := ended(a, task.Failed)
			e.commit(1, finish(a, done))
			done.Payload = a.Payload
			all[i] = done
		}
		if i%4 == 3 {
			e.reopen()
			for _, a := range all {
				same(t, fmt.Sprintf("after crash at %d", i), e.get(a.ID), a)
			}
			e.acquire(1)
		}
	}
}
