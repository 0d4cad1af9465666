package memstore_test

import (
	"errors"
	"testing"
	"time"

	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/store/memstore"
	"github.com/headrace/headrace/store/storetest"
	"github.com/headrace/headrace/task"
)

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		data := new(memstore.Data)
		return storetest.Harness{Open: func(*testing.T) store.Store { return memstore.Open(data) }}
	})
}

// A fault stops a call before it does anything, or loses the answer of what it did.
func TestFaults(t *testing.T) {
	data := new(memstore.Data)
	s, other := memstore.Open(data), memstore.Open(data)
	fault := memstore.Fault{Err: store.ErrFull}
	s.Fail = func(string) memstore.Fault { return fault }
	if _, err := s.Acquire(t.Context(), 1, 0); !errors.Is(err, store.ErrFull) {
		t.Errorf("acquire = %v", err)
	}
	if epoch, err := other.Epoch(t.Context(), 1); epoch != 0 || err != nil {
		t.Errorf("epoch after a refusal = %d, %v", epoch, err)
	}
	fault = memstore.Fault{Err: store.ErrUnknown, Apply: true}
	if _, err := s.Acquire(t.Context(), 1, 0); !errors.Is(err, store.ErrUnknown) {
		t.Errorf("acquire = %v", err)
	}
	if epoch, err := other.Epoch(t.Context(), 1); epoch != 1 || err != nil {
		t.Errorf("epoch after a lost answer = %d, %v", epoch, err)
	}
}

// A change that does not follow from what is stored is the caller's fault, and is shown at once.
func TestBrokenContractPanics(t *testing.T) {
	s := memstore.New()
	if _, err := s.Acquire(t.Context(), 1, 0); err != nil {
		t.Fatal(err)
	}
	a := &store.Task{ID: task.NewID(1, 1, 1), Tenant: "acme", Function: "f", State: task.Queued}
	commit := func(c store.Change) (panicked bool) {
		defer func() { panicked = recover() != nil }()
		_, _ = s.Commit(t.Context(), &store.Batch{Parts: []store.Part{{Partition: 1, Epoch: 1, Changes: []store.Change{c}}}})
		return false
	}
	if commit(store.Change{Op: store.Insert, Task: a}) {
		t.Fatal("an insert panics")
	}
	later := *a
	later.DueAt = a.DueAt.Add(time.Hour)
	end := *a
	end.State = task.Succeeded
	for name, c := range map[string]store.Change{
		"insert again": {Op: store.Insert, Task: a},
		"stale old":    {Op: store.Finish, Old: &later, Task: &end},
		"no old":       {Op: store.Finish, Task: &end},
		"not an end":   {Op: store.Finish, Old: a, Task: &later},
		"unknown task": {Op: store.Update, Old: &store.Task{ID: task.NewID(1, 9, 9)}, Task: &store.Task{ID: task.NewID(1, 9, 9)}},
	} {
		if !commit(c) {
			t.Errorf("%s is taken", name)
		}
	}
}
