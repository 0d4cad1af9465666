package core

import (
	"slices"

	"github.com/headrace/headrace/task"
)

// A function may cost several slots of its executor, and prefer executors with certain labels. (What labels it requires
// the executors know: who lacks one does not declare it.) Where a session of the pool has enough credit, the one that is
// preferred and has most gets the task. Where none has, one is kept for the flow whose turn it is: it gets nothing else
// until it has as much free. So a costly task waits for the tries of one executor, and others go on beside it; only
// when a session is kept for each of as many flows as there are sessions, the pool waits.

// allBands are all bands as bits.
const allBands = 1<<task.Bands - 1

// keep is a session that collects slots for a flow.
type keep struct {
	seat    *seat
	session *session
}

// slotsOf is how many slots a try of the function takes there: what its executor has said.
func (s *session) slotsOf(f *function) int {
	if n := s.costs[f]; n > 1 {
		return n
	}
	return 1
}

// sessionFor chooses the session that gets the next task of a flow, and the flow's seat in that session's pool. It is of
// another pool than p if only there are executors free that the function prefers. Nil: no session of p has enough free.
func (c *Core) sessionFor(p *pool, st *seat) (*session, *seat) {
	f := st.flow.function
	if p.weighted == 0 && f.prefers == nil {
		return p.sessions[0], st
	}
	s := p.best(f)
	if f.prefers == nil || s != nil && task.Matches(s.labels, f.prefers) {
		return s, st
	}
	for _, o := range st.flow.seats {
		if o.pool == p || o.kept {
			continue
		}
		if t := o.pool.best(f); t != nil && task.Matches(t.labels, f.prefers) {
			return t, o
		}
	}
	return s, st
}

// best returns the session with enough free for a function that it prefers, or else the one with most free.
func (p *pool) best(f *function) (best *session) {
	preferred := false
	for _, s := range p.sessions {
		if s.free() < int64(s.slotsOf(f)) {
			continue
		}
		match := f.prefers != nil && task.Matches(s.labels, f.prefers)
		if best == nil || match && !preferred || match == preferred && p.before(s, best) {
			best, preferred = s, match
		}
	}
	return best
}

// keep keeps a session for a flow that finds none with enough free. It reports false if there is none to be kept.
func (c *Core) keep(p *pool, st *seat) bool {
	var best *session
	for _, s := range p.sessions {
		if best == nil || p.before(s, best) {
			best = s
		}
	}
	if best == nil {
		return false
	}
	p.leave(st)
	st.kept, best.kept = true, true
	p.unready(best)
	p.keeps = append(p.keeps, keep{st, best})
	return true
}

// stepKeeps pushes for one of the flows that a session is kept for, or ends the keeping. It reports whether it did.
func (c *Core) stepKeeps(p *pool) bool {
	for i, k := range p.keeps {
		st, s := k.seat, k.session
		f := st.flow.function
		other, at := (*session)(nil), st
		if len(p.sessions) > 0 {
			other, at = c.sessionFor(p, st)
		}
		switch {
		case !st.flow.may(c) || st.bench.kept || s.draining || other != nil:
			// It goes back to its place in the ring, and is next there.
			c.endKeep(p, i)
			if other != nil && st.flow.may(c) && !st.bench.kept {
				c.try(st, at, other)
			}
			return true
		case s.mayPush() && s.free() >= int64(s.slotsOf(f)):
			c.endKeep(p, i)
			c.try(st, st, s)
			return true
		}
	}
	return false
}

func (c *Core) endKeep(p *pool, i int) {
	k := p.keeps[i]
	p.keeps = slices.Delete(p.keeps, i, i+1)
	k.seat.kept, k.session.kept = false, false
	p.ready(k.session)
	k.seat.flow.update(c)
}

// keptFor returns what the function costs that a session is kept for; 0: it is not.
func (p *pool) keptFor(s *session) int {
	if !s.kept {
		return 0
	}
	for _, k := range p.keeps {
		if k.session == s {
			return s.slotsOf(k.seat.flow.function)
		}
	}
	return 0
}

// keptSlots is how many slots an executor is kept for the flow to collect; 0: none is.
func (fl *flow) keptSlots() int {
	for _, st := range fl.seats {
		for _, k := range st.pool.keeps {
			if k.seat == st {
				return k.session.slotsOf(fl.function)
			}
		}
	}
	return 0
}
