package adaptive

import (
	"container/heap"
	"math"
	"slices"
	"time"
)

// Bounds of a cool-down, of a service time that it follows, and of a pause.
const (
	coolLeast = 50 * time.Millisecond
	coolMost  = 5 * time.Second
	pauseMost = 5 * time.Minute
	// A downstream that answers nothing but throttles at a limit of one is asked ever more seldom.
	breakAfter = 30 * time.Second
	breakMost  = 5 * time.Minute
	usedAgain  = 0.9 // of what was accepted at once in the last minute: below it one permit may ask without a token
)

// Gate holds the permits of one limit on one node: how many attempts are out, and which permits cool down after
// a throttle. Its share of the limit comes from the limit itself, or from the coordinator where several nodes use it.
type Gate struct {
	share    int
	part     float64 // share/limit: this node's part of the budget's minute
	inflight int
	peak     int
	parked   times // each holds a permit until its time, and then until the budget has a token
	budget   budget
	service  float64 // seconds, exponentially weighted; 0 = unknown
	pause    time.Time
	onlyBad  time.Time // since when nothing but throttles came
	broken   time.Duration
	last     time.Time
	asking   int // permits that came out of a cool-down and wait for the downstream's answer
	taken    peaks
	ok, thr  int // since the last Report
}

// NewGate starts with no share: nothing may start until SetShare.
func NewGate(now time.Time) *Gate { return &Gate{part: 1, last: now, budget: budget{tokens: 5}} }

// SetShare gives the gate its part of a limit: share permits of a limit that is total.
func (g *Gate) SetShare(share int, total float64) {
	g.share = share
	if total > 0 {
		g.part = min(1, float64(share)/total)
	}
}

// Share is the number of permits the gate may have out.
func (g *Gate) Share() int { return g.share }

// InFlight is the number of attempts out, without parked permits.
func (g *Gate) InFlight() int { return g.inflight }

// Parked is the number of permits that cool down.
func (g *Gate) Parked() int { return len(g.parked) }

// PausedUntil is when a retry_after of the whole downstream ends; the zero time if none runs.
func (g *Gate) PausedUntil() time.Time { return g.pause }

// Free is how many attempts may start now, and, if none may, when to ask again: the zero time if only the end of
// an attempt or a larger share can help.
func (g *Gate) Free(now time.Time) (n int, again time.Time) {
	g.pass(now)
	if now.Before(g.pause) {
		return 0, g.pause
	}
	for len(g.parked) > 0 && !g.parked[0].After(now) {
		// One token lets one permit ask again, not all that have cooled down: they would be refused together. One
		// may ask without a token where the downstream took clearly more a moment ago: else a burst of
		// throttles that used the budget up would leave it idle for minutes.
		if want := 1 + float64(g.asking); g.budget.tokens < want && (g.asking > 0 || float64(g.inflight) >= usedAgain*float64(g.taken.most())) {
			return max(0, g.share-g.inflight-len(g.parked)), g.budget.next(now, want, g.part)
		}
		heap.Pop(&g.parked)
		g.asking++
	}
	if n = g.share - g.inflight - len(g.parked); n > 0 {
		return n, time.Time{}
	}
	if len(g.parked) > 0 {
		again = g.parked[0]
	}
	return 0, again
}

// Start takes a permit. The caller has asked Free; a start beyond the share (an attempt adopted after a take-over)
// counts too, so that the next ones wait.
func (g *Gate) Start() {
	g.inflight++
	g.peak = max(g.peak, g.inflight)
}

// Accepted counts an attempt that the downstream took: it ran for a while or ended without a throttle.
func (g *Gate) Accepted() {
	g.ok++
	g.taken.note(g.inflight)
	g.asking = max(0, g.asking-1)
	g.budget.accepted(1, float64(g.share))
	g.onlyBad, g.broken = time.Time{}, 0
}

// End returns a permit. took is how long the attempt ran, 0 if it is not known.
func (g *Gate) End(took time.Duration) {
	g.inflight--
	if took > 0 {
		if g.service == 0 {
			g.service = took.Seconds()
		} else {
			g.service += (took.Seconds() - g.service) * 0.01
		}
	}
}

// Throttled returns the permit of an attempt that the downstream refused and parks it: at least retryAfter, and
// the usual service time within 50 ms and 5 s. It says until when.
func (g *Gate) Throttled(now time.Time, retryAfter time.Duration) time.Time {
	g.pass(now)
	g.inflight--
	g.thr++
	g.asking = max(0, g.asking-1)
	g.budget.throttled(1)
	cool := min(max(time.Duration(g.service*float64(time.Second)), coolLeast), coolMost)
	if g.onlyBad.IsZero() {
		g.onlyBad = now
	}
	if g.share <= 1 && now.Sub(g.onlyBad) > breakAfter {
		g.broken = min(max(2*g.broken, 2*cool), breakMost)
		cool = g.broken
	}
	until := now.Add(max(retryAfter, cool))
	heap.Push(&g.parked, until)
	return until
}

// Pause stops the whole gate, as a downstream asks for with a retry_after of a second or more that is meant for all
// of its callers. At most five minutes; a running longer pause stays.
func (g *Gate) Pause(until, now time.Time) {
	until = minTime(until, now.Add(pauseMost))
	if until.After(g.pause) {
		g.pause = until
	}
}

// Report is what came in since the last call, for the limit: accepted, throttled, and the most attempts out at once.
func (g *Gate) Report() (ok, thr, peak int) {
	ok, thr, peak = g.ok, g.thr, g.peak
	g.ok, g.thr, g.peak = 0, 0, g.inflight
	return ok, thr, peak
}

func (g *Gate) pass(now time.Time) {
	if dt := now.Sub(g.last); dt > 0 {
		g.budget.pass(dt, g.part, float64(g.share))
		g.taken.pass(dt)
		g.last = now
	}
}

// budget bounds throttles to a twentieth of what was accepted plus one a minute.
type budget struct{ tokens float64 }

const (
	tokenPerOK  = 0.04
	tokensKept  = 10.0
	tokensShare = 0.02 // of the limit, above tokensKept
	tokenTime   = time.Minute
)

func (b *budget) accepted(n int, limit float64) {
	b.tokens = min(tokensKept+tokensShare*limit, b.tokens+tokenPerOK*float64(n))
}
func (b *budget) throttled(n int) { b.tokens = max(0, b.tokens-float64(n)) }
func (b *budget) any() bool       { return b.tokens >= 1 }

func (b *budget) pass(dt time.Duration, part, limit float64) {
	b.tokens = min(tokensKept+tokensShare*limit, b.tokens+part*float64(dt)/float64(tokenTime))
}

// next is when time alone will have made the budget want tokens.
func (b *budget) next(now time.Time, want, part float64) time.Time {
	if part <= 0 {
		return now.Add(tokenTime)
	}
	return now.Add(time.Duration(math.Ceil((want - b.tokens) / part * float64(tokenTime))))
}

// peaks is the largest of a number over the last minute.
type peaks struct {
	slots [6]int // ten seconds each
	age   time.Duration
}

func (p *peaks) note(n int) { p.slots[0] = max(p.slots[0], n) }

func (p *peaks) pass(dt time.Duration) {
	for p.age += dt; p.age >= 10*time.Second; p.age -= 10 * time.Second {
		copy(p.slots[1:], p.slots[:])
		p.slots[0] = 0
		if p.age > time.Hour {
			*p = peaks{}
			return
		}
	}
}

func (p *peaks) most() int { return slices.Max(p.slots[:]) }

type times []time.Time

func (t times) Len() int           { return len(t) }
func (t times) Less(i, j int) bool { return t[i].Before(t[j]) }
func (t times) Swap(i, j int)      { t[i], t[j] = t[j], t[i] }
func (t *times) Push(x any)        { *t = append(*t, x.(time.Time)) }
func (t *times) Pop() any {
	last := len(*t) - 1
	x := (*t)[last]
	*t = (*t)[:last]
	return x
}

func minTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
