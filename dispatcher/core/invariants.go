package core

import (
	"fmt"
)

// Check looks whether the state is consistent. Tests and the simulation call it after each step; it
// costs O(everything).
func (c *Core) Check() error {
	bytes, paused := 0, 0
	running, deciding := map[*executor]int{}, map[*executor]int{}
	for _, p := range c.order {
		if p.dead || c.parts[p.id] != p {
			return fmt.Errorf("partition %d is in the order and not held", p.id)
		}
		var flying, waiting, unsure, adopting, windowed int
		for seq, it := range p.items {
			if it.t.ID.Seq() != seq || it.part != p {
				return fmt.Errorf("%v lies under number %d of partition %d", it.t.ID, seq, p.id)
			}
			bytes += it.size
			if it.deciding != nil {
				deciding[it.deciding]++
			}
			if (it.try != nil) != (it.place == atFlight) {
				return fmt.Errorf("%v is at %d, its try %v", it.t.ID, it.place, it.try)
			}
			switch it.place {
			case atWindow:
				windowed++
				if it.pend > 0 {
					return fmt.Errorf("%v is in its window with %d changes on their way", it.t.ID, it.pend)
				}
			case atDue:
				waiting++
			case atNowhere:
				return fmt.Errorf("%v has left memory and is there", it.t.ID)
			case atFlight:
				y := it.try
				flying++
				running[y.executor]++
				if y.unsure {
					unsure++
				}
				if y.adopted && y.record != started && y.record != announced {
					adopting++
				}
				if y.session != nil && (y.session.closed || y.session.executor != y.executor) {
					return fmt.Errorf("%v runs in a session that is closed or another's", it.t.ID)
				}
			}
		}
		if flying != int(p.stat.Running) || waiting != p.due.count || unsure != p.unsure || adopting != p.adopting {
			return fmt.Errorf("partition %d counts %d running, %d waiting, %d unsure, %d adopting; there are %d, %d, %d, %d",
				p.id, p.stat.Running, p.due.count, p.unsure, p.adopting, flying, waiting, unsure, adopting)
		}
		if p.stat.Backlog < 0 || p.stat.Scheduled < 0 {
			return fmt.Errorf("partition %d counts %d ready and %d due", p.id, p.stat.Backlog, p.stat.Scheduled)
		}
		ready := int64(0)
		for t, u := range p.usage {
			// What a claim ends while a takeover counts the flows may not have been counted yet.
			if ready += u.ready; u.ready < 0 && len(p.takeover.flows) == 0 {
				return fmt.Errorf("partition %d counts %d ready of %s", p.id, u.ready, t.name)
			}
		}
		if !p.takeover.reading && ready != p.stat.Backlog {
			return fmt.Errorf("partition %d counts %d ready, of all tenants %d", p.id, p.stat.Backlog, ready)
		}
		overdue := map[*lane]int64{}
		for _, it := range p.items {
			if it.overdue {
				overdue[it.lane]++
			}
		}
		for _, l := range p.lanes {
			if ready -= l.ready; l.overdue != overdue[l] {
				return fmt.Errorf("%v counts %d tasks whose time has come, there are %d", l.flow, l.overdue, overdue[l])
			}
		}
		if ready != 0 {
			return fmt.Errorf("partition %d counts %d ready more of tenants than of flows", p.id, ready)
		}
		for f, l := range p.lanes {
			size := 0
			if l.flow.paused != nil {
				paused += l.memory()
			}
			for i := l.head; i < len(l.window); i++ {
				s := l.window[i]
				if s.it.place != atWindow || s.it.lane != l || s.it.t.Key() != s.key || p.items[s.it.t.ID.Seq()] != s.it {
					return fmt.Errorf("%v: slot %d holds %v, which is at %d", f, i, s.it.t.ID, s.it.place)
				}
				if i > l.head && l.window[i-1].key.Compare(s.key) >= 0 {
					return fmt.Errorf("%v: slot %d is out of order", f, i)
				}
				size += len(s.it.t.Payload)
				windowed--
			}
			if size != l.bytes {
				return fmt.Errorf("%v counts %d bytes, there are %d", f, l.bytes, size)
			}
			if l.open != (l.len() > 0 && !l.parked) {
				return fmt.Errorf("%v: open is %v with %d tasks, parked %v", f, l.open, l.len(), l.parked)
			}
		}
		if windowed != 0 {
			return fmt.Errorf("partition %d: %d tasks are at a window and in none", p.id, windowed)
		}
	}
	if paused != c.pausedBytes {
		return fmt.Errorf("windows of paused flows count %d bytes, there are %d", c.pausedBytes, paused)
	}
	if bytes != c.bytes {
		return fmt.Errorf("the node counts %d bytes, there are %d", c.bytes, bytes)
	}
	for id, x := range c.executors {
		if x.flying.n != running[x] {
			return fmt.Errorf("executor %x counts %d tries, there are %d", id, x.flying.n, running[x])
		}
		if x.deciding != deciding[x] {
			return fmt.Errorf("executor %x counts %d decisions, there are %d", id, x.deciding, deciding[x])
		}
	}
	for _, s := range c.opened {
		promised, unacked := 0, 0
		for it := s.executor.flying.first; it != nil; it = it.onExecutor.next {
			if y := it.try; y.session == s {
				unacked += y.bytes
				if !y.pushed && y.record == recording {
					promised += it.try.slots
				}
			}
		}
		if promised != s.promised || unacked != s.unacked {
			return fmt.Errorf("session %d counts %d promised and %d bytes, there are %d and %d", s.id, s.promised, s.unacked, promised, unacked)
		}
		if (s.index >= 0) != (s.mayPush() && s.pool.reserved != s && !s.kept) {
			return fmt.Errorf("session %d: in the heap %v, may push %v", s.id, s.index >= 0, s.mayPush())
		}
	}
	for _, p := range c.pools {
		kept := 0
		for _, s := range p.all {
			if s.kept {
				kept++
			}
		}
		for _, k := range p.keeps {
			if !k.session.kept || !k.seat.kept || k.session.pool != p || k.seat.next != nil {
				return fmt.Errorf("pool %s keeps session %d wrongly", p.name, k.session.id)
			}
		}
		if kept != len(p.keeps) {
			return fmt.Errorf("pool %s keeps %d sessions, %d are marked", p.name, len(p.keeps), kept)
		}
	}
	limited := 0
	broke := map[*function]int{}
	for _, p := range c.order {
		for _, it := range p.items {
			if it.place == atBudget {
				broke[it.lane.flow.function]++
			}
		}
	}
	for name, t := range c.tenants {
		permits, flying := map[*limiter]int{}, map[*function]int{}
		for it := t.flying.first; it != nil; it = it.flying.next {
			y := it.try
			flying[it.lane.flow.function]++
			if y.permit != y.down.lim && y.down.lim != nil {
				return fmt.Errorf("%v holds no permit of %s", it.t.ID, y.down.name)
			}
			permits[y.permit]++
		}
		for _, d := range t.downs {
			if d.lim != nil {
				limited++
				if n := d.lim.gate.InFlight(); n != permits[d.lim] {
					return fmt.Errorf("downstream %s of %s counts %d in use, there are %d", d.name, name, n, permits[d.lim])
				}
			}
		}
		if b := t.bound; b != nil && b.timer.index == 0 && b.shut != (b.rule.Concurrency > 0 && (b.running() >= b.allowed(c) || !c.cfg.Shared && c.counting())) && !c.cfg.Shared {
			return fmt.Errorf("the bound of %s is shut: %v, with %d running", name, b.shut, b.running())
		}
		for _, s := range t.benches {
			if shut := t.bound != nil && t.bound.shut; s.kept != shut || s.entry.Queued() != (s.mask != 0 && !shut) {
				return fmt.Errorf("a bench of %s: kept %v, in the order %v; its bound is shut: %v", name, s.kept, s.entry.Queued(), shut)
			}
		}
		for _, f := range t.functions {
			if flying[f] != f.flying {
				return fmt.Errorf("%s/%s counts %d in flight, there are %d", name, f.name, f.flying, flying[f])
			}
			if f.budget.n != broke[f] || f.budget.n > 0 && f.budget.timer.index == 0 {
				return fmt.Errorf("%s/%s counts %d retries without budget, there are %d; timer %d", name, f.name, f.budget.n, broke[f], f.budget.timer.index)
			}
			for _, fl := range f.flows {
				open := 0
				for _, l := range fl.lanes {
					if l.open {
						open++
					}
				}
				if open != fl.open {
					return fmt.Errorf("%s/%s counts %d open lanes, there are %d", name, f.name, fl.open, open)
				}
				for _, st := range fl.seats {
					if st.kept {
						continue
					}
					if (st.next != nil) != fl.may(c) && !f.down.timer.dueBy(c.now.UnixNano()) {
						return fmt.Errorf("%s/%s/%v: in the order %v, may run %v", name, f.name, fl.band, st.next != nil, fl.may(c))
					}
				}
			}
		}
	}
	if limited != c.limited {
		return fmt.Errorf("the node counts %d limits, there are %d", c.limited, limited)
	}
	return nil
}

// dueBy reports whether a timer's time has come and it was not called yet.
func (t *timer) dueBy(now int64) bool { return t.index != 0 && t.at <= now }
