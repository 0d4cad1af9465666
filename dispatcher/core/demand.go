package core

import "google.golang.org/protobuf/proto"

// An executor with sessions to several nodes lends its slots to those that have something to run: it must be
// told. A node whose sessions have credit to spare says nothing; one that runs dry says at once how much
// waits, at most demandMax, and again when that has doubled. That it is less rides with the next answer to a
// beat, so that a queue that is sometimes empty costs a few words a second.

// demandMax is the most demand that is told: more would not change what an executor does.
const demandMax = 256

// tellDemand tells the sessions of pools that ran dry, or did.
func (c *Core) tellDemand() {
	if c.draining {
		return
	}
	for _, p := range c.pools {
		dry := len(p.sessions) == 0 && (p.mask != 0 || p.suspects.len() > 0 || len(p.keeps) > 0)
		if !dry && !p.demanded && len(p.keeps) == 0 {
			continue
		}
		p.demanded = false
		waiting := -1
		for _, s := range p.all {
			if need := p.keptFor(s); need != s.unit || s.demand < need { // in pieces of that much, or no more
				s.demand, s.unit = max(s.demand, need), need
				m := c.message(s)
				m.Demand, m.DemandUnit = proto.Uint32(uint32(s.demand)), uint32(need)
			}
			if s.unit > 0 {
				p.demanded = true
				continue
			}
			if rise := dry && s.demand < demandMax/2; rise || s.demand > 0 && s.message != nil && s.message.BeatAnswer != nil {
				if waiting < 0 {
					waiting = p.waiting(demandMax)
				}
				share := (waiting + len(p.all) - 1) / len(p.all)
				if !dry {
					share = 0
				}
				if rise && share > 2*s.demand && s.free() <= 0 || share < s.demand {
					s.demand = share
					c.message(s).Demand = proto.Uint32(uint32(share))
				}
			}
			p.demanded = p.demanded || s.demand > 0
		}
	}
}

// waiting counts what could be pushed now, up to most.
func (p *pool) waiting(most int) int {
	n := p.suspects.len()
	for _, b := range p.benches { // the order does not matter: the sum is cut at most
		if b.kept {
			continue
		}
		for _, first := range b.rings {
			for s := first; s != nil && n < most; {
				n += s.flow.ready() * p.all[0].slotsOf(s.flow.function)
				if s = s.next; s == first {
					break
				}
			}
		}
		if n >= most {
			return most
		}
	}
	return n
}

// ready counts what is in the windows of the flow's lanes that may run.
func (f *flow) ready() int {
	n := 0
	for _, l := range f.lanes {
		if l.open && !l.parked {
			n += len(l.window) - l.head
		}
	}
	return n
}
