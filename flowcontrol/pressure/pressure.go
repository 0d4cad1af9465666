package pressure

import (
	"cmp"
	"slices"
	"time"

	"github.com/headrace/headrace/flowcontrol/maxmin"
)

// The parameters (algorithms.md §4.2, §9).
const (
	Interval    = 5 * time.Second  // a limit outlives its tenant's submits by two of these at most
	standing    = 10 * time.Second // for so long every sample is above, then it is overload
	calm        = 2 * time.Second  // for so long every sample is below, then it is over
	clearAt     = 0.5              // of the level's threshold
	softRoom    = 0.95             // of what is taken in
	hardRoom    = 0.9
	heavyShare  = 0.01 // of all submits: who costs less is not heavy
	engageAt    = 0.8  // of drain_max: from here on a tenant's submits are watched
	releaseAt   = 0.5
	roomTime    = 2 * time.Second // in which what is left below drain_max may be used up
	leastFactor = 0.9             // of the rate of finishing, above drain_max: slow, but never starved
	quietShare  = 0.02            // of a limit, or less than one task in an interval: nobody submits
)

// Level says how bad it is.
type Level uint8

// The levels.
const (
	None Level = iota
	Soft
	Hard
)

func (l Level) String() string { return [...]string{"none", "soft", "hard"}[l] }

// Reason says why a tenant is limited.
type Reason uint8

// The reasons.
const (
	Overload Reason = iota + 1 // shared pressure
	Drain                      // the tenant's own backlog
)

func (r Reason) String() string { return [...]string{"", "overload", "tenant_drain"}[r] }

// Tenant is what was seen of one, in the whole cluster.
type Tenant struct {
	Name     string
	Weight   int           // at least 1
	DrainMax time.Duration // above 0
	Ready    int64         // due and not finished
	Finish   float64       // tasks that ended a second; 0: none do, or nobody knows
	Offered  float64       // tasks a second that were asked to be stored, refused ones too
	Accepted float64       // tasks a second that were
	Cost     float64       // a second, of what was offered: tasks and their bytes; 0: as Offered
}

func (t Tenant) cost() float64 { return cmp.Or(t.Cost, t.Offered) }

// DrainTime is how long its ready tasks take; false: nobody knows.
func (t Tenant) DrainTime() (time.Duration, bool) {
	if t.Ready <= 0 {
		return 0, true
	}
	if t.Finish <= 0 {
		return 0, false
	}
	s := float64(t.Ready) / t.Finish
	if s > 1e9 {
		s = 1e9
	}
	return time.Duration(s * float64(time.Second)), true
}

// Limit is what a tenant is held to.
type Limit struct {
	Tenant    string
	PerSecond float64 // in the whole cluster
	Level     Level
	Reason    Reason
	Since     time.Time
}

// Controller decides, one step after the other. The zero value is ready.
type Controller struct {
	shared  Level
	samples window
	tenants map[string]*state
}

// state is what the controller remembers of a tenant: one that has a limit, or may soon.
type state struct {
	drains  window
	engaged bool
	since   time.Time // the limit; zero: none
	quiet   time.Time // since when it submits next to nothing; zero: it submits
}

// Level is the level of the shared pressure.
func (c *Controller) Level() Level { return c.shared }

// Step takes what was seen a moment ago, and returns who is limited from now on, by name. Shared is the worst of the
// nodes' pressures: 1 is where overload begins. Call it four times a second or so, with tenants in any order.
func (c *Controller) Step(now time.Time, shared float64, tenants []Tenant) []Limit {
	if c.tenants == nil {
		c.tenants = map[string]*state{}
	}
	c.judge(now, shared)
	limits := map[string]Limit{}
	for _, l := range c.overload(tenants) {
		limits[l.Tenant] = l
	}
	seen := make(map[string]bool, len(tenants))
	out := make([]Limit, 0, len(limits))
	for _, t := range tenants {
		seen[t.Name] = true
		l, limited := limits[t.Name]
		if d, ok := c.drain(now, t); ok && (!limited || d.PerSecond < l.PerSecond) {
			l, limited = d, true
		}
		s := c.tenants[t.Name]
		if limited && s == nil {
			s = &state{}
			c.tenants[t.Name] = s
		}
		if s == nil {
			continue
		}
		if limited = limited && !s.silent(now, t, l); limited {
			if s.since.IsZero() {
				s.since = now
			}
			l.Since = s.since
			out = append(out, l)
			continue
		}
		if s.since = (time.Time{}); !s.engaged && s.drains.empty() {
			delete(c.tenants, t.Name)
		}
	}
	for name := range c.tenants { // the order does not matter
		if !seen[name] {
			delete(c.tenants, name)
		}
	}
	slices.SortFunc(out, func(a, b Limit) int { return cmp.Compare(a.Tenant, b.Tenant) })
	return out
}

// silent reports whether a tenant has submitted next to nothing for so long that its limit goes.
func (s *state) silent(now time.Time, t Tenant, l Limit) bool {
	if t.Offered > max(quietShare*l.PerSecond, 1/Interval.Seconds()) {
		s.quiet = time.Time{}
		return false
	}
	if s.quiet.IsZero() {
		s.quiet = now
	}
	return s.since.IsZero() || now.Sub(s.quiet) >= Interval
}

// judge moves the shared level.
func (c *Controller) judge(now time.Time, shared float64) {
	c.samples.add(now, shared, standing)
	low, whole := c.samples.least(now, standing)
	high := c.samples.most(now, calm)
	switch {
	case whole && low >= 2:
		c.shared = Hard
	case c.shared == None && whole && low >= 1:
		c.shared = Soft
	case c.shared == Hard && high < 2*clearAt:
		c.shared = Soft
	case c.shared == Soft && high < clearAt:
		c.shared = None
	}
}

// overload divides what is being taken in.
func (c *Controller) overload(tenants []Tenant) (limits []Limit) {
	if c.shared == None {
		return nil
	}
	total, accepted, active := 0.0, 0.0, 0
	for _, t := range tenants {
		total += t.cost()
		accepted += t.Accepted
		if t.Offered > 0 {
			active++
		}
	}
	if active == 0 {
		return nil
	}
	heavy := total * max(heavyShare, 1/float64(2*active))
	room := accepted * softRoom
	if c.shared == Hard {
		room = accepted * hardRoom
	}
	var claims []maxmin.Claim
	var of []Tenant
	for _, t := range tenants {
		if t.Offered <= 0 {
			continue
		}
		if c.shared == Soft && t.cost() < heavy {
			room -= t.Offered
			continue
		}
		claims = append(claims, maxmin.Claim{Demand: t.Offered, Weight: float64(t.Weight)})
		of = append(of, t)
	}
	for i, share := range maxmin.Fill(room, claims) {
		if share < of[i].Offered*(1-1e-9) {
			// Never nothing: who is refused everything can't show what he wants.
			limits = append(limits, Limit{Tenant: of[i].Name, PerSecond: max(share, 1), Level: c.shared, Reason: Overload})
		}
	}
	return limits
}

// drain holds a tenant to the rate at which its tasks finish, near its drain_max.
func (c *Controller) drain(now time.Time, t Tenant) (Limit, bool) {
	long, known := t.DrainTime()
	s := c.tenants[t.Name]
	ratio := 0.0
	if known {
		ratio = long.Seconds() / t.DrainMax.Seconds()
	}
	if s == nil && ratio < engageAt {
		return Limit{}, false
	}
	if s == nil {
		s = &state{}
		c.tenants[t.Name] = s
	}
	if ratio < engageAt && !s.engaged {
		s.drains = window{}
		return Limit{}, false
	}
	s.drains.add(now, ratio, time.Second)
	low, whole := s.drains.least(now, time.Second)
	switch {
	case !s.engaged && whole && low >= engageAt:
		s.engaged = true
	case s.engaged && s.drains.most(now, time.Second) < releaseAt:
		s.engaged = false
		s.drains = window{}
	}
	if !s.engaged {
		return Limit{}, false
	}
	l := Limit{Tenant: t.Name, Level: Soft, Reason: Drain}
	if ratio < 1 {
		left := (1 - ratio) * t.DrainMax.Seconds() * t.Finish
		l.PerSecond = t.Finish*softRoom + left/roomTime.Seconds()
	} else {
		l.PerSecond = t.Finish * max(softRoom+1-ratio, leastFactor)
	}
	l.PerSecond = max(l.PerSecond, 1/t.DrainMax.Seconds())
	return l, true
}
