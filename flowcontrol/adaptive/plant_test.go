package adaptive

import (
	"math"
	"math/rand/v2"
	"time"
)

// plant is a downstream with a hidden capacity, saturated by one gate, in simulated time. It accepts while fewer than
// its capacity are at it, or while a token bucket has tokens, and refuses at once above that.
type plant struct {
	capacity int
	service  float64 // mean, seconds
	dist     string  // exp, uniform, lognormal
	latency  float64 // of a refusal and of an acceptance, seconds
	noise    float64 // share of pushes refused whatever the load
	perSec   float64 // rate-limited instead of slots: accepted a second at the first capacity
	steps    []step  // later capacities
	offered  float64 // arrivals a second until floodAt; 0 = always saturated
	floodAt  float64
	cfg      Config
}

type step struct {
	at       float64
	capacity int
}

// run is what came of it, by second.
type run struct {
	busy      []float64 // mean accepted in flight
	pushed    []int
	throttled []int
	decreases []float64 // when
	limits    []float64 // at each tick
	atFlood   int
}

const (
	evEnd = iota
	evTaken
	evRefused
	evTick
	evStep
	evArrive
	evFlood
	evAgain
)

type event struct {
	at   float64
	kind int
	took float64
	n    int
}

// events is a heap by time, written out: container/heap boxes each event.
type events []event

func (q *events) push(e event) {
	*q = append(*q, e)
	h := *q
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if h[up].at <= e.at {
			break
		}
		h[i], h[up] = h[up], e
		i = up
	}
}

func (q *events) pop() event {
	h := *q
	first, last := h[0], len(h)-1
	e := h[last]
	h = h[:last]
	if last > 0 {
		h[0] = e
	}
	for i := 0; ; {
		down := 2*i + 1
		if down >= last {
			break
		}
		if right := down + 1; right < last && h[right].at < h[down].at {
			down = right
		}
		if h[down].at >= e.at {
			break
		}
		h[i], h[down] = h[down], e
		i = down
	}
	*q = h
	return first
}

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(s float64) time.Time { return epoch.Add(time.Duration(math.Round(s * 1e9))) }

func (p plant) run(seed uint64, until float64) run {
	rng := rand.New(rand.NewPCG(seed, 7))
	n := int(until) + 2
	r := run{busy: make([]float64, n), pushed: make([]int, n), throttled: make([]int, n)}
	l, g := New(p.cfg, epoch), NewGate(epoch)
	g.SetShare(l.Cap(), l.Value())
	q := &events{}
	add := func(e event) { q.push(e) }
	add(event{at: 1, kind: evTick})
	for _, s := range p.steps {
		add(event{at: s.at, kind: evStep, n: s.capacity})
	}
	capacity, inUse := p.capacity, 0
	backlog, again := math.MaxInt, math.Inf(1)
	if p.offered > 0 {
		backlog = 0
		add(event{at: rng.ExpFloat64() / p.offered, kind: evArrive})
		add(event{at: p.floodAt, kind: evFlood})
	}
	now, last := 0.0, 0.0
	tokens, tokensAt := 0.0, 0.0
	accept := func() bool {
		if p.noise > 0 && rng.Float64() < p.noise {
			return false
		}
		if p.perSec == 0 {
			return inUse < capacity
		}
		rate := p.perSec * float64(capacity) / float64(p.capacity)
		tokens = min(rate*0.1, tokens+(now-tokensAt)*rate)
		tokensAt = now
		if tokens < 1 {
			return false
		}
		tokens--
		return true
	}
	serve := func() float64 {
		switch p.dist {
		case "uniform":
			return p.service * (0.8 + 0.4*rng.Float64())
		case "lognormal":
			return p.service * math.Exp(1.5*rng.NormFloat64()-1.125)
		}
		return p.service * rng.ExpFloat64()
	}
	dispatch := func() {
		for backlog > 0 {
			free, next := g.Free(at(now))
			if free <= 0 {
				if s := next.Sub(epoch).Seconds(); !next.IsZero() && s < again {
					again = math.Max(s, now+1e-6)
					add(event{at: again, kind: evAgain})
				}
				return
			}
			for ; free > 0 && backlog > 0; free-- {
				g.Start()
				r.pushed[int(now)]++
				if accept() {
					inUse++
					backlog--
					took := p.latency + serve()
					add(event{at: now + p.latency, kind: evTaken})
					add(event{at: now + took, kind: evEnd, took: took})
				} else {
					r.throttled[int(now)]++
					add(event{at: now + p.latency, kind: evRefused})
				}
			}
		}
	}
	dispatch()
	for len(*q) > 0 {
		e := q.pop()
		if e.at > until {
			break
		}
		for last < e.at {
			to := math.Min(e.at, math.Floor(last)+1)
			r.busy[int(last)] += float64(inUse) * (to - last)
			last = to
		}
		now = e.at
		switch e.kind {
		case evEnd:
			inUse--
			g.End(time.Duration(e.took*float64(time.Second)), true)
		case evTaken:
			g.Accepted(true)
			l.OK(1)
		case evRefused:
			g.Throttled(at(now), 0, false)
			before := l.Value()
			l.Throttle(at(now), 1, g.Parked())
			if l.Value() < before {
				r.decreases = append(r.decreases, now)
			}
			g.SetShare(l.Cap(), l.Value())
		case evTick:
			l.Tick(at(now), g.Peak())
			g.SetShare(l.Cap(), l.Value())
			r.limits = append(r.limits, l.Value())
			add(event{at: now + 1, kind: evTick})
		case evStep:
			capacity = e.n
		case evArrive:
			if now < p.floodAt {
				backlog++
				add(event{at: now + rng.ExpFloat64()/p.offered, kind: evArrive})
			}
		case evFlood:
			backlog = math.MaxInt
			r.atFlood = l.Cap()
		case evAgain:
			again = math.Inf(1)
		}
		dispatch()
	}
	return r
}

// use is the mean of accepted in flight over capacity in seconds a to b.
func (r run) use(a, b float64, capacity int) float64 {
	sum := 0.0
	for s := int(a); s < int(b); s++ {
		sum += r.busy[s]
	}
	return sum / (b - a) / float64(capacity)
}

func (r run) refused(a, b float64) (n int, share float64) {
	pushed := 0
	for s := int(a); s < int(b); s++ {
		n += r.throttled[s]
		pushed += r.pushed[s]
	}
	return n, float64(n) / math.Max(1, float64(pushed))
}

// reaches is the end of the first second from from on with at least share of capacity in use, less from.
func (r run) reaches(from float64, capacity int, share float64) float64 {
	for s := int(from); s < len(r.busy); s++ {
		if r.busy[s] >= share*float64(capacity) {
			return float64(s) + 1 - from
		}
	}
	return math.Inf(1)
}

// settles is how long after from the first five seconds begin in which less than 5 % is refused. Where five seconds
// hold so few answers that two throttles are more than that, two are few.
func (r run) settles(from float64) float64 {
	for s := int(from); s+5 < len(r.busy); s++ {
		if n, share := r.refused(float64(s), float64(s+5)); share < 0.05 || n <= 2 {
			return float64(s) - from
		}
	}
	return math.Inf(1)
}

func (r run) cutsPerMinute(a, b float64) float64 {
	n := 0.0
	for _, at := range r.decreases {
		if at >= a && at < b {
			n++
		}
	}
	return n * 60 / (b - a)
}
