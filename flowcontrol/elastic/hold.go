package elastic

import (
	"slices"
	"time"
)

// tolerance is by how much more than its executors are meant for a pool may need before it gets another one.
const tolerance = 0.1

// holdBuckets is how finely the last while is remembered.
const holdBuckets = 30

// Hold keeps a number of executors from flapping: it grows at once, by more than the tolerance, and falls to the
// highest need of the last delay. Its time only moves forward. The zero Hold has none.
type Hold struct {
	now    int
	began  time.Time // of the newest bucket
	recent [holdBuckets + 1]int
	cur    int
}

// Begin says how many there are already: they count as needed now. A Hold that knows better keeps what it knows.
func (h *Hold) Begin(now time.Time, there int, delay time.Duration) {
	if h.began.IsZero() {
		h.now = there
		h.add(now, there, delay)
	}
}

// Step takes what is needed now and returns how many there should be, from least to most. slots are those of an executor;
// 0: unknown. Without a delay (0) it falls at once.
func (h *Hold) Step(now time.Time, n Need, cfg Config, slots float64, delay time.Duration, least, most int) int {
	want := n.Executors(cfg, slots)
	meant := float64(h.now) * slots * cfg.withDefaults().Use // what those that there are, are meant for
	if want > h.now && h.now > 0 && slots > 0 && n.Slots <= meant*(1+tolerance) {
		want = h.now
	}
	h.add(now, want, delay)
	lately := want
	if delay > 0 {
		lately = max(want, slices.Max(h.recent[:]))
	}
	// Neither more than there are, unless they are needed now, nor fewer than lately.
	switch {
	case want > h.now:
		h.now = want
	case lately < h.now:
		h.now = lately
	}
	h.now = min(max(h.now, least), most)
	return h.now
}

// add keeps the highest need of each bucket. What was needed is forgotten a delay later, or a bucket after that.
func (h *Hold) add(now time.Time, want int, delay time.Duration) {
	width := delay / holdBuckets
	if width <= 0 {
		h.recent, h.cur = [holdBuckets + 1]int{}, 0
		h.recent[0], h.began = want, now
		return
	}
	if h.began.IsZero() {
		h.began = now
	}
	for i := 0; now.Sub(h.began) >= width; i++ {
		if i > holdBuckets { // all of it is old
			h.began = now
			break
		}
		h.cur = (h.cur + 1) % len(h.recent)
		h.recent[h.cur] = 0
		h.began = h.began.Add(width)
	}
	h.recent[h.cur] = max(h.recent[h.cur], want)
}
