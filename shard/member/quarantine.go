package member

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/headrace/headrace/shard"
)

// quarantine is what a leader knows beside the registry of partitions that are opened alone. The zero value: there
// are none.
type quarantine struct {
	ward   shard.NodeID           // the node that opens them, and is to have nothing else; "": not chosen yet
	wardAt time.Time              // when it was
	since  map[uint32]withholding // of those without an owner
	wakeAt time.Time              // when there may be something to decide; zero: not before the view changes
}

type withholding struct {
	deaths  int
	readyAt time.Time // the end of the back-off
}

func (q *quarantine) on() bool { return q.since != nil }

// emptyWithin is how long a partition waits, beyond its back-off, for its node to hand everything else over.
const emptyWithin = 15 * time.Second

// strangerAfter is how long it waits, beyond its back-off, for a node that has died of it before, until another one
// is put at risk.
const strangerAfter = time.Minute

// publishMax bounds the tenures that one write changes.
const publishMax = 32

func (s *session) alive(id shard.NodeID) bool { _, there := s.view.members[id]; return there }

// assign is shard.Assign, with the partitions apart whose owners die early (shard.Tenure): one at a time is given to
// one node that has nothing else, after a back-off. Its next run, or that of
// another that died of it, is given it again: what kills nodes does not go round. tenures are those that have to say when.
func (s *session) assign(now time.Time, prev map[uint32]shard.NodeID) (next map[uint32]shard.NodeID, tenures map[uint32]shard.Tenure) {
	nodes, ids := s.view.nodes(), shard.IDs(s.view.partitions)
	deaths := map[uint32]int{}
	for _, p := range ids {
		t, is := s.view.tenures[p]
		if !is {
			continue
		}
		if n := t.DeathsBut(s.alive, s.view.owners[p] != ""); t.Alone(n) {
			deaths[p] = n
		}
	}
	takers := slices.DeleteFunc(slices.Clone(nodes), func(n shard.Node) bool { return !n.Takes() })
	if len(takers) == 1 {
		// A lone node whose runs die one after the other has nobody to spare: care is all that helps. Another's
		// partition waits for its back-off all the same: that node may come back.
		maps.DeleteFunc(deaths, func(p uint32, _ int) bool {
			return s.m.cfg.Sole || s.view.tenures[p].Addr == takers[0].Addr
		})
	}
	if len(deaths) == 0 || len(takers) == 0 {
		s.quarantine = quarantine{}
		return s.among(now, prev, nodes, ids), nil
	}
	q := &s.quarantine
	if q.since == nil {
		q.since = map[uint32]withholding{}
	}
	q.wakeAt = time.Time{}
	wake := func(at time.Time) {
		if q.wakeAt.IsZero() || at.Before(q.wakeAt) {
			q.wakeAt = at
		}
	}

	// Who waits, since when, and who has its owner.
	var open, waiting []uint32
	tenures = map[uint32]shard.Tenure{}
	for _, p := range slices.Sorted(maps.Keys(deaths)) {
		n, t := deaths[p], s.view.tenures[p]
		if s.view.members[prev[p]].Takes() && s.alive(prev[p]) {
			open = append(open, p) // given
			continue
		}
		if q.since[p].deaths != n {
			w := withholding{n, now.Add(shard.Backoff(n))}
			if t.TriedAfter == n { // a leader before has published it; its clock is believed within reason
				w.readyAt = now.Add(min(max(t.NextTry.Sub(now), 0), shard.Backoff(n)))
			}
			q.since[p] = w
			s.m.cfg.Logger.Error("quarantined: its owners die soon after they open it",
				zap.Uint32("partition", p), zap.Int("deaths", n), zap.Duration("next_try_in", w.readyAt.Sub(now)))
		}
		if t.TriedAfter != n && len(tenures) < publishMax && s.view.owners[p] == "" {
			t.TriedAfter, t.NextTry = n, q.since[p].readyAt.UTC()
			tenures[p] = t
		}
		waiting = append(waiting, p)
	}
	slices.SortStableFunc(waiting, func(a, b uint32) int { return cmp.Compare(deaths[a], deaths[b]) })
	maps.DeleteFunc(q.since, func(p uint32, _ withholding) bool { return deaths[p] == 0 })

	overdue := slices.ContainsFunc(waiting, func(p uint32) bool { return !now.Before(q.since[p].readyAt.Add(strangerAfter)) })
	s.chooseWard(now, takers, prev, append(slices.Clone(open), waiting...), overdue)
	others := slices.DeleteFunc(slices.Clone(nodes), func(n shard.Node) bool { return n.ID == q.ward && len(takers) > 1 })
	rest := slices.DeleteFunc(slices.Clone(ids), func(p uint32) bool { return deaths[p] > 0 })
	next = s.among(now, prev, others, rest)
	for _, p := range open {
		next[p] = prev[p]
	}
	if len(open) > 0 {
		return next, tenures
	}
	busy := false
	for o, id := range s.view.owners {
		busy = busy || id == q.ward && deaths[o] == 0 && len(takers) > 1
	}
	for _, p := range waiting {
		at := q.since[p].readyAt
		if busy && at.Before(q.wardAt.Add(emptyWithin)) {
			at = q.wardAt.Add(emptyWithin)
		}
		if q.ward == "" {
			at = at.Add(strangerAfter)
		}
		if !now.Before(at) {
			delete(tenures, p)
			next[p] = q.ward
			break
		}
		wake(at)
	}
	return next, tenures
}

// chooseWard keeps the ward as long as it takes partitions. Else it is the node that has one of the quarantined, or
// the next run of one that died of them; once one is overdue without such a node, the one with the least to hand
// over, rather not the leader.
func (s *session) chooseWard(now time.Time, takers []shard.Node, prev map[uint32]shard.NodeID, ps []uint32, overdue bool) {
	q := &s.quarantine
	has, had := map[shard.NodeID]bool{}, map[string]bool{}
	for _, p := range ps {
		has[prev[p]] = true
		for _, addr := range s.view.tenures[p].Addrs() {
			had[addr] = addr != ""
		}
	}
	owns := map[shard.NodeID]int{}
	for _, id := range s.view.owners {
		owns[id]++
	}
	leader, _ := s.view.leader()
	rank := func(n shard.Node) int {
		r := owns[n.ID] * 2
		if n.ID == leader {
			r++
		}
		switch {
		case has[n.ID]:
			r -= 1 << 30
		case had[n.Addr]:
			r -= 1 << 29
		}
		return r
	}
	if slices.ContainsFunc(takers, func(n shard.Node) bool { return n.ID == q.ward }) {
		return
	}
	q.ward = ""
	best := slices.MinFunc(takers, func(a, b shard.Node) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), strings.Compare(string(a.ID), string(b.ID)))
	})
	if overdue || has[best.ID] || had[best.Addr] {
		q.ward, q.wardAt = best.ID, now
	}
}
