package sim

import (
	"fmt"
	"maps"
	"time"

	"github.com/headrace/headrace/dispatcher/ownership"
	"github.com/headrace/headrace/shard"
)

// membership follows the rules of package shard/member for one node: a session on one lease, a view that comes
// by a watch and may be late, writes under conditions, one of a kind at a time, that are tried again.
type membership struct {
	n           *node
	lease       *lease // of the session; nil: between two
	view        *snapshot
	watchAt     time.Duration // when the newest news arrives
	held        []int64       // revision of the owner keys, as told to the table; 0: none
	want        []bool        // as told
	busy        [numJobs]bool
	retryAt     [numJobs]time.Duration
	rebalanceAt time.Duration // when a move to a new member is due; 0: none is
}

// The kinds of writes.
const (
	jobCampaign = iota
	jobAssign
	jobClaim
	numJobs
)

const jobRetry = 250 * time.Millisecond

func newMembership(n *node) membership {
	return membership{n: n, held: make([]int64, n.w.plan.partitions), want: make([]bool, n.w.plan.partitions)}
}

// ask is one exchange with the registry: io happens there unless it is out of reach; then goes on in the
// process. An answer may be lost when io has happened.
func (n *node) ask(io func(), then func(err error)) {
	w, life := n.w, n.life
	answer := func(d time.Duration, err error) { w.in(&n.process, life, d, func() { then(err) }) }
	w.on(&n.process, 0, func() {
		if n.withoutRegistry() {
			answer(w.between(200*time.Millisecond, leaseTTL/3), errDown)
			return
		}
		w.after(w.around(time.Millisecond), func() {
			io()
			if w.faulty(faultLease) && w.chance(30) || n.withoutRegistry() {
				answer(w.between(200*time.Millisecond, leaseTTL/3), errDown)
				return
			}
			answer(w.around(time.Millisecond), nil)
		})
	})
}

// join begins a session; the lease of the one before is given back first.
func (m *membership) join(old *lease, failures int) {
	n, w := m.n, m.n.w
	sentAt := n.clock(w.now)
	id := shard.NodeID(fmt.Sprintf("%s.%d", n.name, n.life))
	var l *lease
	n.ask(func() {
		w.registry.revoke(old)
		if w.plan.sole {
			w.registry.evict(n)
		}
		l = w.registry.grant(n, id)
	}, func(err error) {
		if err != nil {
			pause := min(50*time.Millisecond<<min(failures, 10), leaseTTL/2)
			w.on(&n.process, pause/2+w.between(0, pause/2), func() { m.join(l, failures+1) })
			return
		}
		m.lease = l
		w.log(n.name, "joined", "%s", id)
		n.trust(sentAt)
		m.keepAlive(l, leaseTTL/3)
		m.see(w.registry.now) // the first list
	})
}

// keepAlive renews the lease, three times in its life, and more often when that fails.
func (m *membership) keepAlive(l *lease, wait time.Duration) {
	n, w := m.n, m.n.w
	w.on(&n.process, wait, func() {
		if m.lease != l {
			return
		}
		sentAt := n.clock(w.now)
		arrived, gone := false, false
		n.ask(func() {
			if w.faulty(faultLease) && w.chance(3) {
				return // it never came
			}
			if arrived, gone = true, l.gone; !gone {
				l.until = w.now + leaseTTL
			}
		}, func(err error) {
			switch {
			case m.lease != l:
			case err != nil || !arrived:
				m.keepAlive(l, leaseTTL/12)
			case gone:
				m.end("lease is gone")
			default:
				n.trust(sentAt)
				m.keepAlive(l, leaseTTL/3)
			}
		})
	})
}

// trust tells the core until when it may push by the lease alone.
func (n *node) trust(sentAt time.Time) {
	n.call("trust", func(time.Time) { n.core.Trust(sentAt.Add(ownership.Trust(leaseTTL))) })
}

// end is the end of a session: what was held is lost, and the node joins again.
func (m *membership) end(why string) {
	n := m.n
	old := m.lease
	m.lease, m.rebalanceAt = nil, 0
	m.busy, m.retryAt = [numJobs]bool{}, [numJobs]time.Duration{}
	n.w.log(n.name, "left", "%s", why)
	for p := range m.held {
		if m.held[p] != 0 {
			m.held[p] = 0
			n.table.KeyLost(uint32(p))
		}
	}
	for p := range m.want {
		if m.want[p] {
			m.want[p] = false
			n.table.Unassigned(uint32(p))
		}
	}
	n.own()
	m.join(old, 0)
}

// watched brings news of the registry to a node, in order, some time later.
func (n *node) watched(s *snapshot) {
	w, m := n.w, &n.membership
	d := w.around(2 * time.Millisecond)
	if w.faulty(faultWatch) && w.chance(6) {
		d = w.between(0, 8*time.Second)
	}
	if n.withoutRegistry() {
		d += max(n.noRegistry, w.registry.down) - w.now
	}
	m.watchAt = max(m.watchAt, w.now+d)
	w.on(&n.process, m.watchAt-w.now, func() { m.see(s) })
}

// see takes a view in and tells the table what has changed: losses first, so that a key that was lost and won
// again between two looks comes as both.
func (m *membership) see(s *snapshot) {
	n := m.n
	if m.view != nil && s.revision < m.view.revision {
		return
	}
	m.view = s
	n.rosters.directory()
	if m.lease == nil {
		return
	}
	there := false
	for _, k := range s.members {
		there = there || k.lease == m.lease
	}
	if !there {
		m.end("member key is gone")
		return
	}
	id := m.lease.id
	mine := func(p int) int64 {
		if s.owners[p].lease == m.lease {
			return s.owners[p].revision
		}
		return 0
	}
	for p := range m.held {
		if m.held[p] != 0 && m.held[p] != mine(p) {
			m.held[p] = 0
			n.table.KeyLost(uint32(p))
		}
	}
	for p := range m.want {
		if m.want[p] && s.assigned[uint32(p)] != id {
			m.want[p] = false
			n.table.Unassigned(uint32(p))
		}
	}
	for p := range m.want {
		if !m.want[p] && s.assigned[uint32(p)] == id {
			m.want[p] = true
			n.table.Assigned(uint32(p))
		}
	}
	for p := range m.held {
		if m.held[p] == 0 && mine(p) != 0 {
			m.held[p] = mine(p)
			n.table.Won(uint32(p))
		}
	}
	n.own()
	m.decide()
}

// decide starts the writes that are due by the view.
func (m *membership) decide() {
	s, g, l := m.view, m.n.w.registry, m.lease
	if l == nil || s == nil {
		return
	}
	if s.leader.lease == nil {
		m.start(jobCampaign, func() { g.campaign(l) })
	}
	if s.leader.lease == l {
		if to := m.plan(s); to != nil {
			m.start(jobAssign, func() { g.assign(s.leader, s.assignedAt, to) })
		}
	}
	var free []uint32
	for p, wanted := range m.want {
		if wanted && s.owners[p].lease == nil {
			free = append(free, uint32(p))
		}
	}
	if len(free) > 0 {
		m.start(jobClaim, func() {
			for _, p := range free {
				g.claim(l, p, s.assignedAt)
			}
		})
	}
}

// plan is the leader's next assignment; nil: none, or not yet.
func (m *membership) plan(s *snapshot) map[uint32]shard.NodeID {
	w := m.n.w
	var nodes []shard.Node
	takes := map[shard.NodeID]bool{}
	for _, k := range s.members {
		nodes = append(nodes, shard.Node{ID: k.lease.id, Draining: k.draining})
		takes[k.lease.id] = !k.draining
	}
	ps := make([]uint32, w.plan.partitions)
	for p := range ps {
		ps[p] = uint32(p)
	}
	next := shard.Assign(s.assigned, nodes, ps)
	if maps.Equal(s.assigned, next) {
		m.rebalanceAt = 0
		return nil
	}
	urgent := len(next) < len(s.assigned)
	for p := range next {
		urgent = urgent || !takes[s.assigned[p]]
	}
	if !urgent {
		if m.rebalanceAt == 0 {
			m.rebalanceAt = w.now + w.plan.joinDelay
			w.on(&m.n.process, w.plan.joinDelay, m.decide)
		}
		if m.rebalanceAt > w.now {
			return nil
		}
	}
	return next
}

// start does one write unless one of its kind is under way or has to wait. Until the view shows what it did or
// met, the same write would be tried in vain, so it waits for the view, and not for ever.
func (m *membership) start(job int, io func()) {
	w, l := m.n.w, m.lease
	if m.busy[job] || m.retryAt[job] > w.now {
		return
	}
	m.busy[job] = true
	m.n.ask(io, func(error) {
		if m.lease != l {
			return
		}
		m.busy[job] = false
		m.retryAt[job] = w.now + jobRetry
		w.on(&m.n.process, jobRetry+1, m.decide)
	})
}
