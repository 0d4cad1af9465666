package dispatcher

import (
	"sync"
	"time"

	"github.com/headrace/headrace/internal/clock"
)

// firingClock is the one time of the node's core. It must be two things at once: near the wall clock, for
// due times and deadlines, and steady, for trust and orphan timers, which break promises when somebody
// sets the clock. So it runs with the clock that counts suspends, and leans towards the wall clock by at
// most a twentieth of the time that passes: half of what the protocol tolerates between two clocks.
//
// Its times carry no monotonic reading of Go's: that would stand still during a suspend.
type firingClock struct {
	steady *clock.Clock

	mu   sync.Mutex // guards following
	at   time.Time  // of steady, at the last reading
	last time.Time  // what was returned then
}

// lean is the share of passing time by which the clock may differ from a steady one.
const lean = 20

func newFiringClock() *firingClock {
	c := &firingClock{steady: clock.New()}
	c.at, c.last = c.steady.Now(), time.Now().Round(0)
	return c
}

// Now never goes back.
func (c *firingClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.steady.Now()
	return c.advance(at.Sub(c.at), at, time.Now().Round(0))
}

// advance moves the clock by passed, and towards wall as far as it may.
func (c *firingClock) advance(passed time.Duration, at, wall time.Time) time.Time {
	if passed <= 0 {
		return c.last
	}
	next := c.last.Add(passed)
	most := passed / lean
	next = next.Add(min(max(wall.Sub(next), -most), most))
	c.at, c.last = at, next
	return next
}

// trust turns the membership's trust base into the end of the trust window by the node's clock.
// The loop's goroutine only.
type trust struct {
	base  func() time.Time // when the last successful keep-alive was sent, by Go's clock
	now   func() time.Time
	life  time.Duration // from that on
	seen  time.Time
	until time.Time
}

func (t *trust) get() time.Time {
	base := t.base()
	if base.IsZero() {
		return time.Time{}
	}
	if base != t.seen {
		// Go's monotonic clock stands still in a suspend and the wall clock can be set: the longer counts.
		now := time.Now()
		passed := max(now.Sub(base), now.Round(0).Sub(base.Round(0)), 0)
		t.seen, t.until = base, t.now().Add(t.life-passed)
	}
	return t.until
}
