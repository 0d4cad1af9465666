package core

import (
	"time"

	"github.com/headrace/headrace/internal/mutant"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// schedule pushes what may run, a slice at most. Pools take turns, so that a busy one does not keep
// the others waiting.
func (c *Core) schedule() {
	if c.draining || len(c.pools) == 0 {
		return
	}
	idle := 0
	for n := 0; idle < len(c.pools); {
		if n == c.cfg.Slice {
			c.more = true
			return
		}
		p := c.pools[c.poolTurn%len(c.pools)]
		c.poolTurn++
		if !c.step(p) {
			idle++
			continue
		}
		idle = 0
		n++
	}
}

// step does one thing for a pool: pushes a task, or finds out why the next one may not run. It
// reports false when there is nothing to do.
func (c *Core) step(p *pool) bool {
	if p.suspects.len() > 0 && c.stepSuspect(p) {
		return true
	}
	if s := p.reserved; s != nil && p.suspects.len() == 0 && !s.alone() { // it was cancelled, or expired
		p.reserved = nil
		p.ready(s)
	}
	if len(p.keeps) > 0 && c.stepKeeps(p) {
		return true
	}
	if len(p.sessions) == 0 {
		return false
	}
	seat := p.turn()
	if seat == nil {
		return false
	}
	s, at := c.sessionFor(p, seat)
	if s == nil {
		return c.keep(p, seat)
	}
	c.try(seat, at, s)
	return true
}

// try pushes the next task of a flow whose turn it is (seat) to a session (of the pool of at), or finds out why it may
// not run.
func (c *Core) try(seat, at *seat, s *session) {
	p := seat.pool
	l := seat.flow.next()
	it := l.first().it
	c.inHand(l.part.id, it.t.ID)
	if c.expired(it) {
		return
	}
	if !c.mayPush(l.part) {
		c.park(l)
		return
	}
	b, ok := s.beatFor(l.part, c.now, c.cfg.ShelfLife)
	if !ok {
		c.awaitBeat(s, l)
		return
	}
	p.took(seat)
	c.unwindow(it)
	if it.t.Suspect {
		it.place = atSuspect
		p.suspects.push(it)
		c.timers.set(&it.timer, expiry(it.t))
		return
	}
	c.push(it, s, b, at)
}

// mayPush reports whether the owner may push for a partition now: the epoch is trusted, and its
// database does not stall.
func (c *Core) mayPush(p *partition) bool {
	if p.releasing || p.db.slow(c.now) || c.heldFor != "" {
		return false
	}
	return c.now.Before(c.trust) || c.now.Before(p.checkedAt.Add(trustByCheck))
}

// park takes a lane out of the order until the next check of its partition's epoch, and asks for that.
func (c *Core) park(l *lane) {
	l.parked = true
	l.part.parked = append(l.part.parked, l)
	l.part.db.readWanted = true
	c.updateLane(l)
}

func (c *Core) unpark(p *partition) {
	if len(p.parked) == 0 || p.releasing {
		return
	}
	for _, l := range p.parked {
		l.parked = false
		c.updateLane(l)
	}
	clear(p.parked)
	p.parked = p.parked[:0]
}

// awaitBeat is called when no beat of a session is both young and checked. If it is young, the check
// is missing; else the session waits for its next beat.
func (c *Core) awaitBeat(s *session, l *lane) {
	if n := len(s.beats); n > 0 && c.now.Sub(s.beats[n-1].at) <= beatAge(c.cfg.ShelfLife) {
		c.park(l)
		return
	}
	s.held = true
	s.pool.ready(s)
}

// stepSuspect runs the first suspect of a pool once an executor has nothing else to do: one session is
// kept free of pushes until it is empty.
func (c *Core) stepSuspect(p *pool) bool {
	it := *p.suspects.peek()
	if it.place != atSuspect || it.part.dead {
		p.suspects.pop()
		return true
	}
	if !it.lane.flow.function.takes(c) {
		if s := p.reserved; s != nil && !s.alone() {
			p.reserved = nil
			p.ready(s)
		}
		return false // an end, or a timer, brings us back
	}
	if p.reserved == nil {
		if len(p.sessions) == 0 {
			return false
		}
		s := p.sessions[0]
		for _, o := range p.sessions {
			if o.executor.flying.n < s.executor.flying.n {
				s = o
			}
		}
		p.reserved = s
		p.unready(s)
	}
	s := p.reserved
	if s.executor.flying.n > 0 || !s.mayPush() || s.free() < int64(s.slotsOf(it.lane.flow.function)) {
		return false
	}
	c.inHand(it.part.id, it.t.ID)
	if c.expired(it) {
		return true
	}
	b, ok := s.beatFor(it.part, c.now, c.cfg.ShelfLife)
	if !ok || !c.mayPush(it.part) {
		it.part.db.readWanted = true
		return false // the check, or the next beat, comes within a second
	}
	p.suspects.pop()
	c.timers.unset(&it.timer)
	var st *seat
	for _, x := range it.lane.flow.seats {
		if x.pool == p {
			st = x
		}
	}
	c.push(it, s, b, st)
	it.try.alone = true
	p.reserved = s
	p.unready(s)
	return true
}

// alone reports whether the session's executor runs a suspect.
func (s *session) alone() bool {
	it := s.executor.flying.first
	return it != nil && it.try.alone
}

// mint makes the token of the next push (R1).
func (c *Core) mint(it *item) task.Token {
	p := it.part
	p.push++
	if mutant.On("token-attempt") {
		return task.Token{Epoch: p.epoch, Push: uint64(it.t.Attempt)}
	}
	return task.Token{Epoch: p.epoch, Push: p.push}
}

// push starts a try of a task that has left its window. An exclusive one is announced first.
func (c *Core) push(it *item, s *session, b beat, st *seat) {
	f := it.lane.flow.function
	y := c.newTry()
	y.token, y.executor, y.session, y.attempt = c.mint(it), s.executor, s, it.t.Attempt
	y.chosenAt, y.claimed = c.now, true
	y.timeout = it.t.Timeout
	if d := f.policy.Timeout; d > 0 && (y.timeout == 0 || d < y.timeout) {
		y.timeout = d
	}
	c.boundStarts(f)
	if it.t.TriesTotal == 0 {
		f.budget.first(c)
	}
	it.lane.flow.pace.starts(c.now)
	y.slots = s.slotsOf(f)
	c.beginTry(it, y)
	if st != nil {
		y.seat, y.charge = st, f.cost*int64(y.slots)
		st.pool.charge(st, y.charge)
	}
	it.exclusive = f.policy.Exclusive && !mutant.On("exclusive-unannounced")
	c.storePolicy(it.lane)
	if it.exclusive {
		s.promised += y.slots
		t := it.edit()
		t.Record = &store.Record{Token: y.token, Executor: s.executor.id, StartedAt: c.now, Announced: true}
		y.record = recording
		c.change(it, store.Update, t, thenPush)
	}
	if !it.exclusive || mutant.On("exclusive-early") {
		c.send(it, s, b)
	}
	s.pool.ready(s)
}

// announcedPush sends an exclusive push once its record is on disk, if that is still possible.
func (c *Core) announcedPush(it *item, r *store.Record) {
	y := it.try
	if y == nil || r == nil || y.token != r.Token || y.pushed && mutant.On("exclusive-early") {
		return
	}
	s := y.session
	y.record = announced
	if s != nil {
		s.promised -= y.slots
	}
	if s == nil || it.t.Cancel != nil || it.lane.flow.paused != nil || y.down.until.After(c.now) || c.draining || !c.mayPush(it.part) || s.draining {
		c.giveUp(it)
		return
	}
	if end := expiry(it.t); !end.IsZero() && !end.After(c.now) { // the record took its time
		c.giveUp(it)
		return
	}
	b, ok := s.beatFor(it.part, c.now, c.cfg.ShelfLife)
	if !ok {
		c.giveUp(it)
		return
	}
	c.send(it, s, b)
	s.pool.ready(s)
}

// pushBox is a push with what it points to, so that it is one allocation.
type pushBox struct {
	push  headracev1.Push
	token headracev1.Token
	id    task.ID
}

// send puts the push of a try into its session's message.
func (c *Core) send(it *item, s *session, b beat) {
	y, t := it.try, it.t
	c.handles(t)
	y.pushed, y.pushedAt, y.beatAt = true, c.now, b.at
	s.executor.answeredAt = c.now
	box := &pushBox{id: t.ID}
	box.token.Epoch, box.token.Push = y.token.Epoch, y.token.Push
	p := &box.push
	p.TaskId, p.Token = box.id[:], &box.token
	p.Tenant, p.Function = t.Tenant, t.Function
	p.Attempt = uint32(t.Attempt)
	timeout := y.timeout
	if !t.Deadline.IsZero() {
		if d := max(t.Deadline.Sub(c.now), time.Millisecond); timeout == 0 || d < timeout {
			timeout = d
		}
	}
	p.TimeoutMicros = timeout.Microseconds()
	p.Payload, p.ContentType = t.Payload, t.ContentType
	p.PayloadSize = uint32(t.PayloadSize)
	p.Fetch = t.Payload == nil && t.PayloadSize > 0
	p.Beat = b.number
	if at := expiry(t); !at.IsZero() && at.Sub(b.at) < c.cfg.ShelfLife {
		// No start after its expiry, however long the push is on its way: the beat was sent before it was read.
		p.ShelfMicros = max(at.Sub(b.at).Microseconds(), 1)
	}
	policy := &it.lane.flow.function.policy
	p.OrphanMicros = policy.OrphanTimeout.Microseconds()
	p.CancelGraceMicros = policy.CancelGrace.Microseconds()
	p.Checkpoint = t.Checkpoint
	p.TraceParent, p.TraceState = t.TraceParent, t.TraceState
	p.Labels, p.ClientId = t.Labels, t.ClientID
	m := c.message(s)
	m.Pushes = append(m.Pushes, p)
	y.bytes = len(t.Payload)
	if y.slots > 1 {
		p.Slots = uint32(y.slots)
	}
	s.sent += uint64(y.slots)
	s.demand = max(s.demand-y.slots, 0)
	s.unacked += y.bytes
	s.flight.push(unconfirmed{it, y.token, c.now})
	if s.flight.len() == 1 {
		s.arm(c)
	}
}

// newTry returns an empty try.
func (c *Core) newTry() *try {
	if n := len(c.tries); n > 0 {
		y := c.tries[n-1]
		c.tries = c.tries[:n-1]
		return y
	}
	return &try{}
}

// beginTry makes y the task's try in flight.
func (c *Core) beginTry(it *item, y *try) {
	it.try = y
	it.place = atFlight
	it.gaveUpStart = false
	c.timers.unset(&it.timer)
	f := it.lane.flow.function
	f.tenant.flying.add(it)
	y.executor.flying.add(it)
	it.lane.flow.running++
	if y.begunAt = y.ackedAt; y.begunAt.IsZero() {
		y.begunAt = c.now
	}
	y.executor.begunMillis += y.begunAt.UnixMilli()
	if y.down = f.down; y.down.lim != nil || y.down.managed() {
		c.limitBegins(f, y)
	}
	f.flying++
	c.boundsChanged(f, true)
	it.part.stat.Running++
	if y.unsure = y.ackedAt.IsZero() && y.claimed; y.unsure {
		it.part.unsure++
	}
}

// endTry takes the try out of flight. What it used is known now.
func (c *Core) endTry(it *item) {
	y := it.try
	c.notYoung(it)
	if len(c.pauseWaits) > 0 {
		c.noStart(it)
	}
	if y.permit != nil {
		c.limitEnds(y, false, 0)
	}
	it.try = nil
	it.place = atCommit
	c.timers.unset(&it.timer)
	f := it.lane.flow.function
	f.tenant.flying.remove(it)
	f.flying--
	c.boundsChanged(f, false)
	y.executor.flying.remove(it)
	y.executor.begunMillis -= y.begunAt.UnixMilli()
	it.lane.flow.running--
	it.part.stat.Running--
	if y.unsure {
		it.part.unsure--
	}
	if y.record == recording && !y.pushed && y.session != nil {
		y.session.promised -= y.slots
	}
	c.landed(y)
	if y.adopted && y.record != started && y.record != announced {
		it.part.adopting--
	}
	if s := y.session; s != nil {
		if p := s.pool; p.reserved == s && y.alone {
			p.reserved = nil
		}
		s.pool.ready(s)
	}
	c.logBytes -= y.logBytes
	c.forgetExecutor(y.executor)
	if st := y.seat; st != nil {
		cost := int64(minCost)
		if !y.ackedAt.IsZero() {
			cost = min(max(c.now.Sub(y.ackedAt).Milliseconds(), minCost), maxCost)
			f.cost = (7*f.cost + cost + 4) / 8
		}
		if d := cost*int64(max(y.slots, 1)) - y.charge; d != 0 {
			st.pool.correct(st, d)
		}
	}
	*y = try{}
	c.tries = append(c.tries, y)
}

// landed says that a push's payload is not on its way any more.
func (c *Core) landed(y *try) {
	if y.session != nil {
		y.session.unacked -= y.bytes
	}
	y.bytes = 0
}
