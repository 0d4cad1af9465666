package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// route returns the node to which a request for a partition goes: any node takes it, and hands it to whom it
// takes for the owner. Nil: nobody. An old owner that has not heard of its end takes it for itself.
func (w *world) route(p uint32) *node {
	door := w.nodes[w.rand.IntN(len(w.nodes))]
	if !door.up || door.pausedUntil > w.now {
		return nil
	}
	if door.owns[p] {
		return door
	}
	to := door.membership.view.owner(p)
	if to == nil || !to.up || !w.talk(door, to) {
		return nil
	}
	return to
}

// talk reports whether two nodes reach each other.
func (w *world) talk(a, b *node) bool {
	return a == b || w.calm || max(a.noPeer[b.index], b.noPeer[a.index]) <= w.now
}

// elsewhere asks the owner of a partition what became of a request: dispatcher/peer's Router.Elsewhere.
func (n *node) elsewhere(l *core.Load) {
	w, life := n.w, n.life
	done := false
	answer := func(d time.Duration, a core.LoadAnswer) {
		w.in(&n.process, life, d, func() {
			if !done {
				done = true
				n.call("looked elsewhere", func(now time.Time) { n.core.Loaded(now, l, a) })
			}
		})
	}
	to := n.membership.view.owner(l.Partition)
	if to == nil || to == n || !to.up || !w.talk(n, to) {
		answer(w.around(w.plan.delay), core.LoadAnswer{Err: core.ErrNotOwner})
		return
	}
	answer(3*time.Second, core.LoadAnswer{Err: errDown}) // no answer
	w.on(&to.process, w.around(w.plan.delay), func() {
		w.clients.replies++
		reply := w.clients.replies
		to.replies[reply] = func(a core.SubmitAnswer) {
			if !w.talk(n, to) || w.faulty(faultLostAnswer) && w.chance(10) {
				return
			}
			answer(w.around(w.plan.delay), found(l, a))
		}
		w.log(to.name, "look", "for %s: request %s, partition %d", n.name, l.RequestID, l.Partition)
		to.call("look", func(now time.Time) {
			to.core.Look(now, core.Look{Reply: reply, Partition: l.Partition, Tenant: l.Tenant, RequestID: l.RequestID})
		})
	})
}

// found makes the answer of a Look that of a Load.
func found(l *core.Load, a core.SubmitAnswer) core.LoadAnswer {
	switch {
	case a.Err != nil:
		return core.LoadAnswer{Err: fmt.Errorf("look for a request in partition %d: %w", l.Partition, a.Err)}
	case len(a.Items) == 0:
		return core.LoadAnswer{Err: store.ErrNotFound}
	}
	q := &store.Request{ID: l.RequestID, Tenant: l.Tenant, IDs: make([]task.ID, len(a.Items)), Dedup: make([]bool, len(a.Items))}
	for i, it := range a.Items {
		q.IDs[i], q.Dedup[i] = it.ID, it.Dedup
	}
	return core.LoadAnswer{Request: q}
}

// apartPeers lets two nodes not reach each other for a while.
func (w *world) apartPeers(a, b *node, d time.Duration) {
	if a != b {
		a.noPeer[b.index] = max(a.noPeer[b.index], w.now+d)
		w.log("net", "apart", "%s and %s, %v", a.name, b.name, d)
	}
}

// unowned names a partition that is not served by one node under its newest epoch, or "".
func (w *world) unowned() string {
	for i, k := range w.registry.now.owners {
		p := uint32(i)
		if k.lease == nil || !k.lease.n.up || !k.lease.n.owns[p] {
			return sprint("partition %d has no owner", p)
		}
		newest, _ := w.store.Epoch(background, p)
		for _, n := range w.nodes {
			if !n.up {
				return n.name + " is down"
			}
			stats := n.core.Stats()
			at := slices.IndexFunc(stats, func(s core.PartitionStat) bool { return s.Partition == p })
			switch {
			case at < 0 && k.lease.n == n:
				return sprint("%s should own partition %d and does not", n.name, p)
			case at >= 0 && k.lease.n != n:
				return sprint("%s goes on owning partition %d, whose key %s holds", n.name, p, k.lease.id)
			case at >= 0 && stats[at].Epoch != newest:
				return sprint("%s owns partition %d under epoch %d, the newest is %d", n.name, p, stats[at].Epoch, newest)
			}
		}
	}
	return ""
}
