package adaptive

import (
	"math/rand/v2"
	"testing"
	"time"
)

func TestGateHoldsItsShare(t *testing.T) {
	g := NewGate(epoch)
	if n, again := g.Free(epoch); n != 0 || !again.IsZero() {
		t.Fatalf("without a share %d are free, again %v", n, again)
	}
	g.SetShare(2, 2)
	g.Start()
	g.Start()
	g.Start() // adopted
	if n, again := g.Free(epoch); n > 0 || !again.IsZero() || g.InFlight() != 3 || g.Peak() != 3 {
		t.Fatalf("%d free, again %v, %d in flight", n, again, g.InFlight())
	}
	g.End(time.Second, false)
	if n, _ := g.Free(epoch); n > 0 {
		t.Error("a permit beyond the share is free")
	}
	g.End(time.Second, false)
	if n, _ := g.Free(epoch); n != 1 {
		t.Errorf("%d are free, want 1", n)
	}
}

// A permit whose attempt was throttled is not used again before its cool-down, to the nanosecond.
func TestThrottledPermitCoolsDown(t *testing.T) {
	for _, c := range []struct{ after, want time.Duration }{{0, coolLeast}, {time.Millisecond, coolLeast}, {3 * time.Second, 3 * time.Second}} {
		g := NewGate(epoch)
		g.SetShare(1, 1)
		g.Start()
		until := g.Throttled(epoch, c.after, false)
		if until.Sub(epoch) != c.want {
			t.Errorf("after %v it cools down for %v, want %v", c.after, until.Sub(epoch), c.want)
		}
		if n, again := g.Free(until.Add(-1)); n != 0 || !again.Equal(until) || g.Parked() != 1 {
			t.Errorf("after %v: a nanosecond before %d are free, again %v", c.after, n, again)
		}
		if n, _ := g.Free(until); n != 1 || g.Parked() != 0 {
			t.Errorf("after %v: then %d are free", c.after, n)
		}
	}
}

// The cool-down follows the service time, within bounds.
func TestCoolDownFollowsTheService(t *testing.T) {
	for _, c := range []struct{ took, want time.Duration }{{time.Millisecond, coolLeast}, {time.Second, time.Second}, {time.Hour, coolMost}} {
		g := NewGate(epoch)
		g.SetShare(2, 2)
		g.Start()
		g.Accepted(true)
		g.End(c.took, true)
		g.Start()
		if got := g.Throttled(epoch, 0, false).Sub(epoch); got != c.want {
			t.Errorf("attempts of %v: %v, want %v", c.took, got, c.want)
		}
	}
}

// Permits that have cooled down ask again one for each token, and time brings one a minute.
func TestBudgetBoundsTheAsking(t *testing.T) {
	g := NewGate(epoch)
	g.SetShare(20, 20)
	for range 20 {
		g.Start()
	}
	for range 20 {
		g.Throttled(epoch, 0, false)
	}
	now := epoch.Add(time.Second)
	n, again := g.Free(now)
	if n != 0 || again.Before(now.Add(50*time.Second)) || again.After(now.Add(time.Minute)) {
		t.Fatalf("with an empty budget %d may ask, the next in %v", n, again.Sub(now))
	}
	if n, _ := g.Free(again.Add(-time.Millisecond)); n != 0 {
		t.Error("one asks before there is a token")
	}
	if n, _ := g.Free(again); n != 1 {
		t.Errorf("a token lets %d ask, want 1", n)
	}
}

// A share that fell takes parked permits with it, so that what it leaves is not held by them.
func TestSmallerShareDropsParkedPermits(t *testing.T) {
	g := NewGate(epoch)
	g.SetShare(10, 10)
	for range 10 {
		g.Start()
	}
	for range 9 {
		g.Throttled(epoch, 0, false)
	}
	g.SetShare(2, 2)
	g.Free(epoch.Add(time.Second))
	if g.Parked() > 1 {
		t.Errorf("%d permits are parked beside one in use, of a share of 2", g.Parked())
	}
}

// What a downstream answers at random never moves the law out of its rules.
func TestLawKeepsItsRules(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 11))
		cfg := Config{Min: 1 + rng.IntN(5), Max: 20 + rng.IntN(500)}
		l := New(cfg, epoch)
		now := epoch
		var lastCut time.Time
		for range 300 {
			now = now.Add(time.Second)
			bad := rng.Float64() * rng.Float64()
			for range rng.IntN(100) {
				if rng.Float64() > bad {
					l.OK(1)
					continue
				}
				before := l.Value()
				l.Throttle(now, 1, rng.IntN(10))
				after := l.Value()
				if after == before {
					continue
				}
				d := l.Decisions()[len(l.Decisions())-1]
				if after > before || d.Reason != Decrease || d.Throttles < decreaseCount || d.Rate < decreaseRate {
					t.Fatalf("seed %d: a throttle made %v", seed, d)
				}
				if !lastCut.IsZero() && now.Sub(lastCut) < hold {
					t.Fatalf("seed %d: decreases %v apart", seed, now.Sub(lastCut))
				}
				lastCut = now
			}
			before, tokens := l.Value(), l.budget.tokens
			peak := int(before * 1.2 * rng.Float64())
			l.Tick(now, peak)
			after := l.Value()
			switch {
			case after < float64(cfg.Min) || after > float64(cfg.Max):
				t.Fatalf("seed %d: %v is out of %v", seed, after, cfg)
			case after > before && (float64(peak) < usedShare*before || tokens < 1):
				t.Fatalf("seed %d: grew from %v to %v with %d in use and %v tokens", seed, before, after, peak, tokens)
			case after > 2*before:
				t.Fatalf("seed %d: grew from %v to %v in a tick", seed, before, after)
			}
		}
	}
}

func TestSetAndBegin(t *testing.T) {
	l := New(Config{Max: 1000}, epoch)
	l.Begin(500, epoch)
	if l.Cap() != 500 {
		t.Errorf("begins at %d", l.Cap())
	}
	l.SetConfig(Config{Min: 40, Max: 40}, epoch)
	for i := range 100 {
		l.Throttle(epoch.Add(time.Duration(i)*time.Second), 20, 5)
		l.Tick(epoch.Add(time.Duration(i)*time.Second), 40)
		if l.Cap() != 40 {
			t.Fatalf("a fixed limit is %d", l.Cap())
		}
	}
	for _, c := range []Config{{Min: -1}, {Max: MaxLimit + 1}, {Min: 5, Max: 4}, {Start: 5, Max: 4}} {
		if c.Check() == nil {
			t.Errorf("%+v is taken", c)
		}
	}
}

// A downstream that is idle falls back to where it began.
func TestIdleLimitDecays(t *testing.T) {
	l := New(Config{Max: 1000}, epoch)
	l.Begin(500, epoch)
	now := epoch
	for range 600 {
		now = now.Add(10 * time.Second)
		l.Tick(now, 0)
	}
	if l.Cap() != 4 {
		t.Errorf("after 100 idle minutes the limit is %d", l.Cap())
	}
}
