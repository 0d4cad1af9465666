package shares

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/headrace/headrace/flowcontrol/gcra"
)

// Pools is the coordinator that one node is: of the limits that rendezvous gives it.
type Pools struct {
	self       string
	session    int64 // of the membership; 0: there is none
	members    []string
	partitions []uint32
	limits     map[Key]Limit // all there are
	pools      map[Key]*pool // those that this node coordinates
	known      uint64        // Sum of these
	seqs       map[string]uint64
	open       map[uint32]opened
	epochs     map[uint32]uint64 // the newest that anybody reported
}

// opened is who has a partition open, and when he said so last.
type opened struct {
	node  string
	epoch uint64
	at    time.Time
}

// pool is one limit.
type pool struct {
	limit   Limit
	since   time.Time // when this node began to coordinate it
	started bool      // grants are made
	rate    gcra.Limiter
	nodes   map[string]*holding
}

// holding is what one node has of a limit, and wants.
type holding struct {
	name     string
	use      Use
	granted  int // the most that it may apply
	at       time.Time
	reported bool
	left     time.Time // when it left the membership; zero: it is there
	holds    time.Time // since when it has something; zero: it has nothing
	waits    time.Time // since when it waits with nothing
	tokenAt  time.Time // when it got a token last
}

// held is the most that the node may have in use.
func (h *holding) held() int { return max(h.use.InUse, h.granted) }

// NewPools returns the coordinator that a node is, with no limits.
func NewPools(self string) *Pools {
	return &Pools{self: self, limits: map[Key]Limit{}, pools: map[Key]*pool{}, seqs: map[string]uint64{},
		open: map[uint32]opened{}, epochs: map[uint32]uint64{}}
}

// SetSession names the present membership of this node; 0: it has none. It comes before SetView and Report. With another
// one everything begins anew: while this node was away, and did not know it, others have coordinated its limits.
func (c *Pools) SetSession(now time.Time, session int64) {
	if c.session == session {
		return
	}
	c.session = session
	clear(c.pools)
	c.known = 0
	for k := range c.limits {
		c.place(now, k)
	}
}

// SetView says which nodes may own partitions, and which partitions there are. What a node that left may have in
// use is kept until others have counted it.
func (c *Pools) SetView(now time.Time, members []string, partitions []uint32) {
	if slices.Equal(c.members, members) && slices.Equal(c.partitions, partitions) {
		return
	}
	was := c.members
	c.members, c.partitions = slices.Clone(members), slices.Clone(partitions)
	for id, o := range c.open {
		if !slices.Contains(members, o.node) {
			delete(c.open, id)
		}
	}
	for _, p := range c.pools {
		if !p.started && slices.ContainsFunc(was, func(n string) bool { return !slices.Contains(members, n) }) {
			p.since = now // who left may never have reported
		}
		for name, h := range p.nodes {
			switch there := slices.Contains(members, name); {
			case there:
				h.left = time.Time{}
			case h.left.IsZero():
				h.left = now
			}
		}
	}
	for k := range c.limits {
		c.place(now, k)
	}
}

// SetLimit changes a limit; the zero Limit: there is none.
func (c *Pools) SetLimit(now time.Time, k Key, l Limit) {
	if l == (Limit{}) {
		delete(c.limits, k)
	} else {
		c.limits[k] = l
	}
	c.place(now, k)
}

// place begins to coordinate a limit, or ends it.
func (c *Pools) place(now time.Time, k Key) {
	l, there := c.limits[k]
	p := c.pools[k]
	switch mine := there && Coordinator(k, c.members) == c.self; {
	case mine && p != nil:
		p.limit = l
	case mine:
		p = &pool{limit: l, since: now, nodes: map[string]*holding{}}
		if l.Rate.PerSecond > 0 {
			p.rate.Take(now, p.bucket(), p.bucket().Burst) // the one before may have given it all away
		}
		c.pools[k] = p
		c.known ^= k.Sum()
	case p != nil:
		delete(c.pools, k)
		c.known ^= k.Sum()
	}
}

// Report takes what a node says and answers it. A node that is no member, and a report that is not the newest of its
// node, gets nothing.
func (c *Pools) Report(now time.Time, r Report) Answer {
	var a Answer
	if !slices.Contains(c.members, r.Node) || r.Seq <= c.seqs[r.Node] {
		return a
	}
	c.seqs[r.Node] = r.Seq
	agrees := r.Known == c.known
	for id, o := range c.open {
		if o.node == r.Node {
			delete(c.open, id)
		}
	}
	if agrees { // else what it left out of its uses is not known
		for _, o := range r.Open {
			if o.Epoch >= c.epochs[o.Partition] {
				c.epochs[o.Partition] = o.Epoch
				c.open[o.Partition] = opened{r.Node, o.Epoch, now}
			}
		}
	}
	uses := make(map[Key]Use, len(r.Uses))
	for _, u := range r.Uses {
		uses[u.Key] = u
	}
	settled := c.openSince()
	for k, p := range c.pools { // the order does not matter: each is for itself
		u, there := uses[k]
		if !there && !agrees {
			continue
		}
		h := p.nodes[r.Node]
		if h == nil {
			h = &holding{name: r.Node}
			p.nodes[r.Node] = h
		}
		h.use, h.granted, h.at, h.reported = u, u.Share, now, true
		h.turn(now)
		for name, o := range p.nodes {
			if !o.left.IsZero() && (settled.After(o.left) || now.Sub(o.left) >= SettleMax) {
				delete(p.nodes, name)
			}
		}
		if !p.started {
			p.started = now.Sub(p.since) >= Life && (settled.After(p.since) || now.Sub(p.since) >= SettleMax) && p.allReported(c.members)
		}
	}
	for _, u := range r.Uses {
		if p := c.pools[u.Key]; p != nil && p.started {
			a.Grants = append(a.Grants, p.grant(now, p.nodes[r.Node], c.members))
		}
	}
	for _, l := range r.Lost {
		if o, ok := c.open[l.Partition]; ok && o.epoch > l.Epoch {
			a.Adopted = append(a.Adopted, l)
		}
	}
	return a
}

// openSince is the oldest of the reports that have the partitions open; zero: one is not.
func (c *Pools) openSince() time.Time {
	var oldest time.Time
	for _, id := range c.partitions {
		o, ok := c.open[id]
		if !ok {
			return time.Time{}
		}
		if oldest.IsZero() || o.at.Before(oldest) {
			oldest = o.at
		}
	}
	return oldest
}

func (p *pool) allReported(members []string) bool {
	return !slices.ContainsFunc(members, func(n string) bool { return p.nodes[n] == nil || !p.nodes[n].reported })
}

// turn notes since when the node has something, or waits.
func (h *holding) turn(now time.Time) {
	switch {
	case h.held() > 0:
		if h.waits = (time.Time{}); h.holds.IsZero() {
			h.holds = now
		}
	case h.use.Ready > 0:
		if h.holds = (time.Time{}); h.waits.IsZero() {
			h.waits = now
		}
	default:
		h.holds, h.waits = time.Time{}, time.Time{}
	}
}

// grant decides what a node gets that has just reported.
func (p *pool) grant(now time.Time, h *holding, members []string) Grant {
	g := Grant{Key: h.use.Key}
	if l := p.limit.Concurrency; l > 0 {
		others, left := 0, 0
		for _, o := range p.nodes {
			if o != h {
				others += o.held()
			}
			if !o.left.IsZero() {
				left += o.held()
			}
		}
		g.Share = max(0, min(p.targets(now, l-left, members)[h.name], l-others))
		h.granted = max(h.use.Share, g.Share)
		h.turn(now)
	}
	if r := p.limit.Rate; r.PerSecond > 0 {
		g.Tokens = p.tokens(now, h, members)
		if g.Tokens > 0 {
			p.rate.Take(now, p.bucket(), float64(g.Tokens))
			h.tokenAt = now
		}
	}
	return g
}

// bucket is the rate with room for what comes in from report to report.
func (p *pool) bucket() gcra.Rate {
	r := p.limit.Rate
	r.Burst += r.PerSecond * Every.Seconds()
	return r
}

// targets is what each node ought to have of a total.
func (p *pool) targets(now time.Time, total int, members []string) map[string]int {
	round := int(now.UnixNano() / int64(quantum))
	place := func(h *holding) int { return (slices.Index(members, h.name) + round) % len(members) }
	order := p.order(members, func(a, b *holding) int {
		return cmp.Or(cmp.Compare(a.rank(now), b.rank(now)), a.waits.Compare(b.waits), cmp.Compare(place(a), place(b)))
	})
	wants := make([]int, len(order))
	for i, h := range order {
		wants[i] = h.use.InUse + h.use.Ready
	}
	out := map[string]int{}
	for i, n := range divide(total, wants, true) {
		out[order[i].name] = n
	}
	return out
}

// rank says who comes first where a permit can't be divided: who has his turn, then who waits with nothing, longest first,
// then who had it, in turns.
func (h *holding) rank(now time.Time) int {
	switch {
	case !h.holds.IsZero() && now.Sub(h.holds) < quantum:
		return 0
	case !h.waits.IsZero():
		return 1
	case !h.holds.IsZero():
		return 2
	}
	return 3
}

// tokens is how many starts a node gets now.
func (p *pool) tokens(now time.Time, h *holding, members []string) int {
	order := p.order(members, func(a, b *holding) int { return a.tokenAt.Compare(b.tokenAt) })
	order = slices.DeleteFunc(order, func(o *holding) bool { return now.Sub(o.at) >= Life })
	most := int(math.Ceil(p.bucket().Burst)) // more could not be there
	wants := make([]int, len(order))
	for i, o := range order {
		wants[i] = max(0, min(o.use.Ready, most)-o.use.Tokens)
	}
	// A rounding error below a token must not cost one.
	parts := divide(int(p.rate.Fits(now, p.bucket())+1e-6), wants, false)
	return parts[slices.Index(order, h)]
}

// order returns the holdings of the members, by name where less says nothing.
func (p *pool) order(members []string, less func(a, b *holding) int) []*holding {
	var list []*holding
	for _, name := range slices.Sorted(maps.Keys(p.nodes)) {
		if h := p.nodes[name]; slices.Contains(members, name) {
			list = append(list, h)
		}
	}
	slices.SortStableFunc(list, func(a, b *holding) int { return cmp.Or(less(a, b), strings.Compare(a.name, b.name)) })
	return list
}

// divide gives nobody more than he wants, and those that get less the same, but for one: the first ones get what can't be
// divided. With spread, what is left is divided among all, wanted or not.
func divide(total int, wants []int, spread bool) []int {
	out := make([]int, len(wants))
	open := make([]int, 0, len(wants)) // those that want more, in order
	for i, w := range wants {
		if w > 0 {
			open = append(open, i)
		}
	}
	for total > 0 && len(open) > 0 {
		each := max(1, total/len(open))
		for _, i := range open {
			n := min(each, wants[i]-out[i], total)
			out[i] += n
			total -= n
		}
		open = slices.DeleteFunc(open, func(i int) bool { return out[i] >= wants[i] })
	}
	if spread && total > 0 && len(out) > 0 {
		each, more := total/len(out), total%len(out)
		for i := range out {
			out[i] += each
			if i < more {
				out[i]++
			}
		}
	}
	return out
}
