package dispatcher

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/headrace/headrace/dispatcher/ownership"
	"github.com/headrace/headrace/internal/faketime"
)

// The wall clock is set by an hour, forth and back. The node's clock leans towards it by a twentieth of the time
// that passes and never goes back; a suspend counts at once.
func TestClockLeansTowardsTheWall(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	c := &firingClock{at: start, last: start}
	at := start
	for _, step := range []struct{ passed, wallAhead, want time.Duration }{
		{time.Second, 0, time.Second},
		{time.Second, time.Hour, time.Second + 50*time.Millisecond},
		{time.Second, -time.Hour, time.Second - 50*time.Millisecond},
		{time.Second, 10 * time.Millisecond, time.Second + 10*time.Millisecond},
		{time.Hour, 0, time.Hour}, // a suspend, that the steady clock counts
		{0, time.Hour, 0},
	} {
		at = at.Add(step.passed)
		before := c.last
		now := c.advance(step.passed, at, before.Add(step.passed+step.wallAhead))
		if got := now.Sub(before); got != step.want {
			t.Errorf("%+v: it went on by %v", step, got)
		}
	}
}

// A keep-alive sent a second ago is good for the window less a second; none is good for nothing.
func TestTrustEndsWithTheKeepAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := newFiringClock()
		base := time.Now()
		tr := &trust{base: func() time.Time { return base }, now: clock.Now, life: ownership.Trust(5 * time.Second)}
		faketime.Pass(time.Second) // of the bubble
		now := clock.Now()
		if got := tr.get().Sub(now); got != 3*time.Second {
			t.Errorf("trust for %v more", got)
		}
		faketime.Pass(time.Second)
		if got := tr.get().Sub(clock.Now()); got != 2*time.Second {
			t.Errorf("a second later for %v more", got)
		}
		base = time.Time{}
		if !tr.get().IsZero() {
			t.Error("trust without a lease")
		}
	})
}
