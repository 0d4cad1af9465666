package core

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/headrace/headrace/flowcontrol/shares"
)

// boundIdle is how long a bound that is not used keeps its share: what comes within that time finds one.
const boundIdle = time.Minute

// BoundReport is what this node has to tell the coordinators of shared bounds.
type BoundReport struct {
	Keys       []shares.Key // of all rules, by tenant and function
	Uses       []shares.Use // of those that are in use here, the same
	Open, Lost []shares.Opened
}

// BoundReport returns what there is at now. It changes nothing. While what ran under an earlier core of this node is not
// known (Forgot) there are no keys, and nothing is to be reported: a node that is silent keeps what it has.
func (c *Core) BoundReport(now time.Time) BoundReport {
	var r BoundReport
	if slices.ContainsFunc(c.forgot, func(o forgotten) bool { return o.until.After(now) }) {
		return r
	}
	for _, tenant := range slices.Sorted(maps.Keys(c.boundRules)) {
		for _, rule := range c.boundRules[tenant] {
			r.Keys = append(r.Keys, shares.Key{Tenant: tenant, Function: rule.Function})
		}
	}
	slices.SortFunc(r.Keys, func(a, b shares.Key) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Function, b.Function))
	})
	if len(r.Keys) == 0 {
		return r
	}
	for _, k := range r.Keys {
		b := c.boundOf(k.Tenant, k.Function)
		if b == nil {
			continue
		}
		u := shares.Use{Key: k, InUse: b.running(), Ready: b.ready(c), Share: b.lease.Share(now), Tokens: b.lease.Tokens(now)}
		if u.InUse > 0 || u.Ready > 0 || now.Sub(b.usedAt) < boundIdle {
			r.Uses = append(r.Uses, u)
		}
	}
	for _, p := range c.order {
		if !p.takeover.active {
			r.Open = append(r.Open, shares.Opened{Partition: p.id, Epoch: uint64(p.epoch)})
		}
	}
	for _, g := range c.gone {
		r.Lost = append(r.Lost, shares.Opened{Partition: g.partition, Epoch: g.epoch})
	}
	return r
}

// ready counts what would start but for the bound.
func (b *bound) ready(c *Core) int {
	if b.function != nil {
		return b.function.ready(c)
	}
	n := 0
	for _, f := range b.tenant.functions { // the order does not matter: it is a sum
		n += f.ready(c)
	}
	return min(n, shares.ReadyMax)
}

func (f *function) ready(c *Core) int {
	if c.draining || c.heldFor != "" || !f.down.takes(c) {
		return 0
	}
	n := 0
	for _, fl := range f.flows {
		if fl.paused == nil && len(fl.seats) > 0 {
			n += fl.ready()
		}
	}
	return min(n, shares.ReadyMax)
}

// BoundGrants is what a coordinator answered to a report.
type BoundGrants struct {
	AskedAt time.Time // before the report was made
	Grants  []shares.Grant
	// What it says that others count now, of the bounds that it coordinates.
	Adopted []shares.Opened
	Mine    func(shares.Key) bool // whether it coordinates a bound
}

// GrantBounds takes it. Answers are taken in the order of their reports.
func (c *Core) GrantBounds(now time.Time, gs BoundGrants) {
	c.enter(now)
	for _, o := range gs.Adopted {
		for _, g := range c.gone {
			if g.partition != o.Partition || g.epoch != o.Epoch {
				continue
			}
			for _, b := range c.bounds {
				if n := g.bounds[b]; n > 0 && gs.Mine(b.key()) {
					b.gone -= n
					delete(g.bounds, b)
					b.update(c)
				}
			}
		}
	}
	c.dropGone(func(g *goneTries) bool { return len(g.bounds) == 0 })
	for _, g := range gs.Grants {
		if b := c.boundOf(g.Tenant, g.Function); b != nil {
			b.lease.Grant(gs.AskedAt, g)
			b.update(c)
		}
	}
}

func (b *bound) key() shares.Key {
	k := shares.Key{Tenant: b.tenant.name}
	if b.function != nil {
		k.Function = b.function.name
	}
	return k
}
