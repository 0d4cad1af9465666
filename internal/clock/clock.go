// Package clock is a monotonic clock that also counts the time that the machine was suspended.
//
// Go's own stands still then (CLOCK_MONOTONIC). Trust windows and orphan timers must not: a laptop that
// slept for an hour would wake up and go on as if it still owned what others have taken over (takeover.md,
// R7). Readings are good for differences only; their wall time is off by the suspended time.
//
// In a synctest bubble it shows the bubble's time, as nothing is ever suspended there.
package clock

import (
	"sync/atomic"
	"time"
)

const (
	sampleEvery = 100 * time.Millisecond // the offset is looked at no more often
	step        = time.Millisecond       // and changes only by more than this, so that noise of the reads is none
)

// Clock is safe for use by many goroutines. Create it with New.
type Clock struct {
	start     time.Time
	read      func() (time.Duration, bool) // boot time less monotonic time
	base      time.Duration                // that at the start
	suspended atomic.Int64                 // since the start; only grows
	nextAt    atomic.Int64                 // next sample, since start
}

// New returns a clock that starts now.
func New() *Clock { return newClock(offset) }

func newClock(read func() (time.Duration, bool)) *Clock {
	c := &Clock{start: time.Now(), read: read}
	for range 1000 { // on a busy machine a good read may take a few tries
		var ok bool
		if c.base, ok = read(); ok {
			return c
		}
	}
	c.read = func() (time.Duration, bool) { return 0, false } // without a base there is nothing to compare with
	return c
}

// Now returns the time. It never goes back for a goroutine that calls it twice.
func (c *Clock) Now() time.Time {
	now := time.Now()
	since := int64(now.Sub(c.start))
	if next := c.nextAt.Load(); since >= next && c.nextAt.CompareAndSwap(next, since+int64(sampleEvery)) {
		if o, ok := c.read(); ok {
			if d := int64(o - c.base); d > c.suspended.Load()+int64(step) {
				c.suspended.Store(d)
			}
		}
	}
	return now.Add(time.Duration(c.suspended.Load()))
}
