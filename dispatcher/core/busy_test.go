package core

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// A client id that another commit is taking fails its own item, as one to be tried again; the others of its submit are
// stored and dispatched (B102).
func TestBusyClientIDFailsItsItemOnly(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	c := New(Config{Random: r.Uint64})
	c.Trust(began.Add(time.Hour))
	c.Acquired(began, Acquired{Epoch: 1, RaisedAt: began, Recovered: &store.Recovered{Partition: store.Partition{ID: 1}}})
	row := func(client string) *store.Task {
		return &store.Task{Tenant: "acme", Function: "f", ClientID: client, Band: task.Normal, Priority: 5, DueAt: began, FirstDueAt: began}
	}
	c.Submit(began, &Submit{Reply: 7, Tenant: "acme", Partition: 1, Tasks: []*store.Task{row("a"), row("b"), row("c")}})
	for now, turns := began, 0; turns < 100; turns++ {
		now = now.Add(time.Millisecond)
		fx := c.Take()
		if fx == nil {
			c.Tick(now)
			continue
		}
		for _, cm := range fx.Commits {
			rs := make([]store.PartResult, len(cm.Batch.Parts))
			for i := range rs {
				for j, ch := range cm.Batch.Parts[i].Changes {
					if ch.Op == store.Insert && ch.Task.ClientID == "b" {
						rs[i].Busy = map[int]bool{j: true}
					}
				}
			}
			c.Committed(now, now, cm, rs, nil)
		}
		for _, a := range fx.Submitted {
			if a.Err != nil || len(a.Items) != 3 || a.Items[0].Err != nil || a.Items[2].Err != nil || a.Items[0].ID.IsZero() {
				t.Errorf("answer %+v", a)
			}
			if !errors.Is(a.Items[1].Err, ErrStoreSlow) || !a.Items[1].ID.IsZero() {
				t.Errorf("the busy one: %+v", a.Items[1])
			}
			if err := c.Check(); err != nil {
				t.Error(err)
			}
			if st := c.Stats(); len(st) != 1 || st[0].Backlog != 2 {
				t.Errorf("partitions %+v", st)
			}
			return
		}
	}
	t.Fatal("no answer")
}
