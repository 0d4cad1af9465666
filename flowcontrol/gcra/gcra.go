// Package gcra is the generic cell rate algorithm (ITU-T I.371): a rate limit that is one time per key, and that says
// exactly when the next try will pass.
//
// Pure: the caller passes the time.
package gcra

import (
	"fmt"
	"math"
	"time"
)

// Rate is so many units a second, with a burst of so many at once. The zero Rate lets nothing pass.
type Rate struct {
	PerSecond float64
	Burst     float64 // at least 1
}

// MaxPerSecond is the largest rate that can be asked for.
const MaxPerSecond = 1e9

// Check says which field is out of its range.
func (r Rate) Check() error {
	if !(r.PerSecond > 0 && r.PerSecond <= MaxPerSecond) {
		return fmt.Errorf("rate is %g a second, must be above 0 and at most %g", r.PerSecond, MaxPerSecond)
	}
	if !(r.Burst >= 1 && r.Burst <= MaxPerSecond) {
		return fmt.Errorf("burst is %g, must be 1 to %g", r.Burst, MaxPerSecond)
	}
	return nil
}

// Limiter is the state of one key. Its zero value has its whole burst.
type Limiter struct {
	tat time.Time // theoretical arrival time: when the burst is whole again, less the burst's length
}

// Take lets n units pass at now, or says how long to wait until they would, if nobody else comes. A try at exactly
// that time passes. n above the burst passes when the burst is whole; what it overdraws is waited for by the next.
func (l *Limiter) Take(now time.Time, r Rate, n float64) (wait time.Duration, ok bool) {
	if wait = l.Wait(now, r, n); wait > 0 {
		return wait, false
	}
	if l.tat.Before(now) {
		l.tat = now
	}
	l.tat = l.tat.Add(r.length(n))
	return 0, true
}

// Wait is how long n units have to wait, 0 if they may pass now.
func (l *Limiter) Wait(now time.Time, r Rate, n float64) time.Duration {
	if r.PerSecond <= 0 {
		return math.MaxInt64
	}
	if l.tat.Before(now) {
		return 0
	}
	// The burst less what is asked for is how far ahead of now the arrival time may be.
	slack := r.length(max(r.Burst-n, 0))
	return max(0, l.tat.Add(-slack).Sub(now))
}

// Fits is how many units may pass now: a batch that is too large is admitted as far as it goes.
func (l *Limiter) Fits(now time.Time, r Rate) float64 {
	if r.PerSecond <= 0 {
		return 0
	}
	ahead := max(0, l.tat.Sub(now))
	return max(0, r.Burst-ahead.Seconds()*r.PerSecond)
}

func (r Rate) length(n float64) time.Duration {
	return time.Duration(math.Round(n / r.PerSecond * float64(time.Second)))
}
