package elastic

import (
	"math"
	"time"
)

const (
	tau         = time.Minute // of the means
	serviceFrom = 20          // tries that have ended before their mean counts
)

// Meter makes the means of one function from counters that only grow. The zero Meter has seen nothing.
type Meter struct {
	at      time.Time
	arrived uint64
	ended   uint64
	busy    time.Duration

	// A mean of irregular samples forgets by e^(-Δt/τ). weight is what the samples so far add up to: with it the mean
	// is right from the first one, and not only after a few τ.
	weight  float64
	rate    float64
	tries   float64 // ended lately, each forgotten like the rest
	seconds float64 // that they took
	seen    uint64  // ended in all, since the meter began
	service time.Duration
}

// Add takes the counters: tasks that have become due, tries that have ended, and how long these ran in all. Counters
// that went back begin anew.
func (m *Meter) Add(now time.Time, arrived, ended uint64, busy time.Duration) {
	d := now.Sub(m.at)
	anew := m.at.IsZero() || arrived < m.arrived || ended < m.ended || busy < m.busy
	if !anew && d > 0 {
		keep := math.Exp(-d.Seconds() / tau.Seconds())
		n := ended - m.ended
		m.weight = m.weight*keep + (1 - keep)
		m.rate = m.rate*keep + (1-keep)*float64(arrived-m.arrived)/d.Seconds()
		m.tries = m.tries*keep + float64(n)
		m.seconds = m.seconds*keep + (busy - m.busy).Seconds()
		if m.seen += n; n > 0 {
			m.service = time.Duration(m.seconds / m.tries * float64(time.Second))
		}
	}
	if anew || d > 0 {
		m.at, m.arrived, m.ended, m.busy = now, arrived, ended, busy
	}
}

// Arrival is how many tasks become due a second.
func (m *Meter) Arrival() float64 {
	if m.weight == 0 {
		return 0
	}
	return m.rate / m.weight
}

// Service is how long a try takes; 0: too few have ended. Long after the last one it is what it was.
func (m *Meter) Service() time.Duration {
	if m.seen < serviceFrom {
		return 0
	}
	return m.service
}
