package storetest

import (
	"errors"
	"testing"

	"github.com/headrace/headrace/store"
)

// An epoch is raised from the one that the owner knows, by one; a second owner from there is refused.
func testEpochIsRaisedByCompareAndSet(t *testing.T, e *env) {
	ctx := t.Context()
	if epoch, err := e.s.Epoch(ctx, 3); epoch != 0 || err != nil {
		t.Fatalf("epoch of an unknown partition = %d, %v", epoch, err)
	}
	if _, err := e.s.Acquire(ctx, 3, 1); !errors.Is(err, store.ErrFenced) {
		t.Fatalf("acquire from an epoch that never was = %v", err)
	}
	for from := range store.Epoch(3) {
		if epoch, err := e.s.Acquire(ctx, 3, from); epoch != from+1 || err != nil {
			t.Fatalf("acquire from %d = %d, %v", from, epoch, err)
		}
		if _, err := e.s.Acquire(ctx, 3, from); !errors.Is(err, store.ErrFenced) {
			t.Fatalf("acquire from %d again = %v, want fenced", from, err)
		}
	}
	e.reopen()
	if epoch, err := e.s.Epoch(ctx, 3); epoch != 3 || err != nil {
		t.Fatalf("epoch after a crash = %d, %v", epoch, err)
	}
}

// The part of a superseded owner leaves nothing behind; the others commit in the same call.
func testOldEpochIsRefused(t *testing.T, e *env) {
	old := e.acquire(1)
	e.acquire(2)
	e.acquire(1)
	stale, good := e.newTask(1, "acme", "f"), e.newTask(2, "acme", "f")
	stale.ClientID = "order-1"
	rs, err := e.s.Commit(t.Context(), &store.Batch{At: base, Parts: []store.Part{
		{Partition: 1, Epoch: old, Changes: []store.Change{insert(stale)}, Floor: 9, Seq: 9,
			Requests: []store.Request{{ID: "0123456789abcdef", Tenant: "acme", At: base}}},
		{Partition: 2, Epoch: e.epochs[2], Changes: []store.Change{insert(good)}},
	}})
	if err != nil || len(rs) != 2 || !errors.Is(rs[0].Err, store.ErrFenced) || rs[1].Err != nil {
		t.Fatalf("commit = %v, %v; want the first part fenced", rs, err)
	}
	same(t, "the other part", e.get(good.ID), good)
	if _, err := e.s.Get(t.Context(), stale.ID); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("get of the refused task = %v", err)
	}
	if _, err := e.s.ByClientID(t.Context(), "acme", "order-1"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("client id of the refused task = %v", err)
	}
	if _, err := e.s.Request(t.Context(), 1, "acme", "0123456789abcdef", base); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("request of the refused part = %v", err)
	}
	r, err := e.s.Recover(t.Context(), 1)
	if err != nil || r.Partition != (store.Partition{ID: 1, Epoch: 2}) {
		t.Errorf("the refused part's partition = %+v, %v", r.Partition, err)
	}
}

// Nobody writes to a partition before it was acquired, under no epoch.
func testUnownedIsRefused(t *testing.T, e *env) {
	for epoch := range store.Epoch(2) {
		rs, err := e.s.Commit(t.Context(), &store.Batch{At: base, Parts: []store.Part{
			{Partition: 5, Epoch: epoch, Changes: []store.Change{insert(e.newTask(5, "acme", "f"))}}}})
		if err != nil || !errors.Is(rs[0].Err, store.ErrFenced) {
			t.Fatalf("commit under epoch %d = %v, %v; want fenced", epoch, rs, err)
		}
	}
	if ps, err := e.s.Partitions(t.Context()); len(ps) != 0 || err != nil {
		t.Fatalf("partitions = %v, %v; want none", ps, err)
	}
}

// An owner that was cut off and wakes up later can't write, whatever it holds.
func testTwoOwners(t *testing.T, e *env) {
	first := e.acquire(1)
	a := e.newTask(1, "acme", "f")
	e.commit(1, insert(a))
	e.acquire(1)
	rs, err := e.s.Commit(t.Context(), &store.Batch{At: base, Parts: []store.Part{
		{Partition: 1, Epoch: first, Changes: []store.Change{finish(a, ended(a, 5))}}}})
	if err != nil || !errors.Is(rs[0].Err, store.ErrFenced) {
		t.Fatalf("commit of the first owner = %v, %v; want fenced", rs, err)
	}
	same(t, "the task", e.get(a.ID), a)
}
