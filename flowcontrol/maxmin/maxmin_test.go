package maxmin

import (
	"math"
	"math/rand/v2"
	"testing"
)

// The vectors of algorithms.md §4.2.
func TestVectors(t *testing.T) {
	for _, c := range []struct {
		total   float64
		demands []float64
		weights []float64
		want    []float64
	}{
		{1000, []float64{5000, 100, 300, 50}, nil, []float64{550, 100, 300, 50}},
		{1000, []float64{5000, 800, 100, 300, 50}, nil, []float64{850.0 / 3, 850.0 / 3, 100, 850.0 / 3, 50}},
		{1000, []float64{5000, 800, 100, 300, 50}, []float64{2, 1, 1, 1, 1}, []float64{425, 212.5, 100, 212.5, 50}},
		{10, []float64{3, 3, 3}, nil, []float64{3, 3, 3}},
		{1, []float64{5, 5, 5, 5}, nil, []float64{.25, .25, .25, .25}},
		{0, []float64{5}, nil, []float64{0}},
		{5, nil, nil, nil},
	} {
		got := Fill(c.total, claims(c.demands, c.weights))
		for i := range c.want {
			if math.Abs(got[i]-c.want[i]) > 1e-9 {
				t.Errorf("Fill(%g, %v, weights %v) = %v, want %v", c.total, c.demands, c.weights, got, c.want)
				break
			}
		}
	}
}

func TestFillIsMaxMin(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 5000 {
		n := 1 + rng.IntN(8)
		cs := make([]Claim, n)
		sum := 0.0
		for i := range cs {
			cs[i] = Claim{Demand: float64(rng.IntN(100)), Weight: float64(rng.IntN(5))}
			sum += cs[i].Demand
		}
		total := float64(rng.IntN(300))
		got := Fill(total, cs)
		given, level := 0.0, math.Inf(1)
		for i, g := range got {
			given += g
			if g > cs[i].Demand+1e-9 {
				t.Fatalf("%v of %g: share %d is above its demand: %v", cs, total, i, got)
			}
			if g < cs[i].Demand-1e-9 {
				level = min(level, g/cs[i].weight())
			}
		}
		if math.Abs(given-min(total, sum)) > 1e-6 {
			t.Fatalf("%v of %g: %g was given: %v", cs, total, given, got)
		}
		for i, g := range got {
			if g/cs[i].weight() > level+1e-6 {
				t.Fatalf("%v of %g: share %d is above the level %g of those that want more: %v", cs, total, i, level, got)
			}
		}
		perm := rng.Perm(n)
		mixed := make([]Claim, n)
		for i, p := range perm {
			mixed[i] = cs[p]
		}
		for i, g := range Fill(total, mixed) {
			if math.Abs(g-got[perm[i]]) > 1e-6 {
				t.Fatalf("%v of %g: the order of the claims matters", cs, total)
			}
		}
	}
}

func TestRound(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	for range 5000 {
		n := 1 + rng.IntN(8)
		cs := make([]Claim, n)
		for i := range cs {
			cs[i] = Claim{Demand: float64(rng.IntN(30))}
		}
		total := rng.IntN(60)
		shares := Fill(float64(total), cs)
		Spread(float64(total), cs, shares)
		got := Round(total, shares, rng.IntN(10))
		sum := 0
		for i, g := range got {
			sum += g
			if math.Abs(float64(g)-shares[i]) >= 1 {
				t.Fatalf("%v became %v", shares, got)
			}
		}
		if sum != total {
			t.Fatalf("%v became %v, which sums to %d, not %d", shares, got, sum, total)
		}
	}
}

// Fewer than one each: the odd ones go round, so that each is served within n turns.
func TestRoundRotates(t *testing.T) {
	served := map[int]bool{}
	for first := range 4 {
		for i, g := range Round(1, []float64{.25, .25, .25, .25}, first) {
			if g == 1 {
				served[i] = true
			}
		}
	}
	if len(served) != 4 {
		t.Errorf("served in four turns: %v", served)
	}
}

func claims(demands, weights []float64) []Claim {
	cs := make([]Claim, len(demands))
	for i, d := range demands {
		cs[i].Demand = d
		if weights != nil {
			cs[i].Weight = weights[i]
		}
	}
	return cs
}
