package shard

import (
	"fmt"
	"math/big"
	"math/bits"
)

// Overlap returns how likely it is that two tenants with k of n partitions each share exactly 0, 1, … k of
// them, if all shards are equally likely: C(k,j)·C(n−k,k−j) / C(n,k), exact before it is rounded. The
// last one is the share of tenants that one tenant covers completely.
func Overlap(n, k int) []float64 {
	k = min(max(k, 0), max(n, 0))
	p := make([]float64, k+1)
	for j := range p {
		p[j] = hypergeometric(n, k, k, j)
	}
	return p
}

// Covered returns how likely it is that a tenant's k of n partitions are all among those of e others.
func Covered(n, k, e int) float64 {
	k = min(max(k, 0), max(n, 0))
	left := make([]float64, k+1) // left[u]: u of them are in no other's shard yet
	left[k] = 1
	for range e {
		next := make([]float64, k+1)
		for u, p := range left {
			for j := 0; j <= u; j++ {
				next[u-j] += p * hypergeometric(n, u, k, j)
			}
		}
		left = next
	}
	return left[0]
}

// hypergeometric is how likely k draws of n hold exactly j of m marked ones.
func hypergeometric(n, m, k, j int) float64 {
	if j > m || k-j > n-m || j > k {
		return 0
	}
	a, b := new(big.Int).Binomial(int64(m), int64(j)), new(big.Int).Binomial(int64(n-m), int64(k-j))
	f, _ := new(big.Rat).SetFrac(a.Mul(a, b), new(big.Int).Binomial(int64(n), int64(k))).Float64()
	return f
}

// Shared is one row of a table of overlaps.
type Shared struct {
	Partitions int     // that two tenants have in common
	Exact      float64 // share of pairs, by Overlap
	Measured   float64 // share of the pairs that were looked at
}

// Simulation is what placing many tenants would give.
type Simulation struct {
	Overlap   []Shared
	Pairs     int     // that were looked at
	MaxByMean float64 // tenants of the fullest partition, by the mean
	MinByMean float64
	// Changed is the share of all slots (tenants times k) that one more partition would take; the least
	// possible on average is one in partitions + 1.
	Changed     float64
	MostChanged int // members of one tenant, then
	// Extra is the share of tenants that have a member more than k, so that two are in their directory
	// database. The overlaps leave it out.
	Extra float64
}

// maxPairs bounds how many pairs of tenants a simulation compares; each tenant is compared with as many.
const maxPairs = 5_000_000

// Simulate places tenants on partitions in zones, each with k of them, and compares them.
func Simulate(tenants, partitions, zones, k int) Simulation {
	ps := make([]Partition, partitions, partitions+1)
	for i := range ps {
		ps[i] = Partition{ID: uint32(i), Zone: fmt.Sprintf("z%d", i%zones)}
	}
	more := append(ps, Partition{ID: uint32(partitions), Zone: fmt.Sprintf("z%d", partitions%zones)})
	k = min(k, partitions)
	words := (partitions + 64) / 64
	sets := make([]uint64, tenants*words)
	load := make([]int, partitions)
	s := Simulation{}
	changed, extra := 0, 0
	for t := range tenants {
		key := Key{Secret: "simulation", Tenant: fmt.Sprintf("tenant-%d", t)}
		now := Choose(key, ps, k)
		held := map[string]int{}
		for _, p := range now {
			load[p]++
			sets[t*words+int(p/64)] |= 1 << (p % 64)
			held[ps[p].Zone]++
		}
		n := 0
		for _, p := range Choose(key, more, k) {
			if p == uint32(partitions) || sets[t*words+int(p/64)]&(1<<(p%64)) == 0 {
				n++
			}
		}
		changed += n
		s.MostChanged = max(s.MostChanged, n)
		if home := ps[now[0]].Zone; held[home] < min(homeMembers, inZone(ps, home)) {
			extra++
		}
	}
	most, least := 0, tenants
	for _, n := range load {
		most, least = max(most, n), min(least, n)
	}
	slots := float64(tenants * k)
	mean := slots / float64(partitions)
	s.MaxByMean, s.MinByMean = float64(most)/mean, float64(least)/mean
	s.Changed, s.Extra = float64(changed)/slots, float64(extra)/float64(tenants)

	counts := make([]int, k+1)
	each := min(tenants-1, max(1, maxPairs/tenants))
	for t := range tenants {
		for d := 1; d <= each && t+d < tenants; d++ {
			n := 0
			for w := range words {
				n += bits.OnesCount64(sets[t*words+w] & sets[(t+d)*words+w])
			}
			counts[n]++
			s.Pairs++
		}
	}
	for j, p := range Overlap(partitions, k) {
		row := Shared{Partitions: j, Exact: p}
		if s.Pairs > 0 {
			row.Measured = float64(counts[j]) / float64(s.Pairs)
		}
		s.Overlap = append(s.Overlap, row)
	}
	return s
}

func inZone(partitions []Partition, zone string) (n int) {
	for _, p := range partitions {
		if p.Zone == zone {
			n++
		}
	}
	return n
}
