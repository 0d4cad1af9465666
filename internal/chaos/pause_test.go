package chaos

import (
	"syscall"
	"testing"
	"time"

	"github.com/headrace/headrace/internal/localcluster"
	"github.com/headrace/headrace/internal/localcluster/proxy"
)

// A node stops in the middle of its work for three times its lease, and wakes. Its partitions have gone on without
// it in time, and what it still believes changes nothing: each task ends once, by the newest of its pushes. An executor
// stops and wakes with it, and reports to it what others have run in the meantime.
func TestPauseOwner(t *testing.T) { pauseOwner(t, false) }

// The same while a commit of the node is on its way to the databases: the network has the first half of what it wrote,
// and delivers the rest when somebody else owns the partitions.
func TestPauseOwnerAmidACommit(t *testing.T) {
	onlyLong(t)
	pauseOwner(t, true)
}

func pauseOwner(t *testing.T, amidCommit bool) {
	t.Parallel()
	w := newWorld(t, localcluster.Options{Proxied: true})
	w.worker("x1", 80) // room for all that waits: a first push shows the takeover, not a queue behind others
	x2 := w.worker("x2", 40)
	victim := w.c.Nodes[0]
	f := w.flow(pick(150, 300), others(w.c.Nodes, victim), nap)
	w.goOn(2 * time.Second)

	k := w.watch(victim)
	fresh := w.flow(40, others(w.c.Nodes, victim), work, k.tenant)
	w.submitAll(1000, others(w.c.Nodes, victim), nap)
	w.goOn(500 * time.Millisecond)
	k.broken(func() error {
		x2.Signal(syscall.SIGSTOP)
		if amidCommit {
			for _, p := range victim.Links.Postgres {
				p.Hold(proxy.Up)
			}
			// Commits go out for as long as nobody has answered the one before: a moment is enough for one of each database.
			w.goOn(100 * time.Millisecond)
		}
		return victim.Pause()
	})
	k.opened(w.ttl + 3*time.Second)
	w.goOn(time.Until(k.at.Add(3 * w.ttl)))
	if amidCommit {
		victim.Links.Heal()
		w.goOn(time.Second) // the databases get the rest of the old commits before the node wakes
	}
	epochs := w.epochs()
	if err := victim.Resume(); err != nil {
		t.Fatal(err)
	}
	x2.Signal(syscall.SIGCONT)
	w.goOn(3 * time.Second)
	for p, epoch := range k.old {
		if epochs[p] <= epoch {
			t.Errorf("partition %d still had epoch %d when its old owner woke", p, epochs[p])
		}
	}
	fresh.stop()
	f.stop()
	fresh.report("the probe")
	f.report("the flow")
	runs := w.settle(time.Minute)
	k.report(runs, w.ttl+3*time.Second, w.ttl+3*time.Second)
	if w.onlyNewestCounts(runs) == 0 {
		t.Error("no task of the paused executor was run elsewhere: the row shows nothing of old tokens")
	}
	w.nothingTwice()
}
