package elastic

import (
	"fmt"
	"math"
	"time"
)

// Load is what one function brings to a pool.
type Load struct {
	Waiting float64       // tasks that are due, not running and not paused
	Running float64       // tries in flight
	Arrival float64       // tasks that become due, a second
	Service time.Duration // of a try; 0: unknown
	// Limit is how many tries the downstream bears at once, if it throttles; negative: as many as there are. Loads of
	// the same Downstream, unless that is empty, share the least of their limits.
	Limit      float64
	Downstream string
}

// Config says what a pool is meant to do. The zero value of a field is its documented default.
type Config struct {
	Drain time.Duration // in which the backlog is to be worked off; 5 min. 1 s to 24 h
	Use   float64       // share of the slots that is meant to be in use; 0.8. 0.05 to 1
}

// The defaults and bounds of a Config.
const (
	DrainDefault = 5 * time.Minute
	DrainMin     = time.Second
	DrainMax     = 24 * time.Hour
	UseDefault   = 0.8
	UseMin       = 0.05
)

// ServiceUnknown is what a try is taken to last while nobody knows.
const ServiceUnknown = time.Second

func (c Config) withDefaults() Config {
	if c.Drain == 0 {
		c.Drain = DrainDefault
	}
	if c.Use == 0 {
		c.Use = UseDefault
	}
	return c
}

// Validate names the field that is wrong and what it may be.
func (c Config) Validate() error {
	c = c.withDefaults()
	switch {
	case c.Drain < DrainMin || c.Drain > DrainMax:
		return fmt.Errorf("drain: %v given, want %v to %v", c.Drain, DrainMin, DrainMax)
	case !(c.Use >= UseMin && c.Use <= 1):
		return fmt.Errorf("use: %v given, want %v to 1", c.Use, UseMin)
	}
	return nil
}

// Why says what a need comes from.
type Why uint8

// The reasons, from the least to the one that matters most where several hold.
const (
	Idle       Why = iota // nothing waits, nothing runs
	Running               // what runs now
	Arrivals              // what comes in, mostly
	Backlog               // what waits, mostly
	Downstream            // downstreams bear no more: without them more would be asked for
)

var whys = [...]string{"idle", "running", "arrivals", "backlog", "downstream"}

// String is the reason's word in JSON and tables.
func (w Why) String() string { return whys[w] }

// Need is what a pool's load needs.
type Need struct {
	Slots float64 // max(what is wanted, in flight); what a scaler divides by c·u
	Why   Why
	// Active says that something waits or runs.
	Active bool
}

// Slots returns what loads need, each bounded by its own limit. The order of the loads does not matter.
func Slots(cfg Config, loads []Load) Need {
	cfg = cfg.withDefaults()
	var wanted, arrivals, backlog, running float64
	var n Need
	shared := map[string]*downstream{}
	for _, l := range loads {
		s := l.Service
		if s <= 0 {
			s = ServiceUnknown
		}
		waiting := max(l.Waiting, 0)
		a := max(l.Arrival, 0) * s.Seconds()
		b := waiting * s.Seconds() / cfg.Drain.Seconds()
		r := max(l.Running, 0)
		w := a + b
		if s > cfg.Drain { // a slot takes one task in the time at most
			w = min(w, waiting+r)
		}
		some := waiting > 0 || r > 0
		if l.Limit >= 0 && l.Downstream != "" {
			d := shared[l.Downstream]
			if d == nil {
				d = &downstream{limit: l.Limit}
				shared[l.Downstream] = d
			}
			was := min(d.wanted, d.limit)
			d.wanted, d.limit, d.some = d.wanted+w, min(d.limit, l.Limit), d.some || some
			w = min(d.wanted, d.limit) - was // it may be less than nothing
			if d.wanted > d.limit && d.some {
				n.Why = Downstream
			}
		} else if l.Limit >= 0 && w > l.Limit {
			w = l.Limit
			if some {
				n.Why = Downstream
			}
		}
		wanted, arrivals, backlog, running = wanted+w, arrivals+a, backlog+b, running+r
		n.Active = n.Active || some
	}
	if !n.Active {
		return Need{}
	}
	n.Slots = max(wanted, running)
	switch {
	case n.Why == Downstream:
	case running >= wanted:
		n.Why = Running
	case backlog >= arrivals:
		n.Why = Backlog
	default:
		n.Why = Arrivals
	}
	return n
}

// downstream is what several loads share.
type downstream struct {
	wanted, limit float64
	some          bool
}

// executorsMost bounds every number of executors.
const executorsMost = 1_000_000

// Executors returns how many executors of so many slots each a need takes. With slots unknown (0) it is one, which will
// tell.
func (n Need) Executors(cfg Config, slots float64) int {
	switch {
	case !n.Active:
		return 0
	case slots <= 0:
		return 1
	}
	x := math.Ceil(n.Slots/(slots*cfg.withDefaults().Use) - 1e-9) // 16/(10·0.8) is 2, not 3
	return int(min(max(x, 1), executorsMost))
}
