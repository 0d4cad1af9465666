package shard

import (
	"cmp"
	"math"
	"slices"
	"strings"
)

// Key is what a tenant's shard depends on beside the catalogue.
type Key struct {
	Secret string // of the cluster, so that nobody can choose a tenant name that lands on a victim
	Tenant string
	Salt   uint32 // of the tenant's placement
}

// Choose returns the tenant's shard: the first k open partitions of its zone-interleaved rendezvous
// order, best first. If there are fewer than k, all of them.
func Choose(key Key, partitions []Partition, k int) []uint32 {
	order := rank(key, partitions, "")
	shard := make([]uint32, 0, min(max(k, 0), len(order)))
	for _, p := range order[:cap(shard)] {
		shard = append(shard, p.ID)
	}
	return shard
}

// rank returns the open partitions in the tenant's order: zones take turns, each with its next best. The zone
// named home has the first turn; "": the tenant's order has.
func rank(key Key, partitions []Partition, home string) []Partition {
	open := make([]Partition, 0, len(partitions))
	for _, p := range partitions {
		if p.Open() {
			open = append(open, p)
		}
	}
	base := newHash.str(key.Secret).str(key.Tenant).num(key.Salt)
	order := interleave(len(open),
		func(i int) string { return open[i].Zone },
		func(zone string) uint64 {
			if zone == home && home != "" {
				return math.MaxUint64
			}
			return base.str("z").str(zone).sum()
		},
		func(i, j int) int {
			a, b := base.str("p").num(open[i].ID).sum(), base.str("p").num(open[j].ID).sum()
			if c := cmp.Compare(score(b, open[j].Weight), score(a, open[i].Weight)); c != 0 {
				return c
			}
			if c := cmp.Compare(b, a); c != 0 {
				return c
			}
			return cmp.Compare(open[i].ID, open[j].ID)
		})
	ranked := make([]Partition, len(order))
	for n, i := range order {
		ranked[n] = open[i]
	}
	return ranked
}

// Candidates returns the two members of a shard that a request should try, by rendezvous, so that every
// api node and every repetition of the request finds the same two. With one member both are it; with
// none ok is false.
func Candidates(requestID string, members []uint32) (a, b uint32, ok bool) {
	if len(members) == 0 {
		return 0, 0, false
	}
	base := newHash.str("request").str(requestID)
	a, b = members[0], members[0]
	var topA, topB uint64
	for i, p := range members {
		switch s := base.num(p).sum(); {
		case i == 0 || s > topA || s == topA && p < a:
			if i > 0 {
				b, topB = a, topA
			}
			a, topA = p, s
		case i == 1 || s > topB || s == topB && p < b:
			b, topB = p, s
		}
	}
	return a, b, true
}

// score is weighted rendezvous: -w / ln u. With equal weights it orders like the hash itself.
func score(h uint64, weight float64) float64 {
	if weight == 0 {
		weight = 1
	}
	u := (float64(h>>11) + 0.5) / (1 << 53) // 53 bits: the rest would be rounded up to 1, whose logarithm is 0
	return -weight / math.Log(u)
}

// interleave orders n things: zones by their rank, highest first, and of each zone in turn its next best.
func interleave(n int, zone func(int) string, rank func(string) uint64, compare func(i, j int) int) []int {
	byZone := map[string][]int{}
	for i := range n {
		byZone[zone(i)] = append(byZone[zone(i)], i)
	}
	zones := make([]string, 0, len(byZone))
	for z, members := range byZone {
		zones = append(zones, z)
		slices.SortFunc(members, compare)
	}
	slices.SortFunc(zones, func(a, b string) int {
		if c := cmp.Compare(rank(b), rank(a)); c != 0 {
			return c
		}
		return strings.Compare(a, b)
	})
	order := make([]int, 0, n)
	for i := 0; len(order) < n; i++ {
		for _, z := range zones {
			if i < len(byZone[z]) {
				order = append(order, byZone[z][i])
			}
		}
	}
	return order
}
