package chaos

import (
	"testing"
	"time"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/internal/ledger"
	"github.com/headrace/headrace/internal/localcluster"
	"github.com/headrace/headrace/task"
)

// All nodes restart in order, one after the other, as in an upgrade, while a long task runs and others flow. The long task
// never notices, and no caller sees an error.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, localcluster.Options{})
	w.worker("x1", 200)
	w.worker("x2", 200)
	length := pick("20s", "60s")
	long := w.submitAll(1, w.c.Nodes[1:2], func(int) client.Task { return client.Task{Function: "slow", Payload: []byte(length)} })
	w.started(long)
	f := w.flow(pick(100, 500), w.c.Nodes, nap)
	w.goOn(time.Second)
	from := time.Now()
	for _, n := range w.c.Nodes {
		began := time.Now()
		if err := n.Stop(); err != nil {
			t.Fatal(err)
		}
		stopped := time.Since(began)
		if err := n.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: stopped in %v, back after %v", n.Name, stopped.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
		w.goOn(pick(2*time.Second, 8*time.Second))
	}
	to := time.Now()
	f.stop()
	f.report("the flow")
	runs := w.settle(2 * time.Minute)
	info, err := w.client(w.c.Nodes[0], w.tenants[0]).Get(ledger.Within(t, 10*time.Second), client.ByID(long[0]))
	if err != nil {
		t.Fatal(err)
	}
	if r := runs[long[0]]; r.Starts != 1 || info.State != task.Succeeded || info.Attempt != 1 || info.Losses != 0 {
		t.Errorf("the long task: %v, attempt %d, %d losses, %+v; want one start and success", info.State, info.Attempt, info.Losses, r)
	}
	if n := again(runs); n > 0 {
		t.Errorf("%d tasks started more than once in orderly restarts", n)
	}
	w.steady("while nodes restart", runs, from, to, 0)
	w.nothingTwice()
}
