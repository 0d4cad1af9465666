package engine

import (
	"math"
	"time"

	"github.com/headrace/headrace/internal/mutant"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

// token reads a token of the wire.
func token(t *headracev1.Token) task.Token {
	return task.Token{Epoch: t.GetEpoch(), Push: t.GetPush()}
}

// held returns the try with that id and token, unless it is done.
func (e *Engine) held(id []byte, tok *headracev1.Token) *Try {
	if len(id) != len(task.ID{}) {
		return nil
	}
	t := e.tries[task.ID(id)]
	if t == nil || t.Token != token(tok) {
		return nil
	}
	return t
}

// push takes a push or refuses it; either way it is acknowledged.
func (e *Engine) push(now time.Time, s *session, p *headracev1.Push) {
	refusal, epoch := e.admit(now, s, p)
	a := &headracev1.Ack{}
	if n := len(e.freeAcks); n > 0 {
		a, e.freeAcks = e.freeAcks[n-1], e.freeAcks[:n-1]
	}
	a.TaskId, a.Token, a.Refusal, a.Epoch = p.TaskId, p.Token, refusal, epoch
	s.acks = append(s.acks, a)
}

func (e *Engine) admit(now time.Time, s *session, p *headracev1.Push) (headracev1.Refusal, uint64) {
	const taken = headracev1.Refusal_REFUSAL_UNSPECIFIED
	id, err := task.IDFromBytes(p.TaskId)
	tok := token(p.Token)
	if err != nil || tok.IsZero() {
		s.pushed(1)
		return headracev1.Refusal_REFUSAL_FUNCTION, 0 // no such task could run here
	}
	part := e.partition(id.Partition())
	var old *Try
	var over task.Token // of one that is done
	if id.Seq() <= part.newest {
		if old = e.tries[id]; old == nil {
			over = e.past.tokens[id]
		}
	}
	if old != nil && old.Token == tok || over == tok && !mutant.On("duplicate-starts") {
		return taken, 0 // a second copy; it is no push of its own
	}
	slots := int(min(max(p.Slots, 1), task.MaxSlots))
	s.pushed(slots)
	if !part.command(s, tok.Epoch) {
		return headracev1.Refusal_REFUSAL_EPOCH, part.epoch
	}
	if over.After(tok) {
		return headracev1.Refusal_REFUSAL_STALE, 0
	}
	if old != nil {
		if old.Token.After(tok) {
			return headracev1.Refusal_REFUSAL_STALE, 0
		}
		// The owner has decided the older try (R2), so that one is void. While its handler runs the
		// task can't start here a second time.
		if old.state == running {
			e.void(now, old)
			return headracev1.Refusal_REFUSAL_BUSY, 0
		}
		e.void(now, old)
	}
	beatAt, ok := s.sentAt(p.Beat)
	if mutant.On("no-session-binding") {
		beatAt, ok = now, true
	}
	shelf := min(ShelfLife, micros(p.ShelfMicros, ShelfLife))
	if !ok || now.Sub(beatAt) > shelf && !mutant.On("no-shelf-life") {
		return headracev1.Refusal_REFUSAL_STALE, 0
	}
	f, ok := e.functions[functionKey{p.Tenant, p.Function}]
	if !ok {
		return headracev1.Refusal_REFUSAL_FUNCTION, 0
	}
	if e.draining || e.used+slots > e.cfg.Slots || s.received+s.returned > s.credit {
		return headracev1.Refusal_REFUSAL_BUSY, 0
	}
	t := &Try{
		ID: id, Token: tok, Push: p, Session: s.id, Function: f, StartedAt: now,
		part: part, beatAt: beatAt, slots: slots,
		orphan: micros(p.OrphanMicros, task.DefaultOrphanTimeout),
		grace:  micros(p.CancelGraceMicros, task.DefaultCancelGrace),
	}
	if d := micros(p.TimeoutMicros, 0); d > 0 {
		t.TimeoutAt = now.Add(d)
		e.timers.set(t, t.TimeoutAt.Add(timeoutSlack))
	}
	if mutant.On("orphan-from-receipt") {
		t.beatAt = now
	}
	e.tries[id] = t
	if !over.IsZero() {
		delete(e.past.tokens, id)
	}
	part.newest = max(part.newest, id.Seq())
	if e.running == 0 {
		e.orphanAt = now.Add(BeatEvery)
	}
	e.running++
	e.used += slots
	e.fx.Start = append(e.fx.Start, t)
	e.dirty = true
	return taken, 0
}

// micros reads a duration of the wire; what is too long for a duration is as good as the longest.
func micros(v int64, def time.Duration) time.Duration {
	switch {
	case v <= 0:
		return def
	case v > math.MaxInt64/1000:
		return math.MaxInt64
	}
	return time.Duration(v) * time.Microsecond
}

// committed ends the wait of an outcome. For a try that still runs it means that the owner has decided
// without it. It is obeyed whatever the owner's epoch: it tells what is on disk (R5).
func (e *Engine) committed(now time.Time, c *headracev1.Committed) {
	t := e.held(c.TaskId, c.Token)
	switch {
	case t == nil:
	case t.state == running || c.Stale:
		e.void(now, t)
	default:
		e.finish(now, t)
	}
}

// claimAnswered obeys only the owner of the newest epoch (R15).
func (e *Engine) claimAnswered(now time.Time, s *session, c *headracev1.ClaimAnswer) {
	t := e.held(c.TaskId, c.Token)
	if t == nil || !t.part.command(s, c.Epoch) && !mutant.On("old-void-obeyed") {
		return
	}
	if !c.Adopted {
		e.void(now, t)
	}
}

func (e *Engine) cancelTry(now time.Time, s *session, c *headracev1.CancelTry) {
	t := e.held(c.TaskId, c.Token)
	if t == nil || !t.part.command(s, c.Epoch) {
		return
	}
	switch c.Cause {
	case headracev1.CancelCause_CANCEL_CAUSE_STALE:
		e.void(now, t)
	case headracev1.CancelCause_CANCEL_CAUSE_TIMEOUT:
		e.cancel(now, t, CauseTimeout, c.Reason)
	default:
		e.cancel(now, t, CauseCancelled, c.Reason)
	}
}

// pushed counts a push that was read, of so many slots.
func (s *session) pushed(slots int) {
	s.received += uint64(slots)
	s.demand = max(s.demand-slots, 0)
}
