package core

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// tenant is what the node knows of one tenant. Tenants, functions and flows are never forgotten while
// the node runs: they are few, and small.
type tenant struct {
	name      string
	weight    int
	class     int    // index among a pool's classes
	ended     uint64 // tasks, since the node started
	functions map[string]*function
	downs     map[string]*downstream
	queues    []*commitQueue // by database
	flying    items          // its tries in flight, oldest first
	pauses    pauses
	bound     *bound   // that its user set; nil: none (limit_bound.go)
	benches   []*bench // its places, one in each pool that runs something of it
}

// function is one function of a tenant.
type function struct {
	tenant     *tenant
	name       string
	policy     task.Policy // with defaults
	declaredAs task.Policy // as declared
	hash       uint64      // of the policy as declared
	version    int64
	known      bool // its policy was declared or stored
	down       *downstream
	named      bool // the policy names down
	flows      [task.Bands]*flow
	pools      []*pool           // that can run it
	poolsAt    time.Time         // since when there are none, if there are none
	hadPool    bool              // there were some before
	budget     budget            // of its retries
	cost       int64             // expected milliseconds of a try
	prefers    map[string]string // labels of executors; nil: none
	declared   int               // open sessions that declare exactly this policy
	bound      *bound            // nil: none
	flying     int               // its tries in flight

	// Since the node started, for the pools' means (load.go):
	arrived uint64        // tasks that became due
	ended   uint64        // tries that a handler ended, well or badly
	busy    time.Duration // that those took in all
}

// downstream is the named thing that a tenant's functions call.
type downstream struct {
	name   string
	until  time.Time // closed until then
	timer  timer
	flowed []*function // that call it
	turned int         // index in flowed of whose flows come back first
	named  int         // of flowed, those whose policy names it
	lim    *limiter    // nil: none (limit.go)
	// override is what the operator says of it; nil: nothing.
	override *task.Limit
}

// flow is what waits for the same thing, over all partitions.
type flow struct {
	function *function
	band     task.Band
	lanes    []*lane     // by partition
	open     int         // lanes that have something to run
	running  int64       // tries in flight
	paused   *task.Pause // keeps it out of the order; nil: nothing does
	pace     pace        // of its starts
	seats    []*seat     // its places, one for each pool of the function
}

func (c *Core) tenant(name string) *tenant {
	t := c.tenants[name]
	if t == nil {
		t = &tenant{
			name: name, functions: map[string]*function{}, downs: map[string]*downstream{},
			flying: items{of: flyingLinks},
		}
		c.tenants[name] = t
		t.stand(c.cfg.Standing(name))
		t.pauses.tenant, t.pauses.rules = t, c.pauses[name]
		t.pauses.timer.owner = &t.pauses
		c.armPauses(t)
		c.bind(t, nil)
	}
	return t
}

// stand takes what the operator says of the tenant.
func (t *tenant) stand(weight int, class task.TenantClass) {
	t.weight, t.class = max(weight, 1), int(cmp.Or(class, task.Standard)-1)
}

func (c *Core) function(tenant, name string) *function {
	t := c.tenant(tenant)
	f := t.functions[name]
	if f == nil {
		f = &function{tenant: t, name: name, cost: minCost, poolsAt: c.now}
		f.budget.f, f.budget.timer.owner = f, &f.budget
		t.functions[name] = f
		for b := range f.flows {
			f.flows[b] = &flow{function: f, band: task.Band(b)}
			c.pauseFlow(f.flows[b])
		}
		c.setPolicy(f, task.Policy{})
		f.known = false
		c.bind(f.tenant, f)
	}
	return f
}

// setPolicy makes p the function's policy.
func (c *Core) setPolicy(f *function, p task.Policy) {
	f.policy, f.declaredAs, f.hash, f.version, f.known = p.WithDefaults(), p, p.Hash(), p.Version, true
	f.prefers, _ = task.ParseMatch("", p.Prefers) // it was checked
	name := cmp.Or(p.Downstream, f.name)
	if f.named {
		f.down.named--
	}
	old := f.down
	if old == nil || old.name != name {
		if old != nil {
			old.flowed = slices.DeleteFunc(old.flowed, func(g *function) bool { return g == f })
		}
		f.down = c.downstream(f.tenant, name)
		f.down.flowed = append(f.down.flowed, f)
	}
	if f.named = p.Downstream != ""; f.named {
		f.down.named++
	}
	if f.down == old {
		return
	}
	for _, fl := range f.flows {
		fl.update(c)
	}
}

func (c *Core) downstream(t *tenant, name string) *downstream {
	d := t.downs[name]
	if d == nil {
		d = &downstream{name: name}
		d.timer.owner = d
		t.downs[name] = d
		c.override(t, d)
	}
	return d
}

// shut stops the pushes to a downstream for as long as it asked.
func (c *Core) shut(d *downstream, until time.Time) {
	if !until.After(d.until) || !until.After(c.now) {
		return
	}
	d.until = until
	c.timers.set(&d.timer, until)
	d.update(c)
}

func (d *downstream) alarm(c *Core) { d.update(c) }

func (d *downstream) update(c *Core) {
	for i := range d.flowed {
		for _, fl := range d.flowed[(d.turned+i)%len(d.flowed)].flows {
			fl.update(c)
		}
	}
}

// declare takes a function's policy as an executor declares it. The newest version wins. Of two
// policies with the same version the known one stays while a session declares it; so a developer may
// change a policy without a version as long as nobody else disagrees.
func (c *Core) declare(f *function, p task.Policy) {
	hash := p.Hash()
	if f.known && hash == f.hash {
		return
	}
	if f.known && (p.Version < f.version || p.Version == f.version && f.declared > 0) {
		return
	}
	c.setPolicy(f, p)
	f.declared = 0
	for _, s := range c.opened {
		for _, d := range s.declared {
			if d.function == f && d.hash == hash {
				f.declared++
			}
		}
	}
}

// storePolicy writes the function's policy to a partition that has tasks of it, once for each change.
// Lazily: a partition without tasks of the function needs no policy to recover them.
func (c *Core) storePolicy(l *lane) {
	f, p := l.flow.function, l.part
	if l.policy == f.hash || !f.known || p.closing {
		return
	}
	l.policy = f.hash
	if p.policies[f] == f.hash {
		return
	}
	p.policies[f] = f.hash
	c.enqueue(p, f.tenant, queuedChange{
		Change: store.Change{Op: store.PutFunc, Func: &store.Function{Tenant: f.tenant.name, Name: f.name, Policy: f.declaredAs}},
	})
}

// may reports whether the flow may run now.
func (fl *flow) may(c *Core) bool {
	return fl.open > 0 && fl.paused == nil && fl.function.down.takes(c) && (fl.function.bound == nil || !fl.function.bound.shut)
}

// takes reports whether a try may be pushed to the downstream now.
func (d *downstream) takes(c *Core) bool {
	return !d.until.After(c.now) && (d.lim == nil || d.lim.open)
}

// update moves the flow into its pools' order or out of it.
func (fl *flow) update(c *Core) {
	may := fl.may(c)
	for _, s := range fl.seats {
		if may {
			s.pool.enter(s)
		} else {
			s.pool.leave(s)
		}
	}
}

// next returns the lane with the smallest key. A tenant has tasks in few partitions (its shard), so
// looking at each is cheaper than an order among them.
func (fl *flow) next() *lane {
	var best *lane
	for _, l := range fl.lanes {
		if l.open && (best == nil || l.first().key.Compare(best.first().key) < 0) {
			best = l
		}
	}
	return best
}

// remove takes a dead partition's lane out.
func (fl *flow) remove(c *Core, l *lane) {
	for i, o := range fl.lanes {
		if o == l {
			fl.lanes = append(fl.lanes[:i], fl.lanes[i+1:]...)
			break
		}
	}
	if l.open {
		l.open = false
		fl.open--
	}
	fl.update(c)
}

// sorted returns the partition's tasks in memory by sequence number.
func (p *partition) sorted() []*item {
	its := make([]*item, 0, len(p.items))
	for _, it := range p.items {
		its = append(its, it)
	}
	slices.SortFunc(its, func(a, b *item) int { return cmp.Compare(a.t.ID.Seq(), b.t.ID.Seq()) })
	return its
}

func (p *partition) sortedLanes() []*lane {
	ls := make([]*lane, 0, len(p.lanes))
	for _, l := range p.lanes {
		ls = append(ls, l)
	}
	slices.SortFunc(ls, func(a, b *lane) int {
		fa, fb := a.flow.function, b.flow.function
		return cmp.Or(strings.Compare(fa.tenant.name, fb.tenant.name), strings.Compare(fa.name, fb.name), cmp.Compare(a.flow.band, b.flow.band))
	})
	return ls
}

func (p *partition) sortedGets() []*getting {
	gs := make([]*getting, 0, len(p.gets))
	for _, g := range p.gets {
		gs = append(gs, g)
	}
	slices.SortFunc(gs, func(a, b *getting) int { return a.id.Compare(b.id) })
	return gs
}
