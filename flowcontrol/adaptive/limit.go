package adaptive

import (
	"math"
	"time"
)

// Reason says why a limit is what it is.
type Reason uint8

// The reasons of a Decision.
const (
	Ramp      Reason = iota // doubling, until 32 or the first throttles
	Grow                    // additive increase
	Decrease                // count and rate of throttles passed both thresholds
	Nudge                   // one step down inside the dead band
	Probe                   // one step up inside the dead band, for five seconds
	ProbeKept               // the step made no difference to the throttles
	ProbeUndo               // it did
	Headroom                // far above what is used
	Idle                    // nothing was pushed for a minute
	Set                     // by the operator
	Begin                   // what was in use then
)

var reasons = [...]string{"ramp", "grow", "decrease", "nudge", "probe", "probe_kept", "probe_undone", "headroom", "idle", "set", "begin"}

// String is the reason's word in JSON and tables.
func (r Reason) String() string { return reasons[r] }

// Decision is one change of a limit, with what it was decided on.
type Decision struct {
	At        time.Time
	Reason    Reason
	From, To  float64
	Throttles int     // in the window
	Results   int     // in the window: accepted and throttled
	Rate      float64 // throttles/results, 0 without results
}

const kept = 16 // decisions

type bucket struct{ ok, thr int }

// Limit is the control law of one downstream. Its time only moves forward.
type Limit struct {
	cfg   Config
	limit float64
	ref   float64 // the limit at the last decrease: steps are a share of it
	slow  bool    // doubling

	clean      float64 // seconds
	holdUntil  time.Time
	nudgeFloor float64
	nudgeAt    time.Time
	budget     budget

	window [buckets]bucket
	cur    int
	curAge time.Duration

	band      time.Duration // since the rate is in the dead band
	probe     struct{ until, wait time.Time }
	probeFrom float64
	probeRate float64
	probeOK   int
	probeThr  int
	probeStep int

	peaks    peaks // of what was in flight
	lastUse  time.Time
	idleAt   time.Time
	lastTick time.Time

	log  [kept]Decision
	logN int
}

// New starts a limit at cfg.Start. The caller has checked cfg.
func New(cfg Config, now time.Time) *Limit {
	l := &Limit{cfg: cfg.withDefaults(), slow: true, lastTick: now, lastUse: now}
	l.limit = float64(l.cfg.Start)
	l.ref = 1
	l.budget.tokens = 5
	return l
}

// Cap is how many attempts may be at the downstream at once, parked permits included.
func (l *Limit) Cap() int { return max(l.cfg.Min, int(l.limit)) }

// Value is the limit before it is rounded down.
func (l *Limit) Value() float64 { return l.limit }

// Config is what the limit is bounded by.
func (l *Limit) Config() Config { return l.cfg }

// SetConfig changes the bounds; the limit is cut or raised into them.
func (l *Limit) SetConfig(cfg Config, now time.Time) {
	l.cfg = cfg.withDefaults()
	if to := min(max(l.limit, float64(l.cfg.Min)), float64(l.cfg.Max)); to != l.limit {
		l.change(now, Set, to)
	}
}

// Begin puts the limit to what is in use when it is first asked about: at the first throttle of a downstream that had
// none, or when attempts are adopted. Below 32 it doubles still, unless throttles say otherwise.
func (l *Limit) Begin(v int, now time.Time) {
	if to := min(max(float64(v), float64(l.cfg.Min)), float64(l.cfg.Max)); to != l.limit {
		l.change(now, Begin, to)
	}
	l.ref, l.slow = l.limit, l.limit < smallLimit
	l.nudgeFloor = nudgeLeast * l.limit
}

// OK counts n attempts that the downstream accepted.
func (l *Limit) OK(n int) {
	l.window[l.cur].ok += n
	l.probeOK += n
	l.budget.accepted(n, l.limit)
}

// Throttle counts n attempts that the downstream refused, and decides at once whether the limit falls. parked is how many
// permits cool down then: of a small limit they say better than the rate, which the budget holds down, what is too much.
func (l *Limit) Throttle(now time.Time, n, parked int) {
	l.window[l.cur].thr += n
	l.probeThr += n
	l.budget.throttled(n)
	results, thr, rate := l.sums()
	if now.Before(l.holdUntil) || thr < decreaseCount || rate < decreaseRate || results == 0 {
		return
	}
	// The rate says how far the limit is above: 0.7 of a capacity of 5 would waste a tenth of it, and a large limit that
	// is a few slots too high falls by a sixth, not by a third. The newest bucket's rate counts if it has
	// enough results: after a drop of the capacity the window still remembers better times.
	if b := l.window[l.cur]; b.ok+b.thr >= cutResults {
		rate = max(rate, float64(b.thr)/float64(b.ok+b.thr))
	}
	cut := 1 - min(max(rate, cutLeast, cutParked*float64(parked)/l.limit), cutMost)
	if l.limit >= smallLimit {
		cut = 1 - min(max(cutScale*rate, cutLeast), 1-cutLarge)
	}
	l.change(now, Decrease, max(float64(l.cfg.Min), l.limit*cut))
	l.ref, l.nudgeFloor = l.limit, nudgeLeast*l.limit
	l.slow, l.clean, l.band = false, 0, 0
	l.probe.until, l.probe.wait, l.probeStep = time.Time{}, now.Add(probePause), 0
	l.window = [buckets]bucket{}
	l.holdUntil = now.Add(hold)
}

// Tick is to be called once a second with the most attempts that were at the downstream at once since the last
// call; seldom while nothing is. A late call counts as one tick: nothing is made up for.
func (l *Limit) Tick(now time.Time, peak int) {
	since := max(now.Sub(l.lastTick), 0)
	dt := min(since, 2*tick)
	l.lastTick = now
	l.peak(now, since, peak)
	results, thr, rate := l.sums()
	bucketThr := l.window[l.cur].thr
	used := float64(peak) >= usedShare*l.limit
	switch {
	case rate >= increaseRate && thr > 1:
		l.clean = 0
	case !used:
		// Seconds in which nobody leaned on the limit say nothing for larger steps.
		l.clean = min(l.clean, cleanSteps)
	case rate < increaseRate || bucketThr == 0:
		l.clean += dt.Seconds()
	}
	if used && !now.Before(l.holdUntil) && l.budget.any() {
		l.adjust(now, dt, results, rate, bucketThr > 0)
	}
	l.guard(now, peak)
	l.budget.pass(dt, 1, l.limit)
	l.rotate(dt)
}

// adjust is the law but for decreases: at most one step a tick.
func (l *Limit) adjust(now time.Time, dt time.Duration, results int, rate float64, throttledNow bool) {
	switch {
	case l.slow:
		if l.limit >= smallLimit && !l.cfg.FastRamp {
			l.slow, l.ref = false, l.limit
		} else if rate < decreaseRate {
			l.grow(now, Ramp, l.limit)
		}
	case !l.probe.until.IsZero():
		if !now.Before(l.probe.until) {
			l.endProbe(now)
		}
	case rate < increaseRate:
		l.band = 0
		step := max(1, stepShare*l.ref)
		if l.clean > cleanSteps {
			step *= math.Pow(2, math.Floor((l.clean-cleanSteps)/cleanDouble)+1)
		}
		l.grow(now, Grow, min(l.limit, step))
	case results >= bandResults && l.inBand(dt) && !now.Before(l.probe.wait):
		l.probeFrom, l.probeRate, l.probeOK, l.probeThr = l.limit, rate, 0, 0
		l.probe.until = now.Add(probeLength)
		l.change(now, Probe, l.limit+min(l.limit, max(1, stepShare*l.limit)*math.Pow(2, float64(l.probeStep))))
	case throttledNow && !now.Before(l.nudgeAt):
		l.nudgeAt = now.Add(nudgePause)
		if to := l.limit - max(1, stepShare*l.limit); to >= l.nudgeFloor {
			l.change(now, Nudge, max(float64(l.cfg.Min), to))
		}
	}
}

func (l *Limit) inBand(dt time.Duration) bool {
	l.band += dt
	return l.band >= bandWait
}

// endProbe keeps the step if it made no difference: then the throttles don't come from the load.
func (l *Limit) endProbe(now time.Time) {
	n := l.probeOK + l.probeThr
	if n >= bandResults && float64(l.probeThr) <= (l.probeRate+increaseRate)*float64(n) {
		l.probeStep++
		l.probe.wait = now
		l.change(now, ProbeKept, l.limit)
	} else {
		l.probeStep = 0
		l.probe.wait = now.Add(probePause)
		l.change(now, ProbeUndo, min(l.limit, l.probeFrom))
	}
	l.probe.until = time.Time{}
	l.nudgeFloor = nudgeLeast * l.limit
}

func (l *Limit) grow(now time.Time, why Reason, step float64) {
	to := min(l.limit+step, float64(l.cfg.Max))
	if to <= l.limit {
		return
	}
	l.nudgeFloor = nudgeLeast * to
	if why == Ramp {
		l.nudgeFloor /= 2
	}
	l.change(now, why, to)
}

// guard keeps a limit near what is used, so that a burst after a quiet hour doesn't find a limit nobody tested.
func (l *Limit) guard(now time.Time, peak int) {
	most := l.peaks.most()
	floor := float64(max(l.cfg.Start, most))
	if most > 0 {
		if roof := float64(headroom*most + headroomPlus); l.limit > max(roof, floor) {
			l.change(now, Headroom, max(roof, floor))
		}
	}
	if peak == 0 && now.Sub(l.lastUse) > idleAfter && !now.Before(l.idleAt) && l.limit > floor {
		l.idleAt = now.Add(idleEvery)
		l.change(now, Idle, max(floor, l.limit*idleCut))
	}
}

func (l *Limit) peak(now time.Time, dt time.Duration, peak int) {
	if peak > 0 {
		l.lastUse = now
	}
	l.peaks.pass(dt)
	l.peaks.note(peak)
}

func (l *Limit) rotate(dt time.Duration) {
	l.curAge += dt
	if b := l.window[l.cur]; b.ok+b.thr >= bucketResults || l.curAge >= bucketMax {
		l.curAge = 0
		l.cur = (l.cur + 1) % buckets
		l.window[l.cur] = bucket{}
	}
}

func (l *Limit) sums() (results, thr int, rate float64) {
	for _, b := range l.window {
		results += b.ok + b.thr
		thr += b.thr
	}
	if results > 0 {
		rate = float64(thr) / float64(results)
	}
	return results, thr, rate
}

func (l *Limit) change(now time.Time, why Reason, to float64) {
	results, thr, rate := l.sums()
	l.log[l.logN%kept] = Decision{At: now, Reason: why, From: l.limit, To: to, Throttles: thr, Results: results, Rate: rate}
	l.logN++
	l.limit = to
}

// Decisions are the last 16 changes, oldest first.
func (l *Limit) Decisions() []Decision {
	n := min(l.logN, kept)
	out := make([]Decision, 0, n)
	for i := l.logN - n; i < l.logN; i++ {
		out = append(out, l.log[i%kept])
	}
	return out
}

// Window is what the law sees now: results and throttles of the last five buckets.
func (l *Limit) Window() (results, throttles int) {
	results, throttles, _ = l.sums()
	return results, throttles
}
