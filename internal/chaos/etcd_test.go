package chaos

import (
	"errors"
	"testing"
	"time"

	"github.com/headrace/headrace/internal/localcluster"
)

// All of etcd is gone for a while. Nobody becomes or stops being an owner, and work goes on; afterwards ownership moves
// again.
func TestNoEtcd(t *testing.T) {
	t.Parallel()
	w := newWorld(t, localcluster.Options{})
	w.worker("x1", 100)
	f := w.flow(pick(50, 200), w.c.Nodes, nap)
	w.goOn(2 * time.Second)
	before := w.epochs()

	from := time.Now()
	for _, m := range w.c.Etcd {
		if err := m.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	w.goOn(pick(10*time.Second, time.Minute))
	to := time.Now()
	if moved := changed(before, w.epochs()); moved > 0 {
		t.Errorf("%d partitions changed their owner while there was no etcd", moved)
	}
	for _, m := range w.c.Etcd {
		if err := m.Spawn(t.Context()); err != nil { // one alone does not serve
			t.Fatal(err)
		}
	}
	for _, m := range w.c.Etcd {
		if err := m.Serves(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	w.goOn(3 * time.Second)

	victim := w.c.Nodes[1]
	k := w.watch(victim)
	fresh := w.flow(40, others(w.c.Nodes, victim), work, k.tenant)
	k.broken(victim.Kill)
	k.opened(w.ttl + 3*time.Second)
	if err := victim.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	fresh.stop()
	f.stop()
	f.report("the flow")
	runs := w.settle(time.Minute)
	w.steady("without etcd", runs, from, to, 2*time.Second)
	k.report(runs, w.ttl+1500*time.Millisecond, 0)
}

// The leader of etcd is killed. No partition changes its owner, and nobody notices.
func TestEtcdLeaderDies(t *testing.T) {
	onlyLong(t)
	t.Parallel()
	w := newWorld(t, localcluster.Options{})
	w.worker("x1", 100)
	f := w.flow(200, w.c.Nodes, nap)
	w.goOn(2 * time.Second)
	before, from := w.epochs(), time.Now()
	for range 3 {
		var leader *localcluster.Member
		w.eventually(20*time.Second, "etcd has a leader", func() (ok bool) {
			var err error
			leader, err = w.c.Leader(t.Context())
			return err == nil
		})
		if err := errors.Join(leader.Kill(), leader.Start(t.Context())); err != nil {
			t.Fatal(err)
		}
		w.goOn(5 * time.Second)
	}
	to := time.Now()
	if moved := changed(before, w.epochs()); moved > 0 {
		t.Errorf("%d partitions changed their owner while etcd changed its leader", moved)
	}
	f.stop()
	f.report("the flow")
	w.steady("while etcd changes its leader", w.settle(time.Minute), from, to, 2*time.Second)
}

// changed counts the partitions whose epoch is another one.
func changed(before, after map[uint32]uint64) (n int) {
	for p, e := range before {
		if after[p] != e {
			n++
		}
	}
	return n
}
