package sim

import (
	"maps"
	"slices"
	"time"

	"github.com/headrace/headrace/shard"
)

const leaseTTL = 5 * time.Second

// lease is one session of one node's membership. Keys hang on it.
type lease struct {
	n      *node
	id     shard.NodeID
	number int64 // as the session of a membership
	until  time.Duration
	gone   bool
}

// memberKey is members/<id>.
type memberKey struct {
	lease    *lease
	draining bool
}

// ownerKey is owners/<partition>; no lease: nobody has it.
type ownerKey struct {
	lease    *lease
	revision int64
}

// snapshot is what the registry holds at one revision. It is never changed.
type snapshot struct {
	revision   int64
	members    []memberKey // by joining
	leader     ownerKey
	assigned   map[uint32]shard.NodeID
	assignedAt int64 // revision
	owners     []ownerKey
}

// registry is etcd: linearizable keys on leases. It does not fail; messages to it and from it do, and all of
// it can be out of reach.
type registry struct {
	w      *world
	now    *snapshot
	down   time.Duration // nobody reaches it before
	leases int64
}

func newRegistry(w *world) *registry {
	return &registry{w: w, now: &snapshot{owners: make([]ownerKey, w.plan.partitions)}}
}

// write applies a transaction and lets the watches tell it.
func (g *registry) write(change func(s *snapshot)) {
	s := *g.now
	s.members, s.owners = slices.Clone(s.members), slices.Clone(s.owners)
	s.revision++
	change(&s)
	g.now = &s
	for _, n := range g.w.nodes {
		if n.up {
			n.watched(&s)
		}
	}
}

// grant makes a lease and announces its node.
func (g *registry) grant(n *node, id shard.NodeID) *lease {
	g.leases++
	l := &lease{n: n, id: id, number: g.leases, until: g.w.now + leaseTTL}
	g.write(func(s *snapshot) { s.members = append(s.members, memberKey{lease: l, draining: n.draining}) })
	g.watch(l)
	return l
}

// watch ends the lease when its time has come. While nobody reaches the registry no time passes for it: its
// leader is gone, and the next one gives every lease its whole TTL again.
func (g *registry) watch(l *lease) {
	g.w.after(l.until-g.w.now, func() {
		if g.down > g.w.now && !g.w.calm {
			l.until = g.down + leaseTTL
		}
		switch {
		case l.gone:
		case l.until > g.w.now:
			g.watch(l)
		default:
			g.w.log("etcd", "expired", "%s", l.id)
			g.revoke(l)
		}
	})
}

// revoke ends a lease and deletes what hangs on it.
func (g *registry) revoke(l *lease) {
	if l == nil || l.gone {
		return
	}
	l.gone = true
	g.write(func(s *snapshot) {
		s.members = slices.DeleteFunc(s.members, func(k memberKey) bool { return k.lease == l })
		if s.leader.lease == l {
			s.leader = ownerKey{}
		}
		for p := range s.owners {
			if s.owners[p].lease == l {
				s.owners[p] = ownerKey{}
			}
		}
	})
}

// evict revokes the leases of a node's earlier lives: who holds the data directory's lock is alone.
func (g *registry) evict(n *node) {
	for _, k := range g.now.members {
		if k.lease.n == n {
			g.revoke(k.lease)
		}
	}
}

// announceDrain says in a node's member key that it is on its way out.
func (g *registry) announceDrain(l *lease) {
	if l != nil && !l.gone {
		g.write(func(s *snapshot) {
			for i := range s.members {
				s.members[i].draining = s.members[i].draining || s.members[i].lease == l
			}
		})
	}
}

// campaign takes the leader's key if it is free.
func (g *registry) campaign(l *lease) {
	if g.now.leader.lease == nil && !l.gone {
		g.write(func(s *snapshot) { s.leader = ownerKey{l, s.revision} })
		g.w.log("etcd", "leader", "%s", l.id)
	}
}

// assign writes an assignment, under the leader's key and over the one that it was made from.
func (g *registry) assign(leader ownerKey, from int64, to map[uint32]shard.NodeID) {
	if g.now.leader == leader && g.now.assignedAt == from {
		g.write(func(s *snapshot) { s.assigned, s.assignedAt = to, s.revision })
		g.w.log("etcd", "assigned", "%s", assignedText(to))
	}
}

// claim takes an owner key that is free, under the assignment that says so.
func (g *registry) claim(l *lease, p uint32, assignment int64) {
	if g.now.owners[p].lease == nil && !l.gone && g.now.assignedAt == assignment {
		g.write(func(s *snapshot) { s.owners[p] = ownerKey{l, s.revision} })
		g.w.log("etcd", "key", "partition %d: %s", p, l.id)
	}
}

// release deletes an owner key of a lease. It reports whether it was there.
func (g *registry) release(l *lease, p uint32) bool {
	if l == nil || g.now.owners[p].lease != l {
		return false
	}
	g.write(func(s *snapshot) { s.owners[p] = ownerKey{} })
	g.w.log("etcd", "key", "partition %d: free", p)
	return true
}

// turn moves every partition to the next member, as a leader might do that weighs them by load.
func (g *registry) turn() {
	var ids []shard.NodeID
	for _, k := range g.now.members {
		if !k.draining {
			ids = append(ids, k.lease.id)
		}
	}
	if len(ids) < 2 {
		return
	}
	to := maps.Clone(g.now.assigned)
	for p, id := range to {
		if i := slices.Index(ids, id); i >= 0 {
			to[p] = ids[(i+1)%len(ids)]
		}
	}
	g.write(func(s *snapshot) { s.assigned, s.assignedAt = to, s.revision })
	g.w.log("etcd", "assigned", "%s, by hand", assignedText(to))
}

// owner returns the node that holds a partition's key, nil if none.
func (s *snapshot) owner(p uint32) *node {
	if s == nil || s.owners[p].lease == nil {
		return nil
	}
	return s.owners[p].lease.n
}
