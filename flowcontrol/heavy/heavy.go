// Package heavy finds those few keys that cost most, among more than can be counted one by one: Sample and Hold (Estan and
// Varghese, "New Directions in Traffic Measurement and Accounting", SIGCOMM 2002).
//
// Each unit of cost of a key that isn't held has the same small chance to make it held; from then on it is
// counted exactly. So a count is never above the truth: a limit set by it never hits a key that is below the
// threshold. A key with exactly the threshold's cost is missed once in e^20 intervals.
//
// Pure: no clock, lock or goroutine; randomness is the caller's.
package heavy

import (
	"math"
	"slices"
)

// Oversample is how many times a key of the threshold's cost is expected to be sampled: 20 misses one in 4.8e8.
const Oversample = 20

// MaxHeld bounds the keys that are held; above it sampling halves.
const MaxHeld = 8192

// Counter counts one interval after the other. The zero value is not ready; New makes one.
type Counter struct {
	threshold float64
	p         float64 // chance of one unit of cost
	held      map[string]*entry
	total     float64
	random    func() float64
	most      int
}

type entry struct {
	cost float64
	new  bool // in this interval, so it missed its first part
}

// Key is one that is held, with what it cost since it is.
type Key struct {
	Name string
	Cost float64
}

// New makes a counter for keys of threshold cost and more an interval; random is uniform in [0, 1).
func New(threshold float64, random func() float64) *Counter {
	c := &Counter{held: map[string]*entry{}, random: random, most: MaxHeld}
	c.setThreshold(threshold)
	return c
}

func (c *Counter) setThreshold(t float64) {
	c.threshold = max(t, 1)
	c.p = min(1, Oversample/c.threshold)
}

// Add counts cost of a key, in units of which one is the smallest that matters. O(1).
func (c *Counter) Add(key string, cost float64) {
	if cost <= 0 {
		return
	}
	c.total += cost
	if e := c.held[key]; e != nil {
		e.cost += cost
		return
	}
	if c.p < 1 && c.random() >= 1-math.Pow(1-c.p, cost) {
		return
	}
	if len(c.held) >= c.most {
		// A flood of keys that are all light: be choosier rather than grow.
		c.p /= 2
		if c.random() < 0.5 {
			return
		}
		c.shed()
	}
	c.held[key] = &entry{cost: cost, new: true}
}

// shed drops the lightest half. They had less than the threshold, or there would be fewer.
func (c *Counter) shed() {
	keys := c.keys(0)
	for _, k := range keys[len(keys)/2:] {
		delete(c.held, k.Name)
	}
}

// Cost is what key is known to have cost in this interval: at most the truth; 0 if it is not held.
func (c *Counter) Cost(key string) float64 {
	if e := c.held[key]; e != nil {
		return e.cost
	}
	return 0
}

// Total is the cost of all keys in this interval.
func (c *Counter) Total() float64 { return c.total }

// Threshold is the cost that makes a key heavy.
func (c *Counter) Threshold() float64 { return c.threshold }

// Heavy are the keys at or above the threshold, the heaviest first, equal ones by name.
func (c *Counter) Heavy() []Key { return c.keys(c.threshold) }

// Next ends the interval and starts one with a new threshold. Keys at or above the old one stay held, and so do those that
// came in this interval: from now on they are counted from the first unit.
func (c *Counter) Next(threshold float64) {
	for name, e := range c.held {
		if e.cost < c.threshold && !e.new {
			delete(c.held, name)
			continue
		}
		e.cost, e.new = 0, false
	}
	c.total = 0
	c.setThreshold(threshold)
}

// Held is how many keys are held.
func (c *Counter) Held() int { return len(c.held) }

func (c *Counter) keys(least float64) []Key {
	out := make([]Key, 0, len(c.held))
	for name, e := range c.held {
		if e.cost >= least {
			out = append(out, Key{name, e.cost})
		}
	}
	slices.SortFunc(out, func(a, b Key) int {
		switch {
		case a.Cost > b.Cost:
			return -1
		case a.Cost < b.Cost:
			return 1
		case a.Name < b.Name:
			return -1
		case a.Name > b.Name:
			return 1
		}
		return 0
	})
	return out
}
