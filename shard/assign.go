package shard

import (
	"cmp"
	"slices"
	"strings"
)

// Assignment says which node ought to own which partition.
type Assignment struct {
	Version uint64 // grows with each change
	Owners  map[uint32]NodeID
}

// Assign gives every partition to one node, changing as little as can be of what was: a partition keeps
// its node unless the node is gone, draining or passive, or has more than its share. Shares differ by at most
// one. It moves only orphans and surplus, so a leaving node moves what it owned and a joining one
// takes its share, the least that any algorithm could move. The result depends on the arguments only,
// not on their order; with no node that takes partitions it is empty.
//
// All partitions count the same; Balance, which spreads load among equal shares, is not asked by the leader yet.
func Assign(prev map[uint32]NodeID, nodes []Node, partitions []uint32) map[uint32]NodeID {
	held := map[NodeID][]uint32{}
	var ids []NodeID
	for _, n := range nodes {
		if _, seen := held[n.ID]; n.Takes() && !seen {
			ids = append(ids, n.ID)
			held[n.ID] = nil
		}
	}
	out := map[uint32]NodeID{}
	if len(ids) == 0 {
		return out
	}
	partitions = slices.Compact(slices.Sorted(slices.Values(partitions)))

	var free []uint32
	for _, p := range partitions {
		if owner, ok := prev[p]; ok {
			if _, stays := held[owner]; stays {
				held[owner] = append(held[owner], p)
				continue
			}
		}
		free = append(free, p)
	}

	// Those who own most now get the shares that are one larger: nothing moves only to even out the odd one.
	slices.SortFunc(ids, func(a, b NodeID) int {
		if c := cmp.Compare(len(held[b]), len(held[a])); c != 0 {
			return c
		}
		return strings.Compare(string(a), string(b))
	})
	share, larger := len(partitions)/len(ids), len(partitions)%len(ids)
	room := make([]int, len(ids))
	for i, id := range ids {
		quota := share
		if i < larger {
			quota++
		}
		if over := len(held[id]) - quota; over > 0 {
			free = append(free, held[id][quota:]...)
			held[id] = held[id][:quota]
		}
		room[i] = quota - len(held[id])
		for _, p := range held[id] {
			out[p] = id
		}
	}

	slices.Sort(free)
	for _, p := range free {
		best, top := -1, uint64(0)
		for i, id := range ids {
			if s := newHash.str("own").num(p).str(string(id)).sum(); room[i] > 0 && (best < 0 || s > top) {
				best, top = i, s
			}
		}
		out[p] = ids[best]
		room[best]--
	}
	return out
}
