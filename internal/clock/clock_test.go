package clock

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/headrace/headrace/internal/faketime"
)

// An hour of suspend is an hour, although Go's own clock stood still. Noise below a millisecond is none.
func TestSuspendCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		offset := 5 * time.Hour // since boot, before our start
		c := newClock(func() (time.Duration, bool) { return offset, true })
		start := c.Now()
		offset += 900 * time.Microsecond
		faketime.Pass(time.Second)
		if d := c.Now().Sub(start); d != time.Second {
			t.Errorf("after 1 s and some noise: %v", d)
		}
		offset += time.Hour
		faketime.Pass(sampleEvery)
		if d := c.Now().Sub(start).Round(10 * time.Millisecond); d != time.Hour+time.Second+sampleEvery {
			t.Errorf("after an hour of suspend: %v", d)
		}
		offset -= time.Minute // never back
		faketime.Pass(sampleEvery)
		if d := c.Now().Sub(start).Round(10 * time.Millisecond); d != time.Hour+time.Second+2*sampleEvery {
			t.Errorf("after a wrong read: %v", d)
		}
	})
}

// The real clocks: nobody suspends this machine during the test, so it is Go's clock, to the nanosecond.
func TestFollowsGo(t *testing.T) {
	c := New()
	for range 1000 {
		before, now, after := time.Now(), c.Now(), time.Now()
		if now.Before(before) || now.After(after) {
			t.Fatalf("%v is not between %v and %v", now, before, after)
		}
	}
}

func BenchmarkNow(b *testing.B) {
	c := New()
	for b.Loop() {
		c.Now()
	}
}
