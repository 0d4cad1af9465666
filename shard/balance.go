package shard

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// The law by which load moves (algorithms.md §2.1).
const (
	BalanceEvery = 10 * time.Second // least time between two rounds
	balanceRest  = time.Minute      // a partition that moved stays for that long
	balanceGain  = 0.1              // a round takes at least that share off the busiest node's load
	balanceStep  = 0.02             // and one exchange that off the busier node's
	balanceShare = 0.1              // of all partitions, at most, move in a round
	balanceFloor = 50.0             // pushes a second: a node that does less has no load worth a move
	balanceNear  = 0.05             // shares of the busier node's load that are worth less than a backlog
	balanceBase  = 0.1              // of the mean rate, which each partition weighs at least
)

// Load is what a partition costs its node.
type Load struct {
	Rate    float64 // pushes a second, smoothed
	Backlog int64   // tasks that wait
}

// Balance returns prev with load spread more evenly, or prev itself if nothing is worth a move. It exchanges a partition of the
// busiest node for a lighter one of another, or gives one to a node that has fewer: so shares still differ by one at most, and
// Assign keeps what Balance made. A round takes at least a tenth off the largest load; of exchanges
// that are about as good, the one with the idlest node, then that with the least backlog is taken. At most a tenth of the partitions moves (two at least: one
// exchange), and none that moved within a minute before now. A partition that loads does not name counts with the base weight.
// prev must give each of partitions to a node that takes partitions (else Assign's turn comes first). Nodes have no zones
// yet: all are as near to a database.
func Balance(now time.Time, prev map[uint32]NodeID, nodes []Node, partitions []uint32, loads map[uint32]Load, movedAt map[uint32]time.Time) map[uint32]NodeID {
	held := map[NodeID][]uint32{}
	var ids []NodeID
	for _, n := range nodes {
		if _, seen := held[n.ID]; n.Takes() && !seen {
			ids = append(ids, n.ID)
			held[n.ID] = nil
		}
	}
	slices.Sort(ids)
	partitions = slices.Compact(slices.Sorted(slices.Values(partitions)))
	mean := 0.0
	for _, p := range partitions {
		if _, there := held[prev[p]]; !there {
			return prev
		}
		mean += loads[p].Rate / float64(len(partitions))
	}
	weight := func(p uint32) float64 { return loads[p].Rate + balanceBase*mean }
	load := map[NodeID]float64{}
	for _, p := range partitions {
		held[prev[p]] = append(held[prev[p]], p)
		load[prev[p]] += weight(p)
	}
	rests := func(p uint32) bool { at, moved := movedAt[p]; return moved && now.Sub(at) < balanceRest }

	peak := func() (hot NodeID) {
		hot = ids[0]
		for _, id := range ids {
			if load[id] > load[hot] {
				hot = id
			}
		}
		return hot
	}
	if len(ids) < 2 || load[peak()] < balanceFloor {
		return prev
	}
	first := load[peak()]
	next := maps.Clone(prev)
	moved := map[uint32]bool{}
	for left := max(2, int(balanceShare*float64(len(partitions)))); left > 0; {
		hot := peak()
		most := load[hot]
		var best step
		for _, to := range ids {
			if to == hot || (most+load[to])/2 > (1-balanceGain)*most { // no exchange makes them more alike than that
				continue
			}
			for _, p := range held[hot] {
				if moved[p] || rests(p) {
					continue
				}
				try := func(s step, back float64) {
					d := weight(p) - back
					if s.top = max(most-d, load[to]+d); s.top > (1-balanceStep)*most || s.moves() > left {
						return
					}
					s.class, s.idle = int(s.top/(balanceNear*most)), int(load[to]/(balanceNear*most))
					if best.to == "" || s.compare(best) < 0 {
						best = s
					}
				}
				if len(held[hot]) > len(held[to]) {
					try(step{to: to, p: p, backlog: loads[p].Backlog}, 0)
				}
				for _, q := range held[to] {
					if !moved[q] && !rests(q) && weight(q) < weight(p) {
						try(step{to: to, p: p, q: q, swap: true, backlog: loads[p].Backlog + loads[q].Backlog}, weight(q))
					}
				}
			}
		}
		if best.to == "" {
			break
		}
		give := func(p uint32, from, to NodeID) {
			next[p], moved[p] = to, true
			held[from] = slices.DeleteFunc(held[from], func(o uint32) bool { return o == p })
			held[to] = append(held[to], p)
			load[from] -= weight(p)
			load[to] += weight(p)
		}
		give(best.p, hot, best.to)
		if best.swap {
			give(best.q, best.to, hot)
		}
		left -= best.moves()
	}
	if load[peak()] > (1-balanceGain)*first {
		return prev
	}
	return next
}

// step gives partition p of the busiest node to another one, for q if swap.
type step struct {
	to      NodeID
	p, q    uint32
	swap    bool
	top     float64 // the larger of the two nodes' loads after it
	class   int     // of top: steps of one class are about as good
	idle    int     // class of what the other node has before
	backlog int64   // of what moves
}

func (s step) moves() int {
	if s.swap {
		return 2
	}
	return 1
}

func (s step) compare(o step) int {
	return cmp.Or(cmp.Compare(s.class, o.class), cmp.Compare(s.idle, o.idle), cmp.Compare(s.backlog, o.backlog), cmp.Compare(s.moves(), o.moves()),
		cmp.Compare(s.top, o.top), cmp.Compare(s.to, o.to), cmp.Compare(s.p, o.p), cmp.Compare(s.q, o.q))
}
