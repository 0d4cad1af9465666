package engine

import (
	"cmp"
	"slices"
	"time"

	"github.com/headrace/headrace/internal/mutant"
	"github.com/headrace/headrace/task"
)

// Next returns when Tick, and then Message, is wanted at the latest; zero: not before the next call.
func (e *Engine) Next() time.Time {
	var at time.Time
	sooner := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	for _, s := range e.sessions {
		if s.sending {
			continue // Sent comes first
		}
		sooner(s.beatAt)
		if len(e.reporting) > 0 {
			sooner(s.reportAt)
		}
	}
	if len(e.timers) > 0 {
		sooner(e.timers[0].wakeAt)
	}
	if e.running > 0 {
		sooner(e.orphanAt)
	}
	if e.ended > 0 && len(e.sessions) > 0 {
		sooner(e.resendAt)
	}
	if e.draining && !e.over {
		if e.running > 0 && !e.cancelAt.IsZero() {
			sooner(e.cancelAt)
		}
		sooner(e.endAt)
	}
	return at
}

// Tick does what has come due by now: timeouts, orphan timers, overdue cancels, the drain.
func (e *Engine) Tick(now time.Time) {
	e.past.forget(now)
	for len(e.timers) > 0 && !e.timers[0].wakeAt.After(now) {
		t := e.timers[0]
		e.timers.remove(t)
		if t.cause == CauseNone {
			e.cancel(now, t, CauseTimeout, "")
		} else {
			e.fx.Overdue = append(e.fx.Overdue, t)
			e.dirty = true
		}
	}
	if e.running > 0 && !now.Before(e.orphanAt) {
		e.orphanAt = now.Add(BeatEvery)
		e.orphans(now)
	}
	if e.ended > 0 && !now.Before(e.resendAt) {
		e.resendAt = now.Add(resendEvery / 4)
		e.resend(now)
	}
	e.drainTick(now)
}

// resend queues outcomes again that nobody has answered for a while. The owner answers what it gets;
// this is for one that lost it with the rest of its memory and has not asked since.
func (e *Engine) resend(now time.Time) {
	var again []*Try
	for _, t := range e.tries {
		if t.state == ended && t.home == t.part.live() && t.home != nil && !t.sentAt.IsZero() && now.Sub(t.sentAt) >= resendEvery {
			again = append(again, t)
		}
	}
	slices.SortFunc(again, func(a, b *Try) int { return a.ID.Compare(b.ID) })
	for _, t := range again {
		t.sentAt = time.Time{}
		t.home.outcomes = append(t.home.outcomes, t)
	}
}

// adopt queues in a session what ended while its partitions had no owner here: after the hello that claimed
// it as running, and before the welcome.
func (e *Engine) adopt(s *session) {
	if e.ended == 0 || s.helloDue { // a hello says everything
		return
	}
	var waiting []*Try
	for _, t := range e.tries {
		if t.state == ended && t.home != s && t.part.live() == s {
			waiting = append(waiting, t)
		}
	}
	slices.SortFunc(waiting, func(a, b *Try) int { return a.ID.Compare(b.ID) })
	for _, t := range waiting {
		t.home, t.sentAt = s, time.Time{}
		if t.report != nil && len(t.report.lines) > 0 {
			s.logs = append(s.logs, e.takeLines(t))
		}
		s.outcomes = append(s.outcomes, t)
	}
}

// orphans cancels each running try whose owner has not answered for too long.
func (e *Engine) orphans(now time.Time) {
	// The shortest orphan timeout that a policy may have is 5 s: while every partition was answered
	// within four fifths of that, no try can be an orphan.
	const never = 4 * time.Second
	quiet := false
	for _, p := range e.parts {
		quiet = quiet || now.Sub(p.answeredAt) >= never
	}
	if !quiet {
		return
	}
	var orphans []*Try
	for _, t := range e.tries {
		if t.state == running && t.cause == CauseNone && !now.Before(t.orphanedAt()) {
			orphans = append(orphans, t)
		}
	}
	slices.SortFunc(orphans, func(a, b *Try) int {
		return cmp.Or(a.ID.Compare(b.ID), a.Token.Compare(b.Token))
	})
	for _, t := range orphans {
		e.cancel(now, t, CauseOrphaned, "")
	}
}

// orphanedAt is when t ends by itself unless an owner answers: 0.8 of its orphan timeout after the
// newest answered beat was sent, or the one that its push named. The owner waits the whole timeout from
// its own side of that beat (R7). A timeout above the default counts once the record is on disk (R9).
func (t *Try) orphanedAt() time.Time {
	from, o := t.beatAt, t.orphan
	if t.part.answeredAt.After(from) {
		from = t.part.answeredAt
	}
	if !t.recorded && !mutant.On("long-orphan-unrecorded") {
		o = min(o, task.DefaultOrphanTimeout)
	}
	return from.Add(o / 5 * 4)
}

// drainTick cancels what still runs when the drain window is over.
func (e *Engine) drainTick(now time.Time) {
	e.over = e.draining && !now.Before(e.endAt)
	if !e.draining || e.cancelAt.IsZero() || now.Before(e.cancelAt) {
		return
	}
	var left []*Try
	for _, t := range e.tries {
		if t.state == running {
			left = append(left, t)
		}
	}
	slices.SortFunc(left, func(a, b *Try) int { return a.ID.Compare(b.ID) })
	for _, t := range left {
		e.cancel(now, t, CauseDrained, "")
	}
	e.cancelAt = time.Time{}
}

// timerHeap is a binary heap of tries by wakeAt; a try knows its place. Only tries with a timeout and
// cancelled ones are in it.
type timerHeap []*Try

func (h *timerHeap) set(t *Try, at time.Time) {
	h.remove(t)
	t.wakeAt = at
	*h = append(*h, t)
	t.heapAt = len(*h)
	h.up(len(*h) - 1)
}

func (h *timerHeap) remove(t *Try) {
	if t.heapAt == 0 {
		return
	}
	i, last := t.heapAt-1, len(*h)-1
	h.swap(i, last)
	(*h)[last] = nil
	*h = (*h)[:last]
	t.heapAt = 0
	if i < last {
		h.down(i)
		h.up(i)
	}
}

func (h timerHeap) swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heapAt, h[j].heapAt = i+1, j+1
}

func (h timerHeap) less(i, j int) bool {
	if c := h[i].wakeAt.Compare(h[j].wakeAt); c != 0 {
		return c < 0
	}
	return h[i].ID.Compare(h[j].ID) < 0 // equal times: in a fixed order
}

func (h timerHeap) up(i int) {
	for i > 0 && h.less(i, (i-1)/2) {
		h.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
}

func (h timerHeap) down(i int) {
	for {
		c := 2*i + 1
		if c+1 < len(h) && h.less(c+1, c) {
			c++
		}
		if c >= len(h) || !h.less(c, i) {
			return
		}
		h.swap(i, c)
		i = c
	}
}
