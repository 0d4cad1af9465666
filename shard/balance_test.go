package shard

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// weighed returns the load of each node, as Balance counts.
func weighed(owners map[uint32]NodeID, loads map[uint32]Load) map[NodeID]float64 {
	mean, out := 0.0, map[NodeID]float64{}
	for p := range owners {
		mean += loads[p].Rate / float64(len(owners))
	}
	for p, id := range owners {
		out[id] += loads[p].Rate + balanceBase*mean
	}
	return out
}

func heaviest(m map[NodeID]float64) float64 { return slices.Max(slices.Collect(maps.Values(m))) }

// Four hot partitions of one node are spread over four nodes, one at a time of the few that may move, those with the least
// backlog first; counts stay equal, so Assign has nothing to do.
func TestBalanceSpreadsWhatIsHot(t *testing.T) {
	ps, ns := upTo(16), nodes(4)
	owners := Assign(nil, ns, ps)
	rates := map[uint32]Load{}
	var hot []uint32
	for _, p := range ps {
		rates[p] = Load{Rate: 10}
		if owners[p] == "n00" {
			rates[p] = Load{Rate: 1000, Backlog: int64(p)}
			hot = append(hot, p)
		}
	}
	movedAt := map[uint32]time.Time{}
	now := day
	before := owners
	for round := range 5 {
		next := Balance(now, owners, ns, ps, rates, movedAt)
		if n := moves(owners, next); n > 2 {
			t.Errorf("round %d moves %d of 16", round, n)
		}
		if round == 0 && next[hot[0]] == "n00" {
			t.Errorf("the one with the least backlog, %d, stays: %v", hot[0], next)
		}
		for p, id := range next {
			if owners[p] != id {
				movedAt[p] = now
			}
		}
		owners = next
		now = now.Add(BalanceEvery)
	}
	seen := map[NodeID]bool{}
	for _, p := range hot {
		seen[owners[p]] = true
	}
	if len(seen) != 4 {
		t.Errorf("hot ones are at %v; %v to %v", seen, before, owners)
	}
	if n := moves(owners, Assign(owners, ns, ps)); n != 0 {
		t.Errorf("Assign moves %d back", n)
	}
}

// What moved lately stays, and so does everything under loads that are equal, small, or unknown.
func TestBalanceLeavesAlone(t *testing.T) {
	ps, ns := upTo(256), nodes(16)
	owners := Assign(nil, ns, ps)
	r := rand.New(rand.NewPCG(1, 2))
	for _, c := range []struct {
		name string
		rate func(p uint32) float64
	}{
		{"none", func(uint32) float64 { return 0 }},
		{"equal", func(uint32) float64 { return 100 }},
		{"nearly equal", func(uint32) float64 { return 95 + 10*r.Float64() }},
		{"small", func(p uint32) float64 { return float64(p%2) * 3 * r.Float64() }},
		{"one that fills a node", func(p uint32) float64 { return []float64{0, 1e5}[min(p/255, 1)] }},
	} {
		rates := map[uint32]Load{}
		for _, p := range ps {
			rates[p] = Load{Rate: c.rate(p)}
		}
		if next := Balance(day, owners, ns, ps, rates, nil); c.name != "one that fills a node" && moves(owners, next) != 0 {
			t.Errorf("%s: %d moves", c.name, moves(owners, next))
		}
	}
	rates, movedAt := map[uint32]Load{}, map[uint32]time.Time{}
	for _, p := range ps {
		movedAt[p] = day
		if owners[p] == "n03" {
			rates[p] = Load{Rate: 500}
		}
	}
	if n := moves(owners, Balance(day.Add(balanceRest-1), owners, ns, ps, rates, movedAt)); n != 0 {
		t.Errorf("%d move that moved within a minute", n)
	}
	if n := moves(owners, Balance(day.Add(balanceRest), owners, ns, ps, rates, movedAt)); n == 0 || n > 25 {
		t.Errorf("%d move, want 1 to 25", n)
	}
}

// Over random loads: shares stay, the heaviest load never grows, a second look at the same loads ends in rest soon,
// and the result depends on no order.
func TestBalanceProperties(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 11))
		ps, ns := upTo(1+r.IntN(128)), nodes(1+r.IntN(9))
		owners := Assign(nil, ns, ps)
		rates := map[uint32]Load{}
		for _, p := range ps {
			rates[p] = Load{Rate: 200 * r.ExpFloat64(), Backlog: int64(r.IntN(1000))}
		}
		most := max(2, len(ps)/10)
		for round := 0; ; round++ {
			next := Balance(day, owners, ns, ps, rates, nil)
			mixed, other := slices.Clone(ps), slices.Clone(ns)
			r.Shuffle(len(mixed), func(i, j int) { mixed[i], mixed[j] = mixed[j], mixed[i] })
			r.Shuffle(len(other), func(i, j int) { other[i], other[j] = other[j], other[i] })
			if !maps.Equal(next, Balance(day, owners, other, mixed, rates, nil)) {
				t.Fatalf("seed %d: the order decides", seed)
			}
			n := moves(owners, next)
			if n > most || heaviest(weighed(next, rates)) > heaviest(weighed(owners, rates))+1e-6 {
				t.Fatalf("seed %d: %d moves, heaviest %v, then %v", seed, n, weighed(owners, rates), weighed(next, rates))
			}
			if moves(next, Assign(next, ns, ps)) != 0 {
				t.Fatalf("seed %d: shares differ by more than one", seed)
			}
			if owners = next; n == 0 {
				break
			}
			if round > 100 {
				t.Fatalf("seed %d: it never rests", seed)
			}
		}
	}
}
