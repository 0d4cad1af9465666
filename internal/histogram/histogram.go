// Package histogram counts durations in buckets whose width is at most 1/64 of their value, so that
// quantiles are exact to 1.6 %, in 30 KB and a few nanoseconds a value.
//
// It is made for load generators and reports: no time windows, no decay.
package histogram

import (
	"math/bits"
	"sync/atomic"
	"time"
)

const (
	subBits = 6 // 64 buckets for each power of two
	sub     = 1 << subBits
	buckets = (64 - subBits) * sub
)

// A Histogram counts durations. Its zero value is empty. All methods can be called at once.
type Histogram struct {
	counts [buckets]atomic.Int64
	n      atomic.Int64
	max    atomic.Int64
}

// Record counts d; a negative one counts as 0.
func (h *Histogram) Record(d time.Duration) {
	v := max(int64(d), 0)
	h.counts[bucket(uint64(v))].Add(1)
	h.n.Add(1)
	for {
		m := h.max.Load()
		if v <= m || h.max.CompareAndSwap(m, v) {
			return
		}
	}
}

// Add counts all that o has counted.
func (h *Histogram) Add(o *Histogram) {
	for i := range o.counts {
		if n := o.counts[i].Load(); n > 0 {
			h.counts[i].Add(n)
			h.n.Add(n)
		}
	}
	for m := o.max.Load(); ; {
		was := h.max.Load()
		if m <= was || h.max.CompareAndSwap(was, m) {
			return
		}
	}
}

// Count returns how many durations were recorded.
func (h *Histogram) Count() int64 { return h.n.Load() }

// Max returns the largest duration, exactly; 0 when empty.
func (h *Histogram) Max() time.Duration { return time.Duration(h.max.Load()) }

// Quantile returns the duration that a share q of the values does not exceed, 0 <= q <= 1: never less
// than the true one, at most 1.6 % more; 0 when empty.
func (h *Histogram) Quantile(q float64) time.Duration {
	n := h.n.Load()
	if n == 0 {
		return 0
	}
	rank := min(max(int64(q*float64(n)+0.5), 1), n)
	var seen int64
	for i := range h.counts {
		if seen += h.counts[i].Load(); seen >= rank {
			return min(time.Duration(upper(i)), h.Max())
		}
	}
	return h.Max()
}

// bucket: values below 64 have their own; above, the top 7 bits decide.
func bucket(v uint64) int {
	shift := max(bits.Len64(v)-subBits-1, 0)
	return shift<<subBits + int(v>>shift)
}

// upper returns the largest value of a bucket.
func upper(i int) uint64 {
	if i < 2*sub {
		return uint64(i)
	}
	shift := i>>subBits - 1
	return uint64(i-shift<<subBits+1)<<shift - 1
}
