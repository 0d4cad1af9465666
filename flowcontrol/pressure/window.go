package pressure

import "time"

// window keeps the samples of a while.
type window struct {
	began   time.Time // of the first sample ever
	samples []sample
}

type sample struct {
	at time.Time
	v  float64
}

func (w *window) empty() bool { return len(w.samples) == 0 }

// add takes a sample and forgets those that are older than keep.
func (w *window) add(now time.Time, v float64, keep time.Duration) {
	if w.began.IsZero() {
		w.began = now
	}
	old := 0
	for old < len(w.samples) && now.Sub(w.samples[old].at) > keep {
		old++
	}
	w.samples = append(w.samples[:copy(w.samples, w.samples[old:])], sample{now, v})
}

// least is the least sample of the last d, and whether there are samples for as long.
func (w *window) least(now time.Time, d time.Duration) (v float64, whole bool) {
	for i, s := range w.samples {
		if i == 0 || s.v < v {
			v = s.v
		}
	}
	return v, !w.began.IsZero() && now.Sub(w.began) >= d
}

// most is the largest sample of the last d.
func (w *window) most(now time.Time, d time.Duration) (v float64) {
	for _, s := range w.samples {
		if now.Sub(s.at) <= d {
			v = max(v, s.v)
		}
	}
	return v
}

// Rate turns a count that only grows into a rate a second: an average that forgets with a time constant. The zero value
// is ready.
type Rate struct {
	at    time.Time
	count uint64
	rate  float64
	known time.Duration
}

// Observe takes the count at now and returns the rate. Until a time constant has passed it is the plain average since
// the first call.
func (r *Rate) Observe(now time.Time, count uint64, constant time.Duration) float64 {
	if d := now.Sub(r.at); !r.at.IsZero() && count >= r.count && d <= 0 {
		return r.rate
	} else if !r.at.IsZero() && count >= r.count {
		r.known += d
		share := d.Seconds() / min(r.known, max(constant, d)).Seconds()
		r.rate += (float64(count-r.count)/d.Seconds() - r.rate) * share
	} // else it is the first, or whoever counts began anew
	r.at, r.count = now, count
	return r.rate
}

// Events is Observe for events that come while there is work: time without work does not count, and while there is some and
// nothing happens the rate stays what it was, until that has lasted for hold: then nobody knows it, and it is 0.
func (r *Rate) Events(now time.Time, count uint64, work bool, constant, hold time.Duration) float64 {
	switch {
	case count == r.count && work && !r.at.IsZero():
		if now.Sub(r.at) > hold {
			*r = Rate{at: now, count: count}
		}
	case count == r.count:
		r.at = now
	default:
		return r.Observe(now, count, constant)
	}
	return r.rate
}
