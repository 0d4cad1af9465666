package engine

import (
	"slices"
	"time"

	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
)

// A claim carries its outcome when that is small; a large one follows by itself.
const (
	claimOutcomeMax  = 32 << 10
	claimOutcomesMax = 512 << 10
)

// Message returns what is to be sent in a session now, nil when that is nothing or the message before
// is not Sent yet. Call it whenever something has happened. What it returns counts as sent at now. The
// engine uses no part of it that changes. The node must read the messages in this order, and in each
// the hello first, then acks, then the rest.
func (e *Engine) Message(now time.Time, id SessionID) *headracev1.SessionRequest {
	s := e.session(id)
	if s == nil || s.sending {
		return nil
	}
	m := new(headracev1.SessionRequest)
	said := false
	if s.helloDue {
		s.helloDue = false
		m.Hello = e.hello(now, s)
		said = true
	}
	if !now.Before(s.beatAt) {
		m.Beat = s.nextBeat(now)
		said = true
	}
	if n := min(len(s.acks), acksMax); n > 0 {
		m.Acks, s.acks = s.acks[:n:n], s.acks[n:]
		said = true
	}
	e.reports(now, s, m)
	if len(s.logs) > 0 {
		m.Logs = append(m.Logs, s.logs...)
		s.logs = nil
	}
	if len(m.Logs)+len(m.Progress) > 0 {
		said = true // outcomes in the next message: a try's last words come before its end
	} else if s.takeOutcomes(now, m, e.cfg.MessageBytes) {
		said = true
	}
	e.allot()
	if s.credit > s.saidCr {
		m.Credit, s.saidCr = s.credit, s.credit
		said = true
	}
	if s.asked > s.saidAsk {
		m.Recall, s.saidAsk = s.asked, s.asked
		said = true
	}
	if m.Draining = e.draining; e.draining && !s.saidDr {
		s.saidDr = true
		said = true
	}
	if !said {
		return nil
	}
	s.sending = true
	return m
}

// takeOutcomes moves outcomes into m until their results exceed most bytes.
func (s *session) takeOutcomes(now time.Time, m *headracev1.SessionRequest, most int) bool {
	n := 0
	for size := 0; n < len(s.outcomes) && size < most; n++ {
		t := s.outcomes[n]
		if t.state != ended { // committed or void meanwhile
			continue
		}
		m.Outcomes = append(m.Outcomes, t.outcome)
		t.sentAt = now
		size += outcomeBytes(t.outcome)
	}
	clear(s.outcomes[:n])
	if s.outcomes = s.outcomes[n:]; len(s.outcomes) == 0 {
		s.outcomes = nil
	}
	return len(m.Outcomes) > 0
}

// outcomeBytes is the size of an outcome on the wire, roughly.
func outcomeBytes(o *headracev1.Outcome) int {
	return 64 + len(o.Result) + len(o.Message) + len(o.Checkpoint)
}

// Recycle takes back the memory of a message that was encoded and that nobody uses any more. Calling it
// is optional.
func (e *Engine) Recycle(m *headracev1.SessionRequest) {
	const most = 4096
	for _, a := range m.Acks[:min(len(m.Acks), max(0, most-len(e.freeAcks)))] {
		a.TaskId, a.Token, a.Refusal, a.Epoch = nil, nil, 0, 0
		e.freeAcks = append(e.freeAcks, a)
	}
}

// hello states what is held. Claims for partitions that another open session answers for are left out.
func (e *Engine) hello(now time.Time, s *session) *headracev1.Hello {
	h := &headracev1.Hello{
		Labels:     e.cfg.Labels,
		ExecutorId: e.cfg.ExecutorID[:],
		Name:       e.cfg.Name,
		Functions:  e.cfg.Functions,
		Slots:      uint32(e.cfg.Slots),
		Epochs:     e.epochs(),
		SdkVersion: e.cfg.SDKVersion,
		Protocol:   headracev1.Protocol,
	}
	s.told = make(map[uint32]uint64, len(h.Epochs))
	for _, pe := range h.Epochs {
		s.told[pe.Partition] = pe.Epoch
	}
	var claimed []*Try
	for _, t := range e.tries {
		if owner := t.part.live(); !t.void && (owner == nil || owner == s) {
			claimed = append(claimed, t)
		}
	}
	slices.SortFunc(claimed, func(a, b *Try) int { return a.ID.Compare(b.ID) })
	s.outcomes = nil // said again by this hello
	room := claimOutcomesMax
	for _, t := range claimed {
		c := &headracev1.Claim{
			TaskId: t.Push.TaskId, Token: t.Push.Token, Tenant: t.Push.Tenant, Function: t.Push.Function,
			RunMicros: max(0, now.Sub(t.StartedAt).Microseconds()),
		}
		h.Claims = append(h.Claims, c)
		if t.state != ended {
			continue
		}
		t.home = s
		c.RunMicros = t.outcome.RunMicros
		if t.report != nil && len(t.report.lines) > 0 {
			s.logs = append(s.logs, e.takeLines(t))
		} else if size := outcomeBytes(t.outcome); size <= claimOutcomeMax && size <= room {
			room -= size
			c.Outcome = t.outcome
			t.sentAt = now
			continue
		}
		t.sentAt = time.Time{}
		s.outcomes = append(s.outcomes, t)
	}
	return h
}
