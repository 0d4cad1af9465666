package heavy

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

func random(seed uint64) func() float64 { return rand.New(rand.NewPCG(seed, 1)).Float64 }

// The chance to miss a key of exactly the threshold is (1-p)^T; with an oversampling of 4 it is large enough to count.
func TestMissesAsOftenAsItShould(t *testing.T) {
	const trials, threshold = 10_000, 1000
	rng := random(1)
	missed := 0
	for range trials {
		c := New(threshold, rng)
		c.p = 4.0 / threshold
		for range threshold {
			c.Add("k", 1)
		}
		if c.Held() == 0 {
			missed++
		}
	}
	want := math.Pow(1-4.0/threshold, threshold)
	sigma := math.Sqrt(want * (1 - want) / trials)
	if got := float64(missed) / trials; math.Abs(got-want) > 3*sigma {
		t.Errorf("missed %.4f, want %.4f ± %.4f", got, want, 3*sigma)
	}
}

func TestNeverCountsTooMuchAndThenExactly(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	c := New(500, rng.Float64)
	for interval := range 5 {
		truth := map[string]float64{}
		total := 0.0
		for range 50_000 {
			k := fmt.Sprint(int(math.Floor(math.Exp(8 * rng.Float64())))) // few are heavy
			cost := float64(1 + rng.IntN(3))
			c.Add(k, cost)
			truth[k] += cost
			total += cost
		}
		if c.Total() != total {
			t.Fatalf("total is %g, want %g", c.Total(), total)
		}
		kept := map[string]bool{}
		for _, k := range c.Heavy() {
			if truth[k.Name] < k.Cost {
				t.Fatalf("interval %d: %s counts %g, is %g", interval, k.Name, k.Cost, truth[k.Name])
			}
			if !c.held[k.Name].new && truth[k.Name] != k.Cost {
				t.Fatalf("interval %d: %s was held before and counts %g, is %g", interval, k.Name, k.Cost, truth[k.Name])
			}
			kept[k.Name] = true
		}
		for k, cost := range truth {
			if cost > 1.5*500 && !kept[k] {
				t.Errorf("interval %d: %s costs %g and is not heavy", interval, k, cost)
			}
		}
		c.Next(500)
	}
}

// The entries held are O·C/T in the mean, within 3.29 of their roots.
func TestHoldsNoMoreThanItShould(t *testing.T) {
	const cost, share = 200_000, 0.01
	c := New(cost*share, random(5))
	for i := range cost {
		c.Add(fmt.Sprint(i), 1) // all different: nothing is heavy
	}
	mean := Oversample / share
	if got := float64(c.Held()); math.Abs(got-mean) > 3.29*math.Sqrt(mean) {
		t.Errorf("%g are held, want %g ± %g", got, mean, 3.29*math.Sqrt(mean))
	}
	if heavy := c.Heavy(); len(heavy) != 0 {
		t.Errorf("heavy: %v", heavy)
	}
}

func TestIsBounded(t *testing.T) {
	c := New(20, random(6)) // every key is sampled
	for i := range 20 * MaxHeld {
		c.Add(fmt.Sprint(i), 1)
		if i%100 == 0 {
			c.Add("flood", 1)
		}
		if c.Held() > MaxHeld {
			t.Fatalf("%d are held", c.Held())
		}
	}
	if heavy := c.Heavy(); len(heavy) == 0 || heavy[0].Name != "flood" {
		t.Errorf("the heavy one was lost: %d heavy", len(heavy))
	}
}
