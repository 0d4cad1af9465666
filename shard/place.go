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

// Placement is a tenant's shard as it is stored: the outcome, not the recipe.
type Placement struct {
	Tenant     string   `json:"tenant"`
	Version    uint64   `json:"version"` // grows with each change
	Salt       uint32   `json:"salt"`
	Partitions []uint32 `json:"partitions"` // best first; new tasks go to these
}

// Choose returns the tenant's shard: the first k open partitions of its zone-interleaved rendezvous
// order, best first. If there are fewer than k, all of them.
func Choose(key Key, partitions []Partition, k int) []uint32 {
	open := make([]Partition, 0, len(partitions))
	for _, p := range partitions {
		if p.Open() {
			open = append(open, p)
		}
	}
	base := newHash.str(key.Secret).str(key.Tenant).num(key.Salt)
	order := interleave(len(open),
		func(i int) string { return open[i].Zone },
		func(zone string) uint64 { return base.str("z").str(zone).sum() },
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
	shard := make([]uint32, 0, min(max(k, 0), len(order)))
	for _, i := range order[:cap(shard)] {
		shard = append(shard, open[i].ID)
	}
	return shard
}

// Place draws a placement: the shard of the salt whose most loaded member is the least loaded; the
// first such salt wins. Four salts bring the busiest partition from 2.0 to 1.1 times the mean under
// Zipf load when k follows the load (algorithms.md §1.3). Load is any one measure for all partitions,
// such as tasks a second; a missing one counts 0. Salts must not be empty.
func Place(key Key, salts []uint32, partitions []Partition, k int, load map[uint32]float64) Placement {
	best := Placement{Tenant: key.Tenant, Version: 1}
	least := math.Inf(1)
	for i, salt := range salts {
		key.Salt = salt
		members := Choose(key, partitions, k)
		worst := math.Inf(-1)
		for _, p := range members {
			worst = max(worst, load[p])
		}
		if i == 0 || worst < least {
			least, best.Salt, best.Partitions = worst, salt, members
		}
	}
	return best
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
