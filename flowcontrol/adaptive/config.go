package adaptive

import (
	"fmt"
	"time"
)

// Config bounds a limit. The zero value of a field means its default.
type Config struct {
	Start int // first limit, attempts at once; default 4
	Min   int // never below; default 1
	Max   int // never above; default 1,000
	// FastRamp doubles every second until the first throttles, not only below 32: 6 s instead of 23 s to a
	// capacity of 100, at the price of one overshoot to less than twice the capacity.
	FastRamp bool
}

// MaxLimit is the largest limit that can be asked for.
const MaxLimit = 1_000_000

// The law's constants. Units are in the names or beside them.
const (
	tick          = time.Second
	hold          = 2 * time.Second // after a decrease nothing is decided
	decreaseRate  = 0.05            // of pushes in the window
	decreaseCount = 5               // throttles in the window
	increaseRate  = 0.01            // below it the limit may grow
	usedShare     = 0.8             // of the limit: a limit that isn't used doesn't grow
	buckets       = 5
	bucketResults = 4 // a bucket is stretched until it holds as many results,
	bucketMax     = 12 * time.Second
	smallLimit    = 32  // doubling ends here; below it a decrease follows the rate
	cutLarge      = 0.7 // a decrease of a large limit goes no further,
	cutScale      = 5   // and cuts as many times the rate
	cutLeast      = 0.10
	cutResults    = 10 // in the newest bucket, for its own rate to count
	cutMost       = 0.50
	cutParked     = 0.5 // of the share that is parked
	stepShare     = 0.02
	cleanSteps    = 10 // seconds without throttles before steps grow
	cleanDouble   = 5  // seconds from one doubling of the step to the next
	bandWait      = 10 * time.Second
	bandResults   = 200
	probeLength   = 5 * time.Second
	probePause    = 30 * time.Second
	nudgePause    = 3 * time.Second
	nudgeLeast    = 0.9
	headroom      = 5 // times the peak of the last minute
	headroomPlus  = 5
	idleAfter     = 60 * time.Second
	idleEvery     = 10 * time.Second
	idleCut       = 0.9
)

// Check says which field is out of its range.
func (c Config) Check() error {
	c = c.withDefaults()
	for _, f := range []struct {
		name       string
		v, lo, hi_ int
	}{{"min", c.Min, 1, MaxLimit}, {"max", c.Max, c.Min, MaxLimit}, {"start", c.Start, c.Min, c.Max}} {
		if f.v < f.lo || f.v > f.hi_ {
			return fmt.Errorf("%s is %d, must be %d to %d", f.name, f.v, f.lo, f.hi_)
		}
	}
	return nil
}

func (c Config) withDefaults() Config {
	if c.Min == 0 {
		c.Min = 1
	}
	if c.Max == 0 {
		c.Max = max(1000, c.Min)
	}
	if c.Start == 0 {
		c.Start = min(max(4, c.Min), c.Max)
	}
	return c
}
