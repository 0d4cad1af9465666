package core

import (
	"errors"
	"testing"
	"time"

	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/store/memstore"
	"github.com/headrace/headrace/task"
)

// A node that is asked for a request says what it stored, waits for a commit that is under way, and takes no first
// call of a request that it was asked for in vain.
func TestLookBarsFirstCalls(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	mem := memstore.New()
	epoch, err := mem.Acquire(t.Context(), 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	recovered, err := mem.Recover(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	random := uint64(0)
	c := New(Config{Random: func() uint64 { random++; return random }})
	c.Trust(now.Add(time.Hour))
	c.Acquired(now, Acquired{Epoch: epoch, RaisedAt: now, Recovered: recovered})

	var commits []*Commit
	answers := map[ReplyID]SubmitAnswer{}
	run := func(commit bool) { // does what the core asks for
		for {
			for commit && len(commits) > 0 {
				rs, err := mem.Commit(t.Context(), commits[0].Batch)
				c.Committed(now, now, commits[0], rs, err)
				commits = commits[1:]
			}
			fx := c.Take()
			if fx == nil {
				return
			}
			for _, a := range fx.Submitted {
				answers[a.Reply] = a
			}
			for _, l := range fx.Loads {
				a := LoadAnswer{}
				if l.Kind == LoadRequest {
					a.Request, a.Err = mem.Request(t.Context(), l.Partition, l.Tenant, l.RequestID, now)
				}
				c.Loaded(now, l, a)
			}
			commits = append(commits, fx.Commits...)
		}
	}
	submit := func(reply ReplyID, id string, retry bool) {
		c.Submit(now, &Submit{Reply: reply, Tenant: "acme", Partition: 1, RequestID: id, Retry: retry, Candidates: []uint32{1},
			Tasks: []*store.Task{{Tenant: "acme", Function: "f", Band: task.Normal}}})
	}
	look := func(reply ReplyID, id string) {
		c.Look(now, Look{Reply: reply, Partition: 1, Tenant: "acme", RequestID: id})
	}

	// Under way: the answer comes with the commit.
	submit(1, "under way 123456", false)
	run(false)
	look(2, "under way 123456")
	run(false)
	if _, said := answers[2]; said {
		t.Fatal("answered before the commit is known")
	}
	run(true)
	if a := answers[2]; a.Err != nil || len(a.Items) != 1 || a.Items[0].ID != answers[1].Items[0].ID {
		t.Errorf("after the commit: %+v, the submit %+v", a, answers[1])
	}
	// Not here: then no first call is taken, a retry is.
	look(3, "nothing 12345678")
	run(true)
	if a, said := answers[3]; !said || a.Err != nil || len(a.Items) != 0 {
		t.Errorf("nothing is stored: %+v", a)
	}
	submit(4, "nothing 12345678", false)
	run(true)
	if a := answers[4]; !errors.Is(a.Err, ErrUnknownOutcome) {
		t.Errorf("the late first call: %+v", a)
	}
	submit(5, "nothing 12345678", true)
	run(true)
	look(6, "nothing 12345678")
	run(true)
	if a, b := answers[5], answers[6]; a.Err != nil || len(b.Items) != 1 || b.Items[0].ID != a.Items[0].ID {
		t.Errorf("the retry %+v, the look after it %+v", a, b)
	}
	// Nobody's.
	c.Look(now, Look{Reply: 7, Partition: 2, Tenant: "acme", RequestID: "nothing 12345678"})
	run(true)
	if a := answers[7]; !errors.Is(a.Err, ErrNotOwner) {
		t.Errorf("a partition of somebody else: %+v", a)
	}
}
