package core

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/headrace/headrace/flowcontrol/fairqueue"
	"github.com/headrace/headrace/task"
)

// pool is the executors that can run the same functions, and the order of what waits for them.
type pool struct {
	name      string // the sorted names of its functions
	functions []*function
	classes   [task.TenantClasses]fairqueue.Queue // of tenants, by class
	turns     fairqueue.Stride                    // whose of the classes it is
	mask      uint8                               // classes that have somebody waiting
	benches   map[*tenant]*bench
	sessions  []*session // that may get a push now: a heap, most free credit first
	all       []*session // by opening
	keeps     []keep     // sessions that are kept until they have as many slots free as a flow's function costs
	weighted  int        // sessions that have functions of more than one slot
	suspects  fifo[*item]
	reserved  *session // kept empty for the first suspect
	demanded  bool     // a session was told of demand
}

// bench is a tenant's place in a pool.
type bench struct {
	entry *fairqueue.Entry
	class int
	pool  *pool
	kept  bool // out of the order: its tenant is at its bound
	turns fairqueue.Stride
	mask  uint8             // bands that have something to run
	rings [task.Bands]*seat // of the functions whose turn it is next
}

// seat is a flow's place on its tenant's bench: one in each pool that can run the function.
type seat struct {
	pool       *pool
	bench      *bench
	flow       *flow
	next, prev *seat // the ring of the band; nil: not in it
	kept       bool  // not in it: a session is kept for it
}

// Expected slot-milliseconds are kept in these bounds: a short task costs a push, and no function can
// set a tenant back for hours.
const (
	minCost = 10
	maxCost = 60_000
)

// joinPool puts a session into the pool of its functions.
func (c *Core) joinPool(s *session) {
	ds := slices.Clone(s.declared)
	slices.SortFunc(ds, func(a, b declaration) int {
		return cmp.Or(strings.Compare(a.function.tenant.name, b.function.tenant.name), strings.Compare(a.function.name, b.function.name))
	})
	ds = slices.CompactFunc(ds, func(a, b declaration) bool { return a.function == b.function })
	fs := make([]*function, 0, len(ds))
	var name strings.Builder
	for _, d := range ds {
		f := d.function
		fs = append(fs, f)
		name.WriteString(f.tenant.name + "/" + f.name)
		if d.bands != allBands {
			fmt.Fprintf(&name, "/%d", d.bands)
		}
		name.WriteByte(' ')
	}
	var p *pool
	for _, q := range c.pools {
		if q.name == name.String() {
			p = q
		}
	}
	if p == nil {
		p = &pool{name: name.String(), functions: fs, benches: map[*tenant]*bench{}}
		c.pools = append(c.pools, p)
		for i, f := range fs {
			f.pools = append(f.pools, p)
			for _, fl := range f.flows {
				if ds[i].bands&(1<<fl.band) == 0 {
					continue
				}
				fl.seats = append(fl.seats, &seat{pool: p, bench: p.bench(f.tenant), flow: fl})
				fl.update(c)
			}
		}
	}
	s.pool = p
	s.index = -1
	p.all = append(p.all, s)
	if s.costs != nil {
		p.weighted++
	}
}

// leavePool takes a session out. A pool without sessions is gone: what waits, waits for a new one.
func (c *Core) leavePool(s *session) {
	p := s.pool
	p.unready(s)
	p.all = slices.DeleteFunc(p.all, func(o *session) bool { return o == s })
	if s.costs != nil {
		p.weighted--
	}
	for i := len(p.keeps) - 1; i >= 0; i-- {
		if p.keeps[i].session == s {
			c.endKeep(p, i)
		}
	}
	if p.reserved == s {
		p.reserved = nil
	}
	if len(p.all) > 0 {
		return
	}
	c.pools = slices.DeleteFunc(c.pools, func(o *pool) bool { return o == p })
	for t, b := range p.benches {
		t.benches = slices.DeleteFunc(t.benches, func(o *bench) bool { return o == b })
	}
	for _, f := range p.functions {
		f.pools = slices.DeleteFunc(f.pools, func(o *pool) bool { return o == p })
		if len(f.pools) == 0 {
			f.poolsAt, f.hadPool = c.now, true
		}
		for _, fl := range f.flows {
			fl.seats = slices.DeleteFunc(fl.seats, func(st *seat) bool { return st.pool == p })
		}
	}
	for p.suspects.len() > 0 {
		if it := p.suspects.pop(); it.place == atSuspect && !it.part.dead {
			c.timers.unset(&it.timer)
			c.offer(it)
		}
	}
}

func (p *pool) bench(t *tenant) *bench {
	b := p.benches[t]
	if b == nil {
		b = &bench{pool: p, class: t.class, kept: t.bound != nil && t.bound.shut}
		b.entry = fairqueue.NewEntry(b, t.weight)
		p.benches[t] = b
		t.benches = append(t.benches, b)
	}
	return b
}

// stand gives a bench the standing of its tenant. In another class it begins anew.
func (p *pool) stand(b *bench, t *tenant) {
	b.entry.SetWeight(t.weight)
	if b.class == t.class {
		return
	}
	waits := b.entry.Queued()
	p.unqueue(b)
	b.class, b.entry = t.class, fairqueue.NewEntry(b, t.weight)
	if waits {
		p.enqueue(b)
	}
}

func (p *pool) enqueue(b *bench) {
	p.classes[b.class].Add(b.entry)
	p.mask |= 1 << b.class
}

func (p *pool) unqueue(b *bench) {
	q := &p.classes[b.class]
	q.Remove(b.entry)
	if q.Len() == 0 {
		p.mask &^= 1 << b.class
	}
}

// charge says that a task of the seat's flow was pushed, at an expected cost.
func (p *pool) charge(s *seat, cost int64) { p.classes[s.bench.class].Charge(s.bench.entry, cost) }

// correct adds what it cost beyond that.
func (p *pool) correct(s *seat, difference int64) {
	p.classes[s.bench.class].Correct(s.bench.entry, difference)
}

// shut keeps a bench out of the order, or lets it in again.
func (b *bench) shut(kept bool) {
	b.kept = kept
	switch {
	case b.mask == 0:
	case kept:
		b.pool.unqueue(b)
	default:
		b.pool.enqueue(b)
	}
}

// enter puts a flow into the order.
func (p *pool) enter(s *seat) {
	if s.next != nil || s.kept {
		return
	}
	b, band := s.bench, s.flow.band
	if ring := b.rings[band]; ring == nil {
		s.next, s.prev = s, s
		b.rings[band] = s
		if b.mask == 0 && !b.kept {
			p.enqueue(b)
		}
		b.mask |= 1 << band
	} else { // the last of the round
		s.next, s.prev = ring, ring.prev
		s.prev.next, s.next.prev = s, s
	}
}

// leave takes a flow out of the order.
func (p *pool) leave(s *seat) {
	if s.next == nil {
		return
	}
	b, band := s.bench, s.flow.band
	if s.next == s {
		b.rings[band] = nil
		b.mask &^= 1 << band
		if b.mask == 0 {
			p.unqueue(b)
		}
	} else {
		s.prev.next, s.next.prev = s.next, s.prev
		if b.rings[band] == s {
			b.rings[band] = s.next
		}
	}
	s.next, s.prev = nil, nil
}

// turn returns the flow whose turn it is. The turn is its until took says that something came of it.
func (p *pool) turn() *seat {
	if p.mask == 0 {
		return nil
	}
	b := p.classes[p.turns.Next(p.mask)].Min().Owner.(*bench)
	return b.rings[b.turns.Next(b.mask)]
}

// took counts a turn of the seat's class, band and function.
func (p *pool) took(s *seat) {
	b, band := s.bench, s.flow.band
	p.turns.Took(b.class)
	b.turns.Took(int(band))
	if b.rings[band] == s && s.next != nil {
		b.rings[band] = s.next
	}
}

// The heap of the sessions that may get a push.

func (p *pool) before(a, b *session) bool {
	return a.free() > b.free() || a.free() == b.free() && a.id < b.id
}

// ready puts a session where its credit and its room say.
func (p *pool) ready(s *session) {
	if !s.mayPush() || p.reserved == s || s.kept {
		p.unready(s)
		return
	}
	if s.index < 0 {
		s.index = len(p.sessions)
		p.sessions = append(p.sessions, s)
	}
	p.fix(s.index)
}

func (p *pool) unready(s *session) {
	i := s.index
	if i < 0 {
		return
	}
	last := len(p.sessions) - 1
	p.swap(i, last)
	p.sessions[last] = nil
	p.sessions = p.sessions[:last]
	s.index = -1
	if i < last {
		p.fix(i)
	}
}

func (p *pool) swap(i, j int) {
	p.sessions[i], p.sessions[j] = p.sessions[j], p.sessions[i]
	p.sessions[i].index, p.sessions[j].index = i, j
}

func (p *pool) fix(i int) {
	for i > 0 && p.before(p.sessions[i], p.sessions[(i-1)/2]) {
		p.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
	for {
		child := 2*i + 1
		if child >= len(p.sessions) {
			return
		}
		if child+1 < len(p.sessions) && p.before(p.sessions[child+1], p.sessions[child]) {
			child++
		}
		if !p.before(p.sessions[child], p.sessions[i]) {
			return
		}
		p.swap(i, child)
		i = child
	}
}
