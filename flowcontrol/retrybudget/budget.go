// Package retrybudget bounds how many retries a function makes beside its first tries: one for every five of them, and ten a
// second. While everything fails, a downstream is called little more often than if nothing did; without a bound every task
// comes as often as it has attempts.
//
// A retry without budget is to wait, never to be dropped. Throttled tries are no retries here: adaptive limits hold them back.
//
// Pure: the caller passes the time.
package retrybudget

import "time"

// The budget: what it gains, and how much of it can be saved.
const (
	Ratio     = 0.2   // of a retry for each first try
	PerSecond = 10.0  // retries a second, whatever else
	Most      = 100.0 // retries that can be made at once after a calm time
)

// Budget is one function's. Its zero value is full.
type Budget struct {
	at    time.Time // zero: never used
	spent float64   // of Most
}

// First counts a first try.
func (b *Budget) First(now time.Time) {
	b.gain(now)
	b.spent = max(0, b.spent-Ratio)
}

// Take pays for one retry. False: there is nothing to pay it with yet.
func (b *Budget) Take(now time.Time) bool {
	b.gain(now)
	if b.spent > Most-1 {
		return false
	}
	b.spent++
	return true
}

// Wait is how long until a retry can be paid for if nothing else is tried before; 0: now.
func (b *Budget) Wait(now time.Time) time.Duration {
	b.gain(now)
	if short := b.spent - (Most - 1); short > 0 {
		// Rounded up: whoever comes then is not told to come again.
		return time.Duration(short/PerSecond*float64(time.Second)) + time.Microsecond
	}
	return 0
}

func (b *Budget) gain(now time.Time) {
	if d := now.Sub(b.at); !b.at.IsZero() && d > 0 {
		b.spent = max(0, b.spent-d.Seconds()*PerSecond)
	}
	if b.at.Before(now) {
		b.at = now
	}
}
