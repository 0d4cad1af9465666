package pressure

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/headrace/headrace/flowcontrol/gcra"
	"github.com/headrace/headrace/flowcontrol/maxmin"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const step = 250 * time.Millisecond

// plant is a cluster in fluid: tenants that submit at fixed rates, a door that enforces limits, and executors that finish
// rate tasks a second, shared as start-time fair queueing does.
type plant struct {
	now     time.Time
	rate    float64
	c       Controller
	tenants []*load
	limits  []Limit
}

type load struct {
	t        Tenant
	offer    float64
	door     gcra.Limiter
	ready    float64
	offered  uint64
	accepted uint64
	finished float64
	rOffer   Rate
	rAccept  Rate
	rFinish  Rate
	refused  float64
	frac     float64
}

// run lets time pass; after each step look is called.
func (p *plant) run(d time.Duration, shared func() float64, look func()) {
	for end := p.now.Add(d); p.now.Before(end); {
		p.now = p.now.Add(step)
		var claims []maxmin.Claim
		for _, l := range p.tenants {
			l.frac += l.offer * step.Seconds()
			n := math.Floor(l.frac)
			l.frac -= n
			for range int(n) {
				l.offered++
				ok := true
				for _, lim := range p.limits {
					if lim.Tenant == l.t.Name {
						_, ok = l.door.Take(p.now, gcra.Rate{PerSecond: lim.PerSecond, Burst: max(1, lim.PerSecond)}, 1)
					}
				}
				if ok {
					l.accepted++
					l.ready++
				} else {
					l.refused++
				}
			}
			claims = append(claims, maxmin.Claim{Demand: l.ready})
		}
		for i, done := range maxmin.Fill(p.rate*step.Seconds(), claims) {
			p.tenants[i].ready -= done
			p.tenants[i].finished += done
		}
		var seen []Tenant
		for _, l := range p.tenants {
			l.t.Ready = int64(l.ready)
			l.t.Finish = l.rFinish.Events(p.now, uint64(l.finished), l.ready >= 1, 10*time.Second, time.Minute)
			l.t.Offered = l.rOffer.Observe(p.now, l.offered, 500*time.Millisecond)
			l.t.Accepted = l.rAccept.Observe(p.now, l.accepted, 2*time.Second)
			seen = append(seen, l.t)
		}
		p.limits = p.c.Step(p.now, shared(), seen)
		if look != nil {
			look()
		}
	}
}

func nothing() float64 { return 0 }

func (p *plant) add(name string, offer float64, drainMax time.Duration) *load {
	l := &load{t: Tenant{Name: name, Weight: 1, DrainMax: drainMax}, offer: offer}
	p.tenants = append(p.tenants, l)
	return l
}

// A floods at five times what there is; his drain_max is a minute. Fifty others notice nothing, his backlog stays where he
// wants it, he gets what they leave, and when he stops his limit goes.
func TestFloodIsHeldAtItsDrainTime(t *testing.T) {
	p := &plant{now: start, rate: 1000}
	a := p.add("a", 5000, time.Minute)
	for i := range 50 {
		p.add(fmt.Sprintf("light-%02d", i), 10, 24*time.Hour)
	}
	worst, first := 0.0, time.Duration(0)
	look := func() {
		worst = max(worst, a.ready)
		if first == 0 && a.refused > 0 {
			first = p.now.Sub(start)
		}
		for _, l := range p.limits {
			if l.Tenant != "a" || l.Reason != Drain {
				t.Fatalf("limited: %+v", l)
			}
		}
	}
	p.run(60*time.Second, nothing, look)
	accepted := a.accepted
	p.run(120*time.Second, nothing, look)
	rate := float64(a.accepted-accepted) / 120
	t.Logf("first refusal after %v, worst backlog %.0f, then %.0f/s accepted", first, worst, rate)
	if left := 1000 - 500.0; math.Abs(rate-left) > 0.15*left {
		t.Errorf("a is admitted at %.0f/s, want what the others leave, %.0f/s", rate, left)
	}
	if worst > 1.25*60*500 {
		t.Errorf("a's backlog was %.0f, want a minute's worth at most, 30000 and a quarter", worst)
	}
	for _, l := range p.tenants[1:] {
		if l.refused > 0 || l.ready > 20 {
			t.Errorf("%s: %.0f refused, %.0f wait", l.t.Name, l.refused, l.ready)
		}
	}
	a.offer = 0
	p.run(2*Interval, nothing, nil)
	if len(p.limits) > 0 {
		t.Errorf("two intervals after the end: %+v", p.limits)
	}
}

// An overnight batch is no overload: a backlog costs its owner only.
func TestOvernightBatchIsAcceptedWhole(t *testing.T) {
	p := &plant{now: start, rate: 1000}
	b := p.add("batch", 30_000, 24*time.Hour)
	p.add("light", 10, 24*time.Hour)
	p.run(10*time.Second, nothing, nil)
	b.offer = 0
	p.run(time.Minute, nothing, nil)
	if b.refused > 0 || b.accepted < 299_999 {
		t.Errorf("%.0f refused, %d accepted", b.refused, b.accepted)
	}
}

// Without executors there is no drain time, and an outage of them is none.
func TestNothingFinishes(t *testing.T) {
	p := &plant{now: start, rate: 0}
	a := p.add("a", 1000, time.Minute)
	p.run(5*time.Minute, nothing, nil)
	if a.refused > 0 {
		t.Errorf("%.0f refused, with no executor at all", a.refused)
	}
	// One that was slow before an idle time is not judged by it.
	p = &plant{now: start, rate: 1000}
	a = p.add("a", 0.1, time.Hour)
	p.run(5*time.Minute, nothing, nil)
	a.offer = 100_000
	p.run(2*time.Second, nothing, nil)
	if a.refused > 0 {
		t.Errorf("%.0f refused of a burst of 200 s", a.refused)
	}
}

// Shared pressure: the queue before the database grows with what comes in above 1,000/s. The heavy are cut, nobody else, and
// it settles below.
func TestSharedPressureCutsTheHeavy(t *testing.T) {
	p := &plant{now: start, rate: 1e6}
	a := p.add("a", 3000, 24*time.Hour)
	b := p.add("b", 1500, 24*time.Hour)
	b.t.Weight = 2
	for i := range 20 {
		p.add(fmt.Sprintf("light-%02d", i), 5, 24*time.Hour)
	}
	queue, was := 0.0, uint64(0)
	shared := func() float64 {
		sum := uint64(0)
		for _, l := range p.tenants {
			sum += l.accepted
		}
		queue = max(0, queue+float64(sum-was)-1000*step.Seconds())
		was = sum
		return queue / 10_000
	}
	soft := time.Duration(0)
	var wasA, wasB uint64
	p.run(3*time.Minute, shared, func() {
		if wasA == 0 && p.now.Sub(start) > time.Minute {
			wasA, wasB = a.accepted, b.accepted
		}
		if soft == 0 && p.c.Level() >= Soft {
			soft = p.now.Sub(start)
		}
		for _, l := range p.limits {
			if l.Level == Soft && l.Tenant != "a" && l.Tenant != "b" {
				t.Fatalf("at soft, who costs little is limited: %+v", l)
			}
		}
	})
	if soft < 10*time.Second || soft > 20*time.Second {
		t.Errorf("soft after %v, want once it has stood for 10 s", soft)
	}
	for _, l := range p.tenants[2:] {
		if l.refused > 0 {
			t.Errorf("%s: %.0f refused", l.t.Name, l.refused)
		}
	}
	if queue > 60_000 {
		t.Errorf("the queue is %.0f and grows", queue)
	}
	if gotA, gotB := float64(a.accepted-wasA), float64(b.accepted-wasB); gotB < 1.7*gotA || gotB > 2.3*gotA {
		t.Errorf("b, of twice the weight, got %.0f, a %.0f", gotB, gotA)
	}
	a.offer, b.offer = 0, 0
	p.run(2*Interval, func() float64 { return 0 }, nil)
	if len(p.limits) > 0 || p.c.Level() != None {
		t.Errorf("two intervals after the end: %v, %+v", p.c.Level(), p.limits)
	}
}

// A burst is no overload, however high, and one calm sample is no calm.
func TestLevels(t *testing.T) {
	var c Controller
	now := start
	for range 400 {
		for i, v := range []float64{9, 9, 9, 9, 9, 9, 9, 0.9} {
			now = now.Add(step)
			if c.Step(now, v, nil); c.Level() != None {
				t.Fatalf("burst %d counts as overload", i)
			}
		}
	}
	feed := func(v float64, d time.Duration) Level {
		for end := now.Add(d); now.Before(end); {
			now = now.Add(step)
			c.Step(now, v, nil)
		}
		return c.Level()
	}
	for _, s := range []struct {
		v    float64
		d    time.Duration
		want Level
	}{
		{1.2, 9 * time.Second, None}, {1.2, 3 * time.Second, Soft}, {0.7, time.Minute, Soft}, {3, 11 * time.Second, Hard},
		{1.1, time.Minute, Hard}, {0.9, 3 * time.Second, Soft}, {0.4, time.Second, Soft}, {0.4, 3 * time.Second, None},
	} {
		if got := feed(s.v, s.d); got != s.want {
			t.Errorf("%v for %v: %v, want %v", s.v, s.d, got, s.want)
		}
	}
}

// Whatever the loads: at soft nobody below the heavy threshold is limited, nobody is limited to more than he asks for, and what
// is let in is at most what was taken in before.
func TestOverloadIsFair(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	for range 3000 {
		c := Controller{shared: Soft + Level(rng.IntN(2))}
		n := 1 + rng.IntN(12)
		var ts []Tenant
		offered, accepted, least := 0.0, 0.0, 0.0
		for i := range n {
			o := math.Exp(8 * rng.Float64())
			ts = append(ts, Tenant{Name: fmt.Sprint(i), Weight: 1 + rng.IntN(3), DrainMax: time.Hour, Offered: o, Accepted: o * rng.Float64()})
			offered += o
			accepted += ts[i].Accepted
		}
		let := offered
		for _, l := range c.overload(ts) {
			var of Tenant
			for _, x := range ts {
				if x.Name == l.Tenant {
					of = x
				}
			}
			if c.shared == Soft && of.Offered < 0.01*offered {
				t.Fatalf("%+v is limited: %+v", of, l)
			}
			if l.PerSecond > of.Offered {
				t.Fatalf("%+v is limited to more than it wants: %+v", of, l)
			}
			let += l.PerSecond - of.Offered
			least++ // each has one a second at least
		}
		light := 0.0
		for _, x := range ts {
			if x.Offered < max(0.01, 1/float64(2*n))*offered {
				light += x.Offered
			}
		}
		if c.shared == Soft && let > max(accepted, light)+least+1e-6 || c.shared == Hard && let > accepted+least+1e-6 {
			t.Fatalf("level %v: %g let in, %g was taken in: %+v", c.shared, let, accepted, ts)
		}
	}
}
