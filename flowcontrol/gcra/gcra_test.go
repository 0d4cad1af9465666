package gcra

import (
	"math/rand/v2"
	"testing"
	"time"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// The vector of algorithms.md §4.2: 10 a second, burst 5.
func TestVector(t *testing.T) {
	var l Limiter
	r := Rate{PerSecond: 10, Burst: 5}
	for _, c := range []struct {
		at   time.Duration
		wait time.Duration // 0: passes
	}{
		{0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 100 * time.Millisecond},
		{50 * time.Millisecond, 50 * time.Millisecond},
		{100 * time.Millisecond, 0}, {100 * time.Millisecond, 100 * time.Millisecond},
		{500 * time.Millisecond, 0}, {500 * time.Millisecond, 0}, {500 * time.Millisecond, 0}, {500 * time.Millisecond, 0},
		{500 * time.Millisecond, 100 * time.Millisecond},
	} {
		wait, ok := l.Take(start.Add(c.at), r, 1)
		if ok != (c.wait == 0) || wait != c.wait {
			t.Fatalf("at %v: passes %v, wait %v; want wait %v", c.at, ok, wait, c.wait)
		}
	}
}

// A retry at the told time passes, a millisecond earlier it does not.
func TestWaitIsExact(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 20_000 {
		var l Limiter
		r := Rate{PerSecond: 0.1 + 1000*rng.Float64(), Burst: 1 + float64(rng.IntN(20))}
		now := start
		for range 30 {
			now = now.Add(time.Duration(rng.Int64N(int64(20 * time.Millisecond))))
			n := float64(1 + rng.IntN(int(r.Burst)))
			wait, ok := l.Take(now, r, n)
			if ok {
				continue
			}
			if early := l; wait > time.Millisecond {
				if _, ok := early.Take(now.Add(wait-time.Millisecond), r, n); ok {
					t.Fatalf("%+v: passed 1 ms before the told time", r)
				}
			}
			now = now.Add(wait)
			if _, ok := l.Take(now, r, n); !ok {
				t.Fatalf("%+v: refused at the told time", r)
			}
		}
	}
}

// Whatever comes, no more than burst + rate·time passes.
func TestNeverMoreThanTheRate(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	for range 500 {
		var l Limiter
		r := Rate{PerSecond: 1 + 100*rng.Float64(), Burst: 1 + float64(rng.IntN(10))}
		now, passed := start, 0.0
		for range 1000 {
			now = now.Add(time.Duration(rng.Int64N(int64(10 * time.Millisecond))))
			n := min(l.Fits(now, r), float64(rng.IntN(5)))
			if n < 1 {
				n = 1
			}
			if _, ok := l.Take(now, r, n); ok {
				passed += n
			}
			if most := r.Burst + r.PerSecond*now.Sub(start).Seconds() + 1e-3; passed > most {
				t.Fatalf("%+v: %g passed in %v, want at most %g", r, passed, now.Sub(start), most)
			}
		}
	}
}

func TestZeroRateLetsNothingPass(t *testing.T) {
	var l Limiter
	if _, ok := l.Take(start, Rate{}, 1); ok {
		t.Error("the zero rate let one pass")
	}
	if (Rate{}).Check() == nil || (Rate{PerSecond: 1}).Check() == nil || (Rate{PerSecond: 1, Burst: 1}).Check() != nil {
		t.Error("Check is wrong about the ranges")
	}
}
