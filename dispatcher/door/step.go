package door

import (
	"cmp"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/flowcontrol/gcra"
	"github.com/headrace/headrace/flowcontrol/pressure"
	"github.com/headrace/headrace/internal/telemetry"
	"github.com/headrace/headrace/task"
)

// Report is what a node tells of itself. It never changes.
type Report struct {
	At      time.Time // when it came here
	Shared  float64   // pressure: 1 is where overload begins
	Tenants []Usage   // by name
}

// Usage is what a node knows of a tenant.
type Usage struct {
	Tenant   string
	Ready    int64   // of its partitions: due and not finished
	Rows     int64   // not finished
	Bytes    int64   // of their payloads
	Finish   float64 // tasks that end a second; 0: unknown
	Offered  float64 // at its door: tasks a second that are asked to be stored
	Accepted float64
	Cost     float64 // a second, of what is offered: tasks and their bytes
}

func (u *Usage) add(o Usage) {
	u.Ready += o.Ready
	u.Rows += o.Rows
	u.Bytes += o.Bytes
	u.Finish += o.Finish
	u.Offered += o.Offered
	u.Accepted += o.Accepted
	u.Cost += o.Cost
}

func (u *Usage) nothing() bool { return u.Rows == 0 && u.Offered < 0.01 && u.Accepted < 0.01 }

// maxUsages bounds a report: those that have or ask for most are in it.
const maxUsages = 1000

// gateLife is how long a gate stays whose tenant has nothing and asks for nothing.
const gateLife = time.Minute

// view is what a step saw.
type view struct {
	own    *Report
	all    map[string]Usage // in the cluster
	limits map[string]pressure.Limit
	level  pressure.Level
	shared float64
}

// Report is this node's, of the last step; nil before.
func (d *Door) Report() *Report { return d.view.Load().own }

// Step decides anew from what the node's loop counts and from the peers' reports. One goroutine calls it.
func (d *Door) Step(usages []core.TenantUsage, shared float64) {
	now := d.cfg.Now()
	own := d.measure(now, usages)
	v := &view{own: &Report{At: now, Shared: shared, Tenants: most(own)}, all: map[string]Usage{}, shared: shared}
	for _, u := range own { // all of them: a report has some
		v.all[u.Tenant] = u
	}
	doors := 1
	for _, r := range d.cfg.Peers() {
		if r == nil || now.Sub(r.At) > reportLife {
			continue
		}
		doors++
		v.shared = max(v.shared, r.Shared)
		for _, u := range r.Tenants {
			s := v.all[u.Tenant]
			s.Tenant = u.Tenant
			s.add(u)
			v.all[u.Tenant] = s
		}
	}
	tenants := make([]pressure.Tenant, 0, len(v.all))
	for name, u := range v.all {
		g := d.grantOf(name).WithDefaults()
		tenants = append(tenants, pressure.Tenant{Name: name, Weight: g.Weight, DrainMax: g.DrainMax, Ready: u.Ready, Finish: u.Finish,
			Offered: u.Offered, Accepted: u.Accepted, Cost: u.Cost})
	}
	slices.SortFunc(tenants, func(a, b pressure.Tenant) int { return cmp.Compare(a.Name, b.Name) })
	v.limits = map[string]pressure.Limit{}
	for _, l := range d.control.Step(now, v.shared, tenants) {
		v.limits[l.Tenant] = l
	}
	v.level = d.control.Level()
	mine := make(map[string]Usage, len(own))
	for _, u := range own {
		mine[u.Tenant] = u
	}
	for _, t := range tenants { // who has something elsewhere, and comes here next, has a gate
		d.enforce(now, d.gate(t.Name), v, mine[t.Name], doors)
	}
	d.forget(now, v)
	d.view.Store(v)
	d.tell(v)
}

// measure returns what this node knows of tenants, by name.
func (d *Door) measure(now time.Time, usages []core.TenantUsage) []Usage {
	by := make(map[string]Usage, len(usages))
	for _, u := range usages {
		f := d.finish[u.Tenant]
		if f == nil {
			f = &pressure.Rate{}
			d.finish[u.Tenant] = f
		}
		by[u.Tenant] = Usage{Tenant: u.Tenant, Ready: u.Ready, Rows: u.Ready + u.Scheduled, Bytes: u.Bytes,
			Finish: f.Events(now, u.Ended, u.Ready > 0, finishTime, finishHold)}
	}
	for name := range d.finish {
		if _, there := by[name]; !there {
			delete(d.finish, name)
		}
	}
	for _, name := range d.heavies(now) {
		d.gate(name)
	}
	d.gates.Range(func(_, value any) bool {
		g := value.(*gate)
		u := by[g.tenant]
		u.Tenant = g.tenant
		u.Offered = g.offerRate.Observe(now, g.offered.Load(), offerTime)
		u.Accepted = g.acceptRate.Observe(now, g.accepted.Load(), acceptTime)
		u.Cost = g.costRate.Observe(now, g.cost.Load(), offerTime)
		by[g.tenant] = u
		return true
	})
	out := make([]Usage, 0, len(by))
	for _, u := range by {
		if !u.nothing() {
			out = append(out, u)
		}
	}
	slices.SortFunc(out, func(a, b Usage) int { return cmp.Compare(a.Tenant, b.Tenant) })
	return out
}

// heavies returns those without a gate that cost so much that they get one.
func (d *Door) heavies(now time.Time) (names []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.began.IsZero() {
		d.began = now
	}
	for _, k := range d.light.Heavy() {
		names = append(names, k.Name)
	}
	if now.Sub(d.began) >= pressure.Interval {
		d.began = now
		d.light.Next(d.light.Total() / 100)
	}
	return names
}

// most returns the usages that a report has room for.
func most(all []Usage) []Usage {
	if len(all) <= maxUsages {
		return all
	}
	s := slices.Clone(all)
	slices.SortFunc(s, func(a, b Usage) int {
		return cmp.Or(cmp.Compare(b.Cost, a.Cost), cmp.Compare(b.Rows, a.Rows), cmp.Compare(a.Tenant, b.Tenant))
	})
	// Half for those who ask for most, half for those who have most.
	slices.SortStableFunc(s[maxUsages/2:], func(a, b Usage) int { return cmp.Compare(b.Rows, a.Rows) })
	s = s[:maxUsages]
	slices.SortFunc(s, func(a, b Usage) int { return cmp.Compare(a.Tenant, b.Tenant) })
	return s
}

// enforce gives a gate its rules and its room.
func (d *Door) enforce(now time.Time, g *gate, v *view, mine Usage, doors int) {
	all := v.all[g.tenant]
	part := 1 / float64(doors)
	if mine.Offered > 0 && all.Offered > 0 {
		part = mine.Offered / all.Offered
	}
	d.mu.Lock() // a grant that comes meanwhile is not overwritten
	defer d.mu.Unlock()
	r := &rules{at: now, finish: all.Finish}
	r.setGrant(d.grants[g.tenant])
	if l, limited := v.limits[g.tenant]; limited {
		rate := l.PerSecond * part
		r.limit, r.share = &l, gcra.Rate{PerSecond: rate, Burst: max(1, rate)}
		if old := g.rules.Load(); old.limit != nil && closeTo(old.share.PerSecond, rate) {
			r.share = old.share // what was told when to come again stays true
		}
	}
	g.rules.Store(r)
	// What was let in and is not answered is not among the rows yet, or for a moment only.
	g.rows.Store(room(r.grant.MaxRows, all.Rows+g.pending.Load(), part))
	g.bytes.Store(room(r.grant.MaxBytes, all.Bytes+g.pendingBytes.Load(), part))
	if !all.nothing() {
		g.seenAt = now
	}
}

// closeTo reports whether a rate is as good as another.
func closeTo(a, b float64) bool { return a > 0.95*b && a < b/0.95 }

func room(most, used int64, part float64) int64 {
	left := max(most-used, 0)
	return int64(float64(left) * part)
}

// forget drops the gates and rules of those who have nothing.
func (d *Door) forget(now time.Time, v *view) {
	d.gates.Range(func(_, value any) bool {
		g := value.(*gate)
		if _, there := v.all[g.tenant]; there {
			return true
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		grant, has := d.grants[g.tenant]
		if !has && now.Sub(g.seenAt) > gateLife && g.pending.Load() == 0 {
			d.gates.Delete(g.tenant)
			return true
		}
		r := &rules{at: now}
		r.setGrant(grant)
		g.rules.Store(r)
		g.rows.Store(room(r.grant.MaxRows, g.pending.Load(), 1))
		g.bytes.Store(room(r.grant.MaxBytes, g.pendingBytes.Load(), 1))
		return true
	})
}

// tell logs limits that come and go.
func (d *Door) tell(v *view) {
	for name, l := range v.limits {
		if !d.limited[name] {
			d.limited[name] = true
			d.log.Warn("submits of a tenant are limited", telemetry.Text("limited", name), zap.Stringer("why", l.Reason), zap.Stringer("level", l.Level),
				zap.Float64("per_second", l.PerSecond), zap.Float64("offered", v.all[name].Offered), zap.Int64("ready", v.all[name].Ready))
		}
	}
	for name := range d.limited {
		if _, still := v.limits[name]; !still {
			delete(d.limited, name)
			d.log.Info("submits of a tenant are not limited any more", telemetry.Text("limited", name))
		}
	}
}

// Status is what is known of a tenant.
type Status struct {
	Usage                 // in the cluster
	Grant     task.Tenant // with defaults
	Drain     time.Duration
	DrainOK   bool    // else nobody knows
	Pressure  float64 // how much of what it may it uses: 1 is where submits are refused
	Limit     *pressure.Limit
	Level     pressure.Level // of the shared pressure
	SharedNow float64
}

// Status returns what is known of a tenant.
func (d *Door) Status(tenant string) Status {
	v := d.view.Load()
	s := Status{Usage: v.all[tenant], Grant: d.grantOf(tenant).WithDefaults(), Level: v.level, SharedNow: v.shared}
	s.Tenant = tenant
	s.Drain, s.DrainOK = pressure.Tenant{Ready: s.Ready, Finish: s.Finish}.DrainTime()
	if l, ok := v.limits[tenant]; ok {
		s.Limit = &l
	}
	s.Pressure = d.Pressure(tenant)
	return s
}

// Pressure is how near a tenant's submits are to being refused, 0 to 1.
func (d *Door) Pressure(tenant string) float64 {
	v := d.view.Load()
	if _, limited := v.limits[tenant]; limited {
		return 1
	}
	u := v.all[tenant]
	g := d.grantOf(tenant).WithDefaults()
	p := max(min(v.shared, 1)/2, float64(u.Rows)/float64(g.MaxRows), float64(u.Bytes)/float64(g.MaxBytes))
	if long, ok := (pressure.Tenant{Ready: u.Ready, Finish: u.Finish}).DrainTime(); ok {
		p = max(p, long.Seconds()/g.DrainMax.Seconds())
	}
	return min(p, 1)
}

// Tenants are the names of those that have or ask for something, and of those with a grant.
func (d *Door) Tenants() []string {
	var names []string
	for name := range d.view.Load().all {
		names = append(names, name)
	}
	d.mu.Lock()
	for name := range d.grants {
		names = append(names, name)
	}
	d.mu.Unlock()
	slices.Sort(names)
	return slices.Compact(names)
}
