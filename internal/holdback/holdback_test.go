package holdback

import (
	"math/rand/v2"
	"testing"
	"time"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// calls makes 100 calls a second, of which the server answers so many a second; it returns how many went.
func calls100(t *Throttle, rng *rand.Rand, now *time.Time, d time.Duration, most int) (wanted, went, answers int) {
	left := most
	for end := now.Add(d); now.Before(end); *now = now.Add(10 * time.Millisecond) {
		if wanted++; wanted%100 == 0 {
			left = most
		}
		if !t.Allow(*now, rng.Float64()) {
			continue
		}
		went++
		if left--; left >= 0 {
			t.Answered(*now)
			answers++
		} else {
			t.Failed(*now)
		}
	}
	return wanted, went, answers
}

func TestThrottle(t *testing.T) {
	var h Throttle
	rng := rand.New(rand.NewPCG(1, 2))
	now := start
	if wanted, went, _ := calls100(&h, rng, &now, 2*Window, 60); went < wanted*99/100 {
		t.Errorf("%d of %d calls went, though six of ten are answered", went, wanted)
	}
	// Of a server that answers 20 a second, it is asked twice as much.
	calls100(&h, rng, &now, 2*Window, 20)
	if wanted, went, answers := calls100(&h, rng, &now, Window, 20); float64(went) > 2.2*float64(answers) || float64(went) < 1.8*float64(answers) {
		t.Errorf("of %d calls %d went, and %d were answered; want twice as many as were", wanted, went, answers)
	}
	calls100(&h, rng, &now, Window, 0)
	if wanted, went, _ := calls100(&h, rng, &now, time.Minute, 0); went < 55 || went > 180 {
		t.Errorf("down: %d of %d calls went, want one a second and some", went, wanted)
	}
	calls100(&h, rng, &now, Calm+2*Probe, 100)
	if wanted, went, _ := calls100(&h, rng, &now, Window, 100); went != wanted {
		t.Errorf("up again: %d of %d calls went", went, wanted)
	}
}

// A client that was started while the server was down notices within a second that it is up.
func TestProbe(t *testing.T) {
	var h Throttle
	now := start
	for range 1000 {
		if h.Allow(now, 0) {
			h.Failed(now)
		}
		now = now.Add(100 * time.Millisecond)
	}
	for at := now; ; at = at.Add(50 * time.Millisecond) {
		if h.Allow(at, 0) {
			if at.Sub(now) > Probe {
				t.Errorf("the next call went after %v", at.Sub(now))
			}
			break
		}
	}
}

// A client that begins with many calls at once has no answers yet, and holds none of them back.
func TestUnderWay(t *testing.T) {
	var h Throttle
	for i := range 100 {
		if !h.Allow(start, 0) {
			t.Fatalf("call %d is held back", i+1)
		}
	}
}
