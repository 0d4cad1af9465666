package chaos

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/internal/ledger"
	"github.com/headrace/headrace/internal/localcluster"
)

// A million tasks wait. A node hands over in order, then one is killed, then one together with an executor: each time
// the next owners push soon, hold no more than their share in memory, and only what the dead executor had recorded waits for
// its orphan timeout.
func TestMillionWaiting(t *testing.T) {
	onlyLong(t)
	w := newWorld(t, localcluster.Options{})
	n := waiting(t)
	began := time.Now()
	w.submitAll(n, w.c.Nodes, func(i int) client.Task { return client.Task{Function: "nap", Payload: fmt.Appendf(nil, "%040d", i)} })
	t.Logf("%d tasks submitted in %v", n, time.Since(began).Round(time.Second))

	// Three executors, which do not make a dent: a slot does five tasks a second. Each has some long ones, of partitions of
	// each node.
	var xs []*ledger.Worker
	for i := range 3 {
		xs = append(xs, w.worker(fmt.Sprint("x", i+1), 20))
	}
	holds := w.submitHolds(12, func(int) client.Task { return client.Task{Function: "hold"} })
	w.started(holds)
	w.goOn(5 * time.Second) // what runs is recorded after a second

	graceful := w.watch(w.c.Nodes[0])
	graceful.probes()
	before := w.memory(w.c.Nodes[1:])
	graceful.broken(w.c.Nodes[0].Term)
	graceful.opened(5 * time.Second)
	w.goOn(5 * time.Second)
	w.grew(graceful, before)
	w.again(w.c.Nodes[0])

	killed := w.watch(w.c.Nodes[1])
	rest := others(w.c.Nodes, w.c.Nodes[1])
	killed.probes()
	before = w.memory(rest)
	killed.broken(w.c.Nodes[1].Kill)
	killed.opened(w.ttl + 3*time.Second)
	w.goOn(5 * time.Second)
	w.grew(killed, before)
	w.again(w.c.Nodes[1])

	// A partition whose owners die twice within two minutes of acquiring it is opened with care (ADR 25): what was read of it is tried in
	// groups, and its waiting tasks may take some seconds more. That is another row's; here the owners have proved themselves.
	w.goOn(2*time.Minute + 10*time.Second)

	both := w.watch(w.c.Nodes[2])
	both.probes()
	both.broken(func() error {
		xs[2].Signal(syscall.SIGKILL)
		return w.c.Nodes[2].Kill()
	})
	both.opened(w.ttl + 3*time.Second)
	w.goOn(10 * time.Second)
	w.again(w.c.Nodes[2])

	runs := ledger.Read(t, w.workers...)
	graceful.gap(runs, 200*time.Millisecond)
	killed.report(runs, 0, w.ttl+3*time.Second)
	both.report(runs, 0, w.ttl+3*time.Second)

	// The rest runs on executors with room, so that the books can be closed.
	for i := range 3 {
		w.worker(fmt.Sprint("y", i+1), 1000)
	}
	runs = w.settle(30 * time.Minute)
	w.recorded(both, ledger.Read(t, xs[2]), runs)
}

// orphanTimeout is that of functions that say nothing of it.
const orphanTimeout = 30 * time.Second

// recorded looks at the tasks that a dead executor had run for longer than a second: each started once more, when its
// orphan timeout was over, which the new owner counts from when it raised the epoch.
func (w *world) recorded(k *takeover, dead, runs map[string]*ledger.Runs) {
	w.t.Helper()
	var last time.Duration
	looked := 0
	for id, r := range dead {
		if r.Ends > 0 || k.at.Sub(r.First) < 2*time.Second {
			continue
		}
		looked++
		again := runs[id]
		if again.Starts != 2 {
			w.t.Errorf("task %s, which the dead executor had, started %d times, want 2", id, again.Starts)
		}
		for _, at := range again.Times {
			last = max(last, at.Sub(k.at))
		}
	}
	bound := w.ttl + orphanTimeout + time.Second
	w.t.Logf("%d recorded tasks of the dead executor: the last started again after %v; bound %v", looked, last.Round(time.Millisecond), bound)
	if looked == 0 || last > bound {
		w.t.Errorf("recorded tasks of the dead executor: %d, the last after %v", looked, last)
	}
}

// probes gives the partitions that are about to lose their owner some tasks of a tenant of their own. Its share of the
// executors is its own, and of equal age in each partition: that a partition pushes none of them is not for its queue.
func (k *takeover) probes() {
	k.w.t.Helper()
	k.w.submitAll(3000, others(k.w.c.Nodes, k.victim), work, k.tenant)
	k.w.goOn(2 * time.Second)
}

// waiting is how many tasks wait; HEADRACE_CHAOS_WAITING makes it fewer, to try the row.
func waiting(t *testing.T) int {
	text := os.Getenv("HEADRACE_CHAOS_WAITING")
	if text == "" {
		return 1_000_000
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("HEADRACE_CHAOS_WAITING: %v", err)
	}
	return n
}

// again starts a node that has ended, and waits until it owns something.
func (w *world) again(n *localcluster.Node) {
	w.t.Helper()
	if err := n.Ended(ledger.Within(w.t, time.Minute)); err != nil {
		w.t.Fatal(err)
	}
	if err := n.Start(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	w.eventually(30*time.Second, "the node owns partitions again", func() bool {
		id := w.id(n)
		for _, p := range w.partitions(n) {
			if p.NodeId == id && p.State == "open" {
				return true
			}
		}
		return false
	})
}

// memory returns the resident sets of nodes in bytes.
func (w *world) memory(nodes []*localcluster.Node) map[*localcluster.Node]int64 {
	w.t.Helper()
	out := map[*localcluster.Node]int64{}
	for _, n := range nodes {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.Process().PID))
		if err != nil {
			w.t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
				kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
				if err != nil {
					w.t.Fatal(err)
				}
				out[n] = kib << 10
			}
		}
	}
	return out
}

// grewMax is by how much a node may grow for each partition that it takes over.
const grewMax = 128 << 20

// grew looks at how much memory the next owners took for the victim's partitions, as if one node had got them all in
// the worst case: the growth of each is held against one partition.
func (w *world) grew(k *takeover, before map[*localcluster.Node]int64) {
	w.t.Helper()
	after := w.memory(others(w.c.Nodes, k.victim))
	for n, rss := range after {
		d := rss - before[n]
		w.t.Logf("%s, after it took over from %s: %d MiB resident, %+d MiB", n.Name, k.victim.Name, rss>>20, d>>20)
		if d > grewMax {
			w.t.Errorf("%s grew by %d MiB, want at most %d for a partition", n.Name, d>>20, grewMax>>20)
		}
	}
}

// gap judges the longest time in which nothing of the probe's backlog was pushed while its partitions moved.
func (k *takeover) gap(runs map[string]*ledger.Runs, bound time.Duration) {
	k.w.t.Helper()
	from, to := k.at.Add(-100*time.Millisecond), k.at
	for _, at := range k.open {
		if at.After(to) {
			to = at
		}
	}
	probes := map[string]*ledger.Runs{}
	for _, a := range k.w.books() {
		if r := runs[a.id]; a.tenant == k.tenant && r != nil {
			probes[a.id] = r
		}
	}
	k.w.steady("hand-over of "+k.victim.Name, probes, from, to.Add(time.Second), bound)
}

// submitHolds submits tasks one by one, so that they lie in many partitions.
func (w *world) submitHolds(n int, task func(int) client.Task) (ids []string) {
	w.t.Helper()
	for i := range n {
		ids = append(ids, w.submitAll(1, w.c.Nodes[i%len(w.c.Nodes):][:1], task, w.tenants[i%len(w.tenants)])...)
	}
	return ids
}
