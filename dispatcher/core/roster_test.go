package core

import (
	"testing"
	"time"

	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/store/memstore"
	"github.com/headrace/headrace/task"
)

// All have answered, but a claim still waits for its task to be read: the grace does not end before the claim is
// taken, or the floor would make it void.
func TestGraceWaitsForTheReadOfAClaim(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	mem := memstore.New()
	epoch, err := mem.Acquire(t.Context(), 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	id := task.ID{}
	random := uint64(0)
	cfg := Config{Random: func() uint64 { random++; return random }}
	floors, loads := 0, []*Load(nil)
	run := func(c *Core, read bool) {
		for {
			for read && len(loads) > 0 {
				l := loads[0]
				loads = loads[1:]
				var a LoadAnswer
				switch l.Kind {
				case LoadGet:
					var row *store.Task
					row, a.Err = mem.Get(t.Context(), l.ID)
					a.Rows = []*store.Task{row}
				case LoadReady:
					a.Rows, a.More, a.Err = mem.Ready(t.Context(), l.Partition, l.Flow, l.After, l.Limit, l.MaxBytes, l.Inline)
				}
				c.Loaded(now, l, a)
			}
			fx := c.Take()
			if fx == nil {
				return
			}
			loads = append(loads, fx.Loads...)
			for _, a := range fx.Submitted {
				id = a.Items[0].ID
			}
			for _, commit := range append([]*Commit(nil), fx.Commits...) {
				for _, p := range commit.Batch.Parts {
					if p.Floor != 0 {
						floors++
					}
				}
				rs, err := mem.Commit(t.Context(), commit.Batch)
				c.Committed(now, now, commit, rs, err)
			}
		}
	}
	acquire := func(c *Core, a Acquired) {
		var err error
		if a.Recovered, err = mem.Recover(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		if a.Flows, err = mem.Flows(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		a.RaisedAt = now
		c.Trust(now.Add(time.Hour))
		c.Acquired(now, a)
	}
	old := New(cfg)
	acquire(old, Acquired{Epoch: epoch})
	old.Submit(now, &Submit{Reply: 1, Tenant: "acme", Partition: 1, Tasks: []*store.Task{{Tenant: "acme", Function: "f", Band: task.Normal}}})
	run(old, true)

	if epoch, err = mem.Acquire(t.Context(), 1, epoch); err != nil {
		t.Fatal(err)
	}
	c, x := New(cfg), []byte("the executor no1")
	floors, loads = 0, nil
	acquire(c, Acquired{Epoch: epoch, Executors: []string{string(x)}, Complete: true})
	hello := &headracev1.Hello{ExecutorId: x, Name: "x", Slots: 1, Functions: []*headracev1.FunctionDeclaration{{Tenant: "acme", Name: "f"}}}
	if err := c.OpenSession(now, 1, hello); err != nil {
		t.Fatal(err)
	}
	run(c, false)
	answer := &headracev1.SessionRequest{Hello: &headracev1.Hello{ExecutorId: x,
		Epochs: []*headracev1.PartitionEpoch{{Partition: 1, Epoch: epoch}},
		Claims: []*headracev1.Claim{{TaskId: id[:], Token: &headracev1.Token{Epoch: epoch - 1, Push: 1}, Tenant: "acme"}}}}
	if err := c.Message(now, 1, answer); err != nil {
		t.Fatal(err)
	}
	run(c, false)
	if floors != 0 {
		t.Fatal("the floor was raised while the task of a claim was read")
	}
	run(c, true)
	if _, v, ok := c.View(id); floors != 1 || !ok || !v.Running {
		t.Errorf("after the read: %d floors, running %v", floors, v.Running)
	}
}
