package elastic

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// The vectors of the formula, one by one.
func TestSlotsVectors(t *testing.T) {
	const none = -1
	for _, c := range []struct {
		name  string
		cfg   Config
		loads []Load
		slots float64 // of an executor
		need  float64
		want  int
		why   Why
	}{
		{"backlog and arrivals", Config{}, []Load{{6000, 0, 50, 2 * time.Second, none, ""}}, 10, 140, 18, Arrivals},
		{"a downstream bears 60", Config{}, []Load{{6000, 0, 50, 2 * time.Second, 60, ""}}, 10, 60, 8, Downstream},
		{"only what runs", Config{}, []Load{{0, 25, 0, 2 * time.Second, none, ""}}, 10, 25, 4, Running},
		{"nothing", Config{}, []Load{{0, 0, 0, 0, none, ""}}, 10, 0, 0, Idle},
		{"nothing now, arrivals lately", Config{}, []Load{{0, 0, 5, time.Second, none, ""}}, 10, 0, 0, Idle},
		{"no load at all", Config{}, nil, 10, 0, 0, Idle},
		{"unknown service counts as a second", Config{}, []Load{{3000, 0, 0, 0, none, ""}}, 1, 10, 13, Backlog},
		{"long tasks: no more slots than tasks", Config{}, []Load{{5, 2, 0, time.Hour, none, ""}}, 1, 7, 9, Backlog},
		{"a downstream that is shut asks for nothing", Config{}, []Load{{6000, 0, 50, 2 * time.Second, 0, ""}}, 10, 0, 1, Downstream},
		{"a limit never takes slots from what runs", Config{}, []Load{{6000, 100, 50, 2 * time.Second, 60, ""}}, 10, 100, 13, Downstream},
		{"the other function's downstream is its own", Config{}, []Load{{6000, 0, 50, 2 * time.Second, 60, ""}, {0, 0, 20, time.Second, none, ""}}, 10, 80, 10, Downstream},
		{"functions of one downstream share its limit", Config{}, []Load{{6000, 0, 50, 2 * time.Second, 60, "d"}, {3000, 0, 20, time.Second, 60, "d"}, {0, 8, 0, time.Second, 60, "e"}}, 10, 60, 8, Downstream},
		{"exactly full is not one more", Config{}, []Load{{4800, 0, 0, time.Second, none, ""}}, 10, 16, 2, Backlog},
		{"slots unknown: one will tell", Config{}, []Load{{6000, 0, 50, 2 * time.Second, none, ""}}, 0, 140, 1, Arrivals},
		{"another target", Config{Drain: time.Minute, Use: 1}, []Load{{6000, 0, 0, 2 * time.Second, none, ""}}, 10, 200, 20, Backlog},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := Slots(c.cfg, c.loads)
			if math.Abs(n.Slots-c.need) > 1e-9 || n.Why != c.why || n.Active != (c.why != Idle) {
				t.Errorf("need %+v (%v), want %v slots, %v", n, n.Why, c.need, c.why)
			}
			if got := n.Executors(c.cfg, c.slots); got != c.want {
				t.Errorf("%d executors, want %d", got, c.want)
			}
		})
	}
}

func TestConfigBounds(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{}, "<nil>"}, {Config{Drain: time.Second, Use: 1}, "<nil>"},
		{Config{Drain: time.Millisecond}, "drain: 1ms given, want 1s to 24h0m0s"},
		{Config{Use: 1.5}, "use: 1.5 given, want 0.05 to 1"}, {Config{Use: math.NaN()}, "use: NaN given, want 0.05 to 1"},
	} {
		if got := fmt.Sprint(c.cfg.Validate()); got != c.want {
			t.Errorf("%+v: %s, want %s", c.cfg, got, c.want)
		}
	}
}

// What must hold of any load.
func TestSlotsProperties(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	load := func() Load {
		l := Load{Waiting: float64(r.Int64N(10_000)), Running: float64(r.Int64N(200)), Arrival: r.Float64() * 100, Service: time.Duration(r.Int64N(int64(20 * time.Minute))), Limit: -1}
		if r.IntN(3) == 0 {
			l.Limit = r.Float64() * 300
		}
		if r.IntN(4) == 0 {
			l.Waiting, l.Running = 0, 0
		}
		return l
	}
	for i := range 20_000 {
		ls := make([]Load, 1+r.IntN(3))
		var running float64
		bound, limited := 0.0, true
		for j := range ls {
			ls[j] = load()
			running += ls[j].Running
			bound += ls[j].Limit
			limited = limited && ls[j].Limit >= 0
		}
		cfg := Config{Drain: time.Duration(1+r.IntN(600)) * time.Second, Use: 0.1 + 0.9*r.Float64()}
		c := float64(1 + r.IntN(64))
		n := Slots(cfg, ls)
		x := n.Executors(cfg, c)
		more := make([]Load, len(ls))
		copy(more, ls)
		more[0].Waiting += 100
		tight := make([]Load, len(ls))
		copy(tight, ls)
		tight[0].Limit = r.Float64() * 10
		switch {
		case math.IsNaN(n.Slots) || math.IsInf(n.Slots, 0) || n.Slots < running:
			t.Fatalf("%d: %+v needs %v slots, %v run", i, ls, n.Slots, running)
		case limited && n.Slots > max(bound, running)+1e-6:
			t.Fatalf("%d: %+v needs %v slots, downstreams bear %v", i, ls, n.Slots, bound)
		case n.Active && (float64(x)*c*cfg.Use < n.Slots-1e-6 || x > 1 && float64(x-1)*c*cfg.Use > n.Slots+1e-6):
			t.Fatalf("%d: %d executors of %v slots for %v", i, x, c, n.Slots)
		case Slots(cfg, more).Slots < n.Slots-1e-6:
			t.Fatalf("%d: %+v needs less with more tasks", i, ls)
		case (ls[0].Limit < 0 || tight[0].Limit < ls[0].Limit) && Slots(cfg, tight).Slots > n.Slots+1e-6:
			t.Fatalf("%d: %+v needs more with less room downstream", i, ls)
		}
	}
}

// needs is a need of so many slots.
func needs(slots float64) Need { return Need{Slots: slots, Active: slots > 0} }

// It grows at once, but not for a few per cent; it falls to the highest need of the last five minutes.
func TestHoldStory(t *testing.T) {
	var h Hold
	now := t0
	for i, s := range []struct {
		after time.Duration
		slots float64
		want  int
	}{
		{0, 80, 10}, // 10 executors of 10 slots, 8 of them in use
		{time.Second, 84, 10},
		{time.Second, 88, 10}, // a tenth above
		{time.Second, 89, 12},
		{time.Minute, 16, 12},
		{3 * time.Minute, 40, 12},
		{50 * time.Second, 16, 12}, // 4:50 after the peak
		{20 * time.Second, 16, 5},  // the need of 40 is a minute old
		{4 * time.Minute, 16, 2},
		{time.Second, 0, 2},
		{299 * time.Second, 0, 2},
		{12 * time.Second, 0, 0},
		{time.Hour, 1, 1}, // from nothing there is no tolerance
	} {
		now = now.Add(s.after)
		if got := h.Step(now, needs(s.slots), Config{}, 10, 5*time.Minute, 0, 1000); got != s.want {
			t.Errorf("step %d, %v: %d executors for %v slots, want %d", i, now.Sub(t0), got, s.slots, s.want)
		}
	}
	if got := h.Step(now.Add(time.Second), needs(0), Config{}, 10, 5*time.Minute, 3, 1000); got != 3 {
		t.Errorf("%d, want the least, 3", got)
	}
	if got := h.Step(now.Add(2*time.Second), needs(1e9), Config{}, 10, 5*time.Minute, 3, 7); got != 7 {
		t.Errorf("%d, want the most, 7", got)
	}
	var begun Hold
	begun.Begin(t0, 6, time.Minute)
	if a, b := begun.Step(t0, needs(1), Config{}, 10, time.Minute, 0, 9), begun.Step(t0.Add(63*time.Second), needs(1), Config{}, 10, time.Minute, 0, 9); a != 6 || b != 1 {
		t.Errorf("%d, %d of the 6 that were there, want 6 for a minute, then 1", a, b)
	}
	if got := h.Step(now.Add(3*time.Second), needs(1), Config{}, 10, 0, 0, 7); got != 1 {
		t.Errorf("%d, want 1 at once without a delay", got)
	}
}

// However the need jumps: never below what is needed by more than the tolerance, never above the highest need of
// the last delay (and a bucket), and a steady need is met and kept.
func TestHoldProperties(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 3))
		var h Hold
		const delay = 3 * time.Minute
		type past struct {
			at time.Time
			n  int
		}
		var log []past
		now, last, changes := t0, 0, 0
		for range 300 {
			now = now.Add(time.Duration(r.Int64N(int64(20 * time.Second))))
			n := needs(float64(r.IntN(400)))
			got := h.Step(now, n, Config{}, 4, delay, 0, 1000)
			log = append(log, past{now, n.Executors(Config{}, 4)})
			most := 0
			for _, p := range log {
				if now.Sub(p.at) <= delay+delay/holdBuckets {
					most = max(most, p.n)
				}
			}
			if float64(got)*4*UseDefault*(1+tolerance) < n.Slots-1e-6 || got > most {
				t.Fatalf("seed %d: %d executors for %v slots, most %d", seed, got, n.Slots, most)
			}
			if got < last {
				changes++
			}
			last = got
		}
		if changes > 100 {
			t.Errorf("seed %d: it fell %d times in 300 steps", seed, changes)
		}
		for range 100 {
			now = now.Add(5 * time.Second)
			last = h.Step(now, needs(32), Config{}, 4, delay, 0, 1000)
		}
		if last != 10 {
			t.Errorf("seed %d: %d executors for a steady need of 10", seed, last)
		}
	}
}

// A mean is right from the first sample, and half of a change is seen after τ·ln 2.
func TestMeter(t *testing.T) {
	var m Meter
	if m.Arrival() != 0 || m.Service() != 0 {
		t.Error("an empty meter knows something")
	}
	now, arrived, ended, busy := t0, uint64(1000), uint64(50), time.Hour // the node has run for a while
	m.Add(now, arrived, ended, busy)
	if m.Arrival() != 0 || m.Service() != 0 {
		t.Error("what came before the meter began counts")
	}
	step := func(d time.Duration, n uint64, each time.Duration) {
		now, arrived, ended, busy = now.Add(d), arrived+n, ended+n, busy+time.Duration(n)*each
		m.Add(now, arrived, ended, busy)
	}
	step(time.Second, 10, 2*time.Second)
	if got := m.Arrival(); math.Abs(got-10) > 1e-9 {
		t.Errorf("%v arrivals a second after one, want 10", got)
	}
	if got := m.Service(); got != 0 {
		t.Errorf("service %v after 10 tries, want unknown", got)
	}
	step(3*time.Second, 30, 2*time.Second)
	if got := m.Service(); (got - 2*time.Second).Abs() > time.Millisecond {
		t.Errorf("service %v, want 2s", got)
	}
	for range 180 {
		step(time.Second, 10, 2*time.Second)
	}
	for range 42 { // 60 s · ln 2
		step(time.Second, 20, 4*time.Second)
	}
	if got := m.Arrival(); math.Abs(got-15) > 0.3 {
		t.Errorf("%v arrivals a second, want half of the change: 15", got)
	}
	s := m.Service()
	if s < 3*time.Second || s > 3600*time.Millisecond {
		t.Errorf("service %v", s)
	}
	step(24*time.Hour, 0, 0)
	if got := m.Arrival(); got > 1e-6 {
		t.Errorf("%v arrivals a second after a day of none", got)
	}
	if got := m.Service(); (got - s).Abs() > time.Millisecond {
		t.Errorf("service %v after a day of none, was %v", got, s)
	}
	m.Add(now.Add(time.Second), 0, 0, 0) // another owner's counters
	if got := m.Arrival(); got > 1 || got < 0 {
		t.Errorf("%v arrivals a second after counters went back", got)
	}
}
