package storetest

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// drain pages through a flow.
func drain(t *testing.T, e *env, f store.Flow, limit int) (all []*store.Task) {
	t.Helper()
	var at store.Key
	for {
		rows, more, err := e.s.Ready(t.Context(), 1, f, at, limit, 1<<30, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, rows...)
		if !more {
			return all
		}
		if len(rows) != limit {
			t.Fatalf("a page of %d rows, want %d, before the last", len(rows), limit)
		}
		at = rows[len(rows)-1].Key()
	}
}

// Priority is a head start; ties go by number; bands and functions are flows of their own.
func testReadyOrder(t *testing.T, e *env) {
	e.acquire(1)
	var want []*store.Task
	for i := range 60 {
		a := e.newTask(1, "acme", "f")
		a.Priority = uint8(i % 10)
		a.DueAt = base.Add(time.Duration(i*i%17) * 30 * time.Second)
		want = append(want, a)
		other := e.newTask(1, "acme", "f")
		other.Band = task.High
		next := e.newTask(1, "acme", "g")
		e.commit(1, insert(a), insert(other), insert(next))
	}
	slices.SortFunc(want, func(a, b *store.Task) int { return a.Key().Compare(b.Key()) })
	for _, limit := range []int{1, 7, 60, 100} {
		sameRows(t, fmt.Sprintf("pages of %d", limit), drain(t, e, want[0].Flow(), limit), want)
	}
}

// A page ends at its rows or bytes, but never before its first row. Large payloads are left out and
// don't count.
func testReadyLimits(t *testing.T, e *env) {
	e.acquire(1)
	for _, size := range []int{1000, 1000, 5000, 0, 100_000, 900} {
		a := e.newTask(1, "acme", "f")
		a.Payload, a.PayloadSize = bytes.Repeat([]byte{'p'}, size), size
		e.commit(1, insert(a))
		d := e.newTask(1, "acme", "f")
		d.Payload, d.PayloadSize, d.State = a.Payload, size, task.Scheduled
		e.commit(1, insert(d))
	}
	f := store.Flow{Tenant: "acme", Function: "f", Band: task.Normal}
	tests := []struct {
		limit, maxBytes, inline int
		sizes                   []int // -1: left out
		more                    bool
	}{
		{100, 1 << 20, 1 << 20, []int{1000, 1000, 5000, 0, 100_000, 900}, false},
		{6, 1 << 20, 1 << 20, []int{1000, 1000, 5000, 0, 100_000, 900}, false},
		{5, 1 << 20, 1 << 20, []int{1000, 1000, 5000, 0, 100_000}, true},
		{100, 1, 1 << 20, []int{1000}, true},
		{100, 2000, 1 << 20, []int{1000, 1000}, true},
		{100, 1999, 1 << 20, []int{1000}, true},
		{100, 7000, 1 << 20, []int{1000, 1000, 5000, 0}, true},
		{100, 2900, 1000, []int{1000, 1000, -1, 0, -1, 900}, false},
		{100, 0, 999, []int{-1, -1, -1, 0, -1}, true},
	}
	for _, tt := range tests {
		for _, index := range []string{"ready", "due"} {
			name := fmt.Sprint(index, tt)
			rows, more, err := e.s.Ready(t.Context(), 1, f, store.Key{}, tt.limit, tt.maxBytes, tt.inline)
			if index == "due" {
				rows, more, err = e.s.Due(t.Context(), 1, store.Key{}, base.Add(time.Hour), tt.limit, tt.maxBytes, tt.inline)
			}
			if err != nil || more != tt.more {
				t.Fatalf("%s: more %v, %v", name, more, err)
			}
			var got []int
			for _, r := range rows {
				n := len(r.Payload)
				if r.Payload == nil && r.PayloadSize > 0 {
					n = -1
				}
				got = append(got, n)
			}
			if !slices.Equal(got, tt.sizes) {
				t.Errorf("%s: payloads %v", name, got)
			}
		}
	}
}

// Due rows come by time, whatever their flow and priority, and not those that are due later.
func testDueOrder(t *testing.T, e *env) {
	e.acquire(1)
	var want []*store.Task
	for i := range 40 {
		a := e.newTask(1, "acme", string(rune('a'+i%5)))
		a.State = []task.State{task.Scheduled, task.Retrying}[i%2]
		a.Priority = uint8(i % 10)
		a.DueAt = base.Add(time.Duration(i*7%20) * time.Second)
		e.commit(1, insert(a), insert(e.newTask(1, "acme", "a")))
		if a.DueAt.Before(base.Add(15 * time.Second)) {
			want = append(want, a)
		}
	}
	slices.SortStableFunc(want, func(a, b *store.Task) int { return a.DueAt.Compare(b.DueAt) })
	for _, limit := range []int{1, 7, 30, 100} {
		var all []*store.Task
		var at store.Key
		for more := true; more; {
			var rows []*store.Task
			var err error
			rows, more, err = e.s.Due(t.Context(), 1, at, base.Add(15*time.Second), limit, 1<<30, 1<<20)
			if err != nil || len(rows) == 0 {
				t.Fatalf("due behind %v = %d rows, %v", at, len(rows), err)
			}
			all = append(all, rows...)
			last := rows[len(rows)-1]
			at = store.Key{Sort: last.DueAt.UnixMicro(), Seq: last.ID.Seq()}
		}
		sameRows(t, fmt.Sprintf("pages of %d", limit), all, want)
	}
}

// A row is in the ready index or in the due index, at one place, and in none when it has ended.
func testIndexMoves(t *testing.T, e *env) {
	e.acquire(1)
	a := e.newTask(1, "acme", "f")
	a.State = task.Scheduled
	e.commit(1, insert(a))
	steps := []func(b *store.Task){
		func(b *store.Task) { b.State = task.Queued },
		func(b *store.Task) { b.Record = &store.Record{Token: task.Token{Epoch: 1, Push: 1}, StartedAt: base} },
		func(b *store.Task) { b.State, b.Record, b.DueAt = task.Retrying, nil, base.Add(time.Minute) },
		func(b *store.Task) { b.DueAt = base.Add(2 * time.Minute) },
		func(b *store.Task) { b.State = task.Queued },
		func(b *store.Task) { b.DueAt = base.Add(3 * time.Minute) },
		func(b *store.Task) { b.Cancel = &store.Cancel{At: base} },
		func(b *store.Task) { b.State = task.Succeeded },
	}
	old := a
	for i, step := range steps {
		b := with(old, step)
		if b.State.Terminal() {
			e.commit(1, finish(old, b))
		} else {
			e.commit(1, update(old, b))
		}
		var ready, due int
		if !b.State.Terminal() {
			ready, due = 1, 0
			if b.State != task.Queued {
				ready, due = 0, 1
			}
		}
		rows, _, err := e.s.Ready(t.Context(), 1, b.Flow(), store.Key{}, 10, 0, 0)
		if err != nil || len(rows) != ready || ready == 1 && rows[0].Key() != b.Key() {
			t.Fatalf("step %d: ready = %v, %v; want %d", i, rows, err, ready)
		}
		rows, _, err = e.s.Due(t.Context(), 1, store.Key{}, base.Add(time.Hour), 10, 0, 0)
		if err != nil || len(rows) != due || due == 1 && !rows[0].DueAt.Equal(b.DueAt) {
			t.Fatalf("step %d: due = %v, %v; want %d", i, rows, err, due)
		}
		for _, live := range []bool{false, true} {
			rows, _, err = e.s.List(t.Context(), store.Filter{Tenant: "acme", Live: live, Finished: !live}, store.Cursor{}, 10)
			if err != nil || len(rows) != map[bool]int{true: 1}[live != b.State.Terminal()] {
				t.Fatalf("step %d: list live=%v = %v, %v", i, live, rows, err)
			}
		}
		r, err := e.s.Recover(t.Context(), 1)
		wantRecorded := b.Record != nil && !b.State.Terminal()
		wantCancel := b.Record == nil && b.Cancel != nil && !b.State.Terminal()
		if err != nil || (len(r.Recorded) == 1) != wantRecorded || (len(r.Cancels) == 1) != wantCancel {
			t.Fatalf("step %d: recovered %v and %v, %v", i, r.Recorded, r.Cancels, err)
		}
		old = b
	}
}

// Recover returns what a new owner needs, in order, and no payloads.
func testRecover(t *testing.T, e *env) {
	if r, err := e.s.Recover(t.Context(), 9); err != nil || r.Partition != (store.Partition{ID: 9}) || len(r.Functions) != 0 {
		t.Fatalf("recover of an unknown partition = %+v, %v", r, err)
	}
	e.acquire(1)
	e.acquire(2)
	policy := task.Policy{Version: 3, Timeout: time.Second, MaxAttempts: 7, Backoff: task.Backoff{Base: 1, Factor: 1.5, Max: 2},
		OrphanTimeout: 6 * time.Second, CancelGrace: 2 * time.Second, Exclusive: true, Downstream: "smtp", Cost: 3, Requires: "gpu=true", Prefers: "zone=a"}
	f := func(tenant, name string, version int64) *store.Function {
		p := policy
		p.Version = version
		return &store.Function{Tenant: tenant, Name: name, Policy: p}
	}
	put := func(f *store.Function) store.Change { return store.Change{Op: store.PutFunc, Func: f} }
	e.commit(1, put(f("acme", "g", 1)), put(f("acme", "f", 1)), put(f("ac", "z", 1)), put(f("acme", "g", 2)))
	e.commit(2, put(f("acme", "other", 1)))
	var recorded, cancels []*store.Task
	for i := range 30 {
		a := e.newTask(1, "acme", "f")
		if i%3 == 0 {
			a.Record = &store.Record{Token: task.Token{Epoch: 1, Push: uint64(i)}, Executor: "0123456789abcdef", StartedAt: base}
		}
		if i%5 == 0 {
			a.Cancel = &store.Cancel{At: base, Reason: "why"}
		}
		switch {
		case a.Record != nil:
			recorded = append(recorded, bare(a))
		case a.Cancel != nil:
			cancels = append(cancels, bare(a))
		}
		e.commit(1, insert(a))
	}
	e.reopen()
	r, err := e.s.Recover(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	want := []store.Function{*f("ac", "z", 1), *f("acme", "f", 1), *f("acme", "g", 2)}
	if !slices.Equal(r.Functions, want) {
		t.Errorf("functions %+v, want %+v", r.Functions, want)
	}
	sameRows(t, "recorded", r.Recorded, recorded)
	sameRows(t, "cancels", r.Cancels, cancels)
	if want := (store.Partition{ID: 1, Epoch: 1, Seq: 30, Ready: 30, Bytes: 210}); r.Partition != want {
		t.Errorf("partition %+v, want %+v", r.Partition, want)
	}
}

// The counters of partitions and flows are what counting the rows gives.
func testCounters(t *testing.T, e *env) {
	e.acquire(1)
	var hot []*store.Task
	for i := range 100 {
		a := e.newTask(1, fmt.Sprint("t", i%3), fmt.Sprint("f", i%4))
		a.Payload = bytes.Repeat([]byte{'p'}, i)
		a.PayloadSize, a.Band = i, task.Band(i%3)
		if i%5 == 0 {
			a.State = task.Scheduled
		}
		e.commit(1, insert(a))
		hot = append(hot, a)
		if i%2 == 1 {
			b := hot[i/2]
			e.commit(1, finish(b, ended(b, task.Cancelled)))
			hot[i/2] = nil
		}
	}
	want := store.Partition{ID: 1, Epoch: 1, Seq: 100}
	flows := map[store.Flow]store.FlowStat{}
	for _, a := range hot {
		switch {
		case a == nil:
			continue
		case a.Ready():
			want.Ready++
			f := flows[a.Flow()]
			flows[a.Flow()] = store.FlowStat{Flow: a.Flow(), Ready: f.Ready + 1, Bytes: f.Bytes + int64(a.PayloadSize)}
		default:
			want.Due++
		}
		want.Bytes += int64(a.PayloadSize)
	}
	for range 2 {
		if got := partitionOf(t, e, 1); got != want {
			t.Errorf("partition %+v, want %+v", got, want)
		}
		got, err := e.s.Flows(t.Context(), 1)
		if err != nil || len(got) != len(flows) {
			t.Errorf("%d flows, %v, want %d", len(got), err, len(flows))
		}
		for _, f := range got {
			if f != flows[f.Flow] {
				t.Errorf("flow %+v, want %+v", f, flows[f.Flow])
			}
		}
		e.reopen()
	}
}
