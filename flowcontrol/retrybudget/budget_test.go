package retrybudget

import (
	"math/rand/v2"
	"testing"
	"time"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// However first tries and retries come, and however the clock jumps: in no stretch of time are there more retries than the
// budget has.
func TestNeverMoreThanItHas(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var b Budget
		now := start
		b.Wait(now)
		type mark struct {
			at            time.Time
			firsts, again float64
		}
		marks := []mark{{at: now}}
		firsts, again := 0.0, 0.0
		for range 5000 {
			switch rng.IntN(3) {
			case 0:
				now = now.Add(time.Duration(rng.Int64N(int64(50 * time.Millisecond))))
			case 1:
				b.First(now)
				firsts++
			default:
				if b.Take(now.Add(-time.Duration(rng.IntN(2)) * time.Second)) { // a late caller gains nothing
					again++
				}
			}
			if rng.IntN(50) == 0 {
				b.Wait(now) // else it gains later for time before the mark
				marks = append(marks, mark{now, firsts, again})
			}
			for _, m := range marks {
				if most := Most + Ratio*(firsts-m.firsts) + PerSecond*now.Sub(m.at).Seconds(); again-m.again > most+1e-6 {
					t.Fatalf("seed %d: %g retries after %v with %g first tries, at most %g", seed, again-m.again, now.Sub(m.at), firsts-m.firsts, most)
				}
			}
		}
		if again < 100 {
			t.Fatalf("seed %d: only %g retries", seed, again)
		}
	}
}

// At the told time there is one, and not a millisecond before.
func TestWait(t *testing.T) {
	var b Budget
	for b.Take(start) {
	}
	wait := b.Wait(start)
	if wait < 100*time.Millisecond || wait > 101*time.Millisecond {
		t.Fatalf("%v until the next one, want 100 ms", wait)
	}
	c := b
	if c.Take(start.Add(wait - time.Millisecond)) {
		t.Error("there is one a millisecond before the told time")
	}
	if !b.Take(start.Add(wait)) {
		t.Error("there is none at the told time")
	}
	for range 5 {
		b.First(start.Add(wait))
	}
	if b.Wait(start.Add(wait)) != 0 || !b.Take(start.Add(wait)) {
		t.Error("five first tries pay for no retry")
	}
}
