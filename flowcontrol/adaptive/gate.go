package adaptive

import (
	"container/heap"
	"math"
	"slices"
	"time"
)

// Bounds of a cool-down, which follows the service time.
const (
	coolLeast = 50 * time.Millisecond
	coolMost  = 5 * time.Second
	// A downstream that answers nothing but throttles at a limit of one is asked ever more seldom.
	breakAfter = 30 * time.Second
	breakMost  = 5 * time.Minute
	askLeast   = time.Second
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
	service  float64   // seconds, exponentially weighted; 0 = unknown
	onlyBad  time.Time // since when nothing but throttles came
	broken   time.Duration
	asking   int // permits that came out of a cool-down, until the downstream answered
	last     time.Time
	askAgain time.Time // before it no permit asks without a token
	held     int       // accepted while they ran, and not ended
	taken    peaks     // of held
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

// Free is how many attempts may start now, and, if none may, when to ask again: the zero time if only the end of
// an attempt or a larger share can help.
func (g *Gate) Free(now time.Time) (n int, again time.Time) {
	g.pass(now)
	for len(g.parked) > 0 && !g.parked[0].After(now) {
		if g.inflight+len(g.parked) > g.share { // the share fell meanwhile: this permit is no more
			heap.Pop(&g.parked)
			continue
		}
		// One token lets one permit ask again, not all that have cooled down: they would be refused together. One
		// may ask without a token where the downstream took clearly more a moment ago: else a burst of
		// throttles that used the budget up would leave it idle for minutes.
		if want := 1 + g.asking; g.budget.tokens < float64(want) && !g.mayAsk(now) {
			return max(0, g.share-g.inflight-len(g.parked)), g.nextAsk(now, want)
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

// mayAsk reports whether one permit may ask without a token.
func (g *Gate) mayAsk(now time.Time) bool {
	return g.asking == 0 && !now.Before(g.askAgain) && float64(g.held) < usedAgain*float64(g.taken.most())
}

// nextAsk is when time alone lets the next permit ask.
func (g *Gate) nextAsk(now time.Time, want int) time.Time {
	at := g.budget.next(now, float64(want), g.part)
	if g.askAgain.After(now) && g.askAgain.Before(at) {
		return g.askAgain
	}
	return at
}

// cool is how long a throttled permit cools down at least.
func (g *Gate) cool() time.Duration {
	return min(max(time.Duration(g.service*float64(time.Second)), coolLeast), coolMost)
}

// Start takes a permit. The caller has asked Free; a start beyond the share (an attempt adopted after a take-over)
// counts too, so that the next ones wait.
func (g *Gate) Start() {
	g.inflight++
	g.peak = max(g.peak, g.inflight)
}

// Adopt counts an attempt that the downstream took before the gate knew of it.
func (g *Gate) Adopt() {
	g.Start()
	g.held++
	g.taken.note(g.held)
}

// Accepted counts an attempt that the downstream took: it runs on, or it has just ended without a throttle.
func (g *Gate) Accepted(running bool) {
	g.asking = max(0, g.asking-1)
	g.budget.accepted(1, float64(g.share))
	g.onlyBad, g.broken = time.Time{}, 0
	if running {
		g.held++
		g.taken.note(g.held)
	}
}

// End returns a permit of an attempt that was not throttled. took is how long it ran, 0 if that is not known;
// accepted says whether it was counted by Accepted while it ran.
func (g *Gate) End(took time.Duration, accepted bool) {
	g.inflight--
	if accepted {
		g.held--
	}
	if took > 0 {
		if g.service == 0 {
			g.service = took.Seconds()
		} else {
			g.service += (took.Seconds() - g.service) * 0.01
		}
	}
}

// Throttled returns the permit of an attempt that the downstream refused and parks it: at least retryAfter, and
// the usual service time within 50 ms and 5 s. accepted says whether it was counted by Accepted while it ran. It says
// until when.
func (g *Gate) Throttled(now time.Time, retryAfter time.Duration, accepted bool) time.Time {
	g.pass(now)
	g.inflight--
	if accepted {
		g.held--
	}
	g.asking = max(0, g.asking-1)
	g.budget.throttled(1)
	cool := g.cool()
	g.askAgain = now.Add(max(2*cool, askLeast))
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

// Peak is the most attempts that were out at once since the last call, for Limit.Tick.
func (g *Gate) Peak() int {
	peak := g.peak
	g.peak = g.inflight
	return peak
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
	tokenPerOK  = 0.035
	tokensKept  = 10
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
