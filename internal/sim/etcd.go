package sim

import "time"

const (
	leaseTTL = 5 * time.Second
	// trustFor is how long a node may push after it sent a keep-alive that was answered (design: 0.9·TTL − 500 ms).
	trustFor = leaseTTL*9/10 - 500*time.Millisecond
)

// lease is one node's membership. Owner keys hang on it.
type lease struct {
	n     *node
	until time.Duration
	gone  bool
}

// etcd holds the leases, the owner keys and the assignment. It never fails; messages to it may.
type etcd struct {
	w       *world
	holders []*lease // of each partition's key; nil: free
	desired []int    // index of the node that each partition is assigned to
}

func newEtcd(w *world) *etcd {
	e := &etcd{w: w, holders: make([]*lease, w.plan.partitions), desired: make([]int, w.plan.partitions)}
	to := w.rand.IntN(w.plan.nodes)
	for p := range e.desired {
		e.desired[p] = to
	}
	return e
}

func (e *etcd) grant(n *node) *lease {
	l := &lease{n: n, until: e.w.now + leaseTTL}
	e.watch(l)
	return l
}

// watch ends the lease when its time has come.
func (e *etcd) watch(l *lease) {
	e.w.after(l.until-e.w.now, func() {
		switch {
		case l.gone:
		case l.until > e.w.now:
			e.watch(l)
		default:
			e.w.log("etcd", "expired", "%s", l.n.name)
			e.revoke(l)
		}
	})
}

// revoke ends a lease: its keys are free. Its node hears of it some time later.
func (e *etcd) revoke(l *lease) {
	if l.gone {
		return
	}
	l.gone = true
	for p := range e.holders {
		if e.holders[p] == l {
			e.holders[p] = nil
		}
	}
	wait := e.w.around(5 * time.Millisecond)
	if e.w.faulty(faultLease) && e.w.chance(2) {
		wait = e.w.between(0, 4*time.Second)
	}
	if l.n.isolated() {
		wait += l.n.alone - e.w.now
	}
	e.w.on(&l.n.process, wait, func() { l.n.leaseLost(l) })
}

// win takes a partition's key if it is free.
func (e *etcd) win(p uint32, l *lease) bool {
	if e.holders[p] == nil && !l.gone {
		e.holders[p] = l
		e.w.log("etcd", "key", "partition %d: %s", p, l.n.name)
	}
	return e.holders[p] == l
}

// give puts a key back.
func (e *etcd) give(p uint32, l *lease) {
	if e.holders[p] == l {
		e.holders[p] = nil
		e.w.log("etcd", "key", "partition %d: free", p)
	}
}

// wanted reports whether a node should own a partition: it is assigned there, or its node has no lease.
func (e *etcd) wanted(p uint32, n *node) bool {
	to := e.w.nodes[e.desired[p]]
	return to == n || to.lease == nil || to.lease.gone || !to.up || to.draining
}

// owner returns the node that holds a partition's key, nil if none.
func (e *etcd) owner(p uint32) *node {
	if l := e.holders[p]; l != nil {
		return l.n
	}
	return nil
}
