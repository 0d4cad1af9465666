package chaos

import (
	"slices"
	"time"

	"github.com/headrace/headrace/internal/clusterclient"
	"github.com/headrace/headrace/internal/ledger"
	"github.com/headrace/headrace/internal/localcluster"
	"github.com/headrace/headrace/task"
)

// takeover watches what becomes of a node's partitions.
type takeover struct {
	w      *world
	victim *localcluster.Node
	via    *localcluster.Node // a survivor
	id     string             // the victim's
	tenant string             // pinned to the victim's partitions
	old    map[uint32]uint64  // the victim's partitions and their epochs
	at     time.Time          // of the fault
	open   map[uint32]time.Time
	ended  chan struct{}
}

// watch notes what a node owns, before it is broken, and pins a tenant to those partitions.
func (w *world) watch(victim *localcluster.Node) *takeover {
	w.t.Helper()
	i := slices.IndexFunc(w.c.Nodes, func(n *localcluster.Node) bool { return n != victim && n.Alive() })
	k := &takeover{w: w, victim: victim, via: w.c.Nodes[i], id: w.id(victim), old: map[uint32]uint64{},
		open: map[uint32]time.Time{}, ended: make(chan struct{})}
	for _, p := range w.partitions(victim) {
		if p.NodeId == k.id {
			k.old[p.Id] = p.Epoch
		}
	}
	if len(k.old) == 0 {
		w.t.Fatalf("%s owns nothing: there is nothing to take over", victim.Name)
	}
	k.tenant = probes[w.watched%len(probes)]
	w.watched++
	w.pin(k.via, k.tenant, k.partitions())
	return k
}

func (k *takeover) partitions() []uint32 {
	var ps []uint32
	for p := range k.old {
		ps = append(ps, p)
	}
	slices.Sort(ps)
	return ps
}

// broken breaks the victim, and asks a survivor from then on who owns its partitions.
func (k *takeover) broken(fault func() error) {
	k.w.t.Helper()
	ask := k.w.ask(k.via)
	k.at = time.Now()
	if err := fault(); err != nil {
		k.w.t.Fatal(err)
	}
	go k.poll(ask)
}

func (k *takeover) poll(ask *clusterclient.Client) {
	defer close(k.ended)
	ctx := k.w.t.Context()
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	for len(k.open) < len(k.old) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		ps, err := ask.Partitions(ctx)
		if err != nil {
			continue
		}
		for _, p := range ps {
			if epoch, his := k.old[p.Id]; his && k.open[p.Id].IsZero() && p.Epoch > epoch && p.State == "open" {
				k.open[p.Id] = time.Now()
			}
		}
	}
}

// opened waits until every partition has another owner that is open, and returns how long that took.
func (k *takeover) opened(limit time.Duration) time.Duration {
	k.w.t.Helper()
	select {
	case <-k.ended:
	case <-time.After(limit + 30*time.Second): // the bound is looked at in report
		k.w.t.Fatalf("%v after the fault only %d of the %d partitions of %s are open elsewhere", time.Since(k.at), len(k.open), len(k.old), k.victim.Name)
	}
	var last time.Time
	for _, at := range k.open {
		if at.After(last) {
			last = at
		}
	}
	k.w.t.Logf("%s: %d partitions, the last of them open elsewhere after %v", k.victim.Name, len(k.old), last.Sub(k.at).Round(time.Millisecond))
	return last.Sub(k.at)
}

// report says, from the executors' own books, when the next owners pushed: tasks that were submitted after the fault,
// and tasks that had waited. The bounds are those of the slowest partition; 0: not looked at.
func (k *takeover) report(runs map[string]*ledger.Runs, fresh, waiting time.Duration) {
	k.w.t.Helper()
	pushed, waited := firsts{}, firsts{}
	for _, a := range k.w.books() {
		epoch, his := k.old[a.partition]
		r := runs[a.id]
		if !his || r == nil {
			continue
		}
		for i, token := range r.Tokens {
			switch {
			case epochOf(token) <= epoch: // the victim's own push
			case a.asked.Before(k.at):
				waited.note(a.partition, k.at, r.Times[i])
			default:
				pushed.note(a.partition, a.answered, r.Times[i])
			}
		}
	}
	if fresh > 0 {
		k.judge("submits of after the fault pushed", pushed, fresh)
	}
	if waiting > 0 {
		k.judge("waiting tasks pushed", waited, waiting)
	}
}

// firsts are the first pushes of partitions.
type firsts map[uint32]first

// first is when a partition first pushed, and since when it could.
type first struct{ since, at time.Time }

func (f firsts) note(p uint32, since, at time.Time) {
	if old, there := f[p]; !there || at.Before(old.at) {
		f[p] = first{since, at}
	}
}

// slack is how long a partition may take to push what it was given after its bound: the choice between partitions gives
// the longest queue nothing new for a while.
const slack = 1500 * time.Millisecond

// judge prints the times of the fastest and the slowest partition, and fails beyond the bound.
func (k *takeover) judge(what string, pushes firsts, bound time.Duration) {
	k.w.t.Helper()
	if len(pushes) == 0 {
		k.w.t.Errorf("%s: %s: in no partition; the row shows nothing", k.victim.Name, what)
		return
	}
	var all []time.Duration
	late := 0
	for p, f := range pushes {
		d, waited := f.at.Sub(k.at), f.at.Sub(f.since)
		switch {
		case d <= bound:
			all = append(all, d)
		case waited <= slack && f.since.Sub(k.at) > bound-slack: // it was given its first one when the bound was nearly over
			late++
		default:
			k.w.t.Errorf("%s: %s after %v in partition %d, want under %v; it was open elsewhere after %v", k.victim.Name, what, d, p, bound, k.open[p].Sub(k.at))
		}
	}
	if len(all) == 0 {
		k.w.t.Errorf("%s: %s: in no partition within %v", k.victim.Name, what, bound)
		return
	}
	slices.Sort(all)
	k.w.t.Logf("%s: %s after %v to %v in %d of its %d partitions (%d were given their first one late); bound %v", k.victim.Name, what,
		all[0].Round(time.Millisecond), all[len(all)-1].Round(time.Millisecond), len(pushes), len(k.old), late, bound)
}

// epochOf returns the epoch of a token.
func epochOf(token string) uint64 {
	t, err := task.ParseToken(token)
	if err != nil {
		panic(err) // the executor wrote it
	}
	return uint64(t.Epoch)
}
