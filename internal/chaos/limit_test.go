package chaos

import (
	"testing"
	"time"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/internal/ledger"
	"github.com/headrace/headrace/internal/localcluster"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
)

// A limit that a user has set is never exceeded, by the executors' own count, while nodes are killed and started; nothing is
// lost, and all of it is used.
func TestLimitOverNodes(t *testing.T) {
	onlyLong(t)
	t.Parallel()
	const limit, tasks = 12, 4000
	w := newWorld(t, localcluster.Options{})
	w.worker("x1", 100)
	w.worker("x2", 100)
	_, err := w.ask(w.c.Nodes[0]).SetBound(ledger.Within(t, 10*time.Second), &headracev1.SetBoundRequest{Tenant: "t0", Function: "nap", Concurrency: limit})
	if err != nil {
		t.Fatal(err)
	}
	w.goOn(2 * time.Second) // every node has heard of it
	cl := w.client(w.c.Nodes[0], "t0")
	for n := 0; n < tasks; n += 1000 {
		var batch []client.Task
		for i := range 1000 {
			batch = append(batch, nap(n+i))
		}
		asked := time.Now()
		items, err := cl.SubmitBatch(ledger.Within(t, time.Minute), batch)
		if err != nil {
			t.Fatal(err)
		}
		for _, it := range items {
			if it.Err != nil {
				t.Fatal(it.Err)
			}
			w.took("t0", it.ID, asked)
		}
	}
	w.goOn(5 * time.Second)
	for _, i := range []int{1, 2, 1} {
		victim := w.c.Nodes[i]
		victim.Kill()
		w.goOn(w.ttl + 5*time.Second)
		if err := victim.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.goOn(5 * time.Second)
	}
	w.settle(5 * time.Minute)
	most, all := ledger.AtOnce(t, w.workers...)
	t.Logf("%d starts, %d at once", all, most)
	if most > limit || most < limit*3/4 || all < tasks {
		t.Errorf("%d starts, %d at once, the limit is %d", all, most, limit)
	}
}
