package chaos

import (
	"testing"
	"time"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/internal/localcluster"
)

// Nodes are killed one after the other while tasks flow. None is lost, what runs goes on with one start, and each
// partition of a dead node takes new submits and pushes waiting tasks soon after its lease has run out.
func TestKillOwner(t *testing.T) {
	t.Parallel()
	w := newWorld(t, localcluster.Options{})
	slots := pick(40, 100)
	w.worker("x1", slots)
	w.worker("x2", slots)
	holds := w.submitAll(20, w.c.Nodes, func(int) client.Task { return client.Task{Function: "hold"} })
	w.started(holds)

	// The slots run at most 400 (1,000) tasks of 200 ms a second: some wait all the while.
	w.submitAll(pick(5_000, 50_000), w.c.Nodes, nap)
	var kills []*takeover
	for _, i := range pick([]int{0}, []int{1, 2}) {
		victim := w.c.Nodes[i]
		k := w.watch(victim)
		fresh := w.flow(40, others(w.c.Nodes, victim), work, k.tenant)
		w.goOn(500 * time.Millisecond)
		k.broken(victim.Kill)
		k.opened(w.ttl + 1500*time.Millisecond)
		w.goOn(pick(2*time.Second, 5*time.Second)) // what one kill's next owners got is pushed before they are killed
		fresh.stop()
		fresh.report("the probe")
		if err := victim.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		kills = append(kills, k)
	}
	runs := w.settle(pick(time.Minute, 5*time.Minute))
	for _, k := range kills {
		k.report(runs, w.ttl+1500*time.Millisecond, w.ttl+3*time.Second)
	}
	if n := again(runs); n > 0 {
		t.Errorf("%d tasks started more than once, although no executor died", n)
	}
}
