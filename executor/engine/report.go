package engine

import (
	"fmt"
	"slices"
	"time"

	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

// Ended says that the handler of a try has returned. Its slot is free. Further calls do nothing.
func (e *Engine) Ended(now time.Time, t *Try, r Result) {
	if t.state != running {
		return
	}
	e.running--
	e.used -= t.slots
	e.timers.remove(t)
	if t.void {
		e.finish(now, t)
		return
	}
	o := &headracev1.Outcome{
		TaskId: t.Push.TaskId, Token: t.Push.Token,
		RunMicros: max(0, now.Sub(t.StartedAt).Microseconds()),
	}
	class, message := t.settle(now, r)
	o.ErrorClass, o.Message = headracev1.ErrorClass(class), message
	if r.Class == task.ClassNone {
		o.Result, o.ResultContentType = r.Body, r.ContentType
	} else {
		o.RetryAfterMicros = min(max(r.RetryAfter, 0), task.MaxRetryAfter).Microseconds()
		o.Downstream = r.Downstream
	}
	t.state, t.outcome = ended, o
	if e.ended == 0 {
		e.resendAt = now.Add(resendEvery)
	}
	e.ended++
	s := t.part.live()
	if t.report != nil {
		o.Checkpoint = t.report.checkpoint
		if s != nil && len(t.report.lines) > 0 {
			s.logs = append(s.logs, e.takeLines(t))
		}
	}
	e.kept += outcomeBytes(o)
	if t.home = s; s != nil {
		s.outcomes = append(s.outcomes, t)
	}
}

// Progress notes what a handler says of its work. The newest is sent, at most once a second.
func (e *Engine) Progress(_ time.Time, t *Try, fraction float64, message string) {
	if t.state != running || t.void {
		return
	}
	r := e.reportOf(t)
	r.progress, r.fraction, r.message = true, fraction, message
}

// Checkpoint notes what the next attempt shall get, at most task.MaxCheckpoint bytes. It travels with
// progress and, the newest one, with the outcome. The engine keeps b.
func (e *Engine) Checkpoint(_ time.Time, t *Try, b []byte) {
	if t.state != running || t.void {
		return
	}
	r := e.reportOf(t)
	r.checked, r.checkpoint = true, b
}

// Log adds a line of a handler. What can't be sent in time is bounded to task.MaxLogBytes a try, and
// Config.LogBytes over all; the oldest lines of the try are dropped, and their number is told.
func (e *Engine) Log(_ time.Time, t *Try, line *headracev1.LogEntry) {
	if t.state != running || t.void {
		return
	}
	r := e.reportOf(t)
	size := lineBytes(line)
	for len(r.lines) > 0 && (r.lineBytes+size > task.MaxLogBytes || e.logBytes+size > e.cfg.LogBytes) {
		n := lineBytes(r.lines[0])
		r.lines = r.lines[1:]
		r.lineBytes -= n
		e.logBytes -= n
		r.dropped++
	}
	if size > task.MaxLogBytes || e.logBytes+size > e.cfg.LogBytes {
		r.dropped++
		return
	}
	r.lines = append(r.lines, line)
	r.lineBytes += size
	e.logBytes += size
}

func lineBytes(l *headracev1.LogEntry) int { return 24 + len(l.Message) }

// reportOf returns the report of a running try and lists it for the next look.
func (e *Engine) reportOf(t *Try) *report {
	if t.report == nil {
		t.report = new(report)
	}
	if !t.report.listed {
		t.report.listed = true
		e.reporting = append(e.reporting, t)
	}
	return t.report
}

// takeLines empties the waiting lines of t into a message.
func (e *Engine) takeLines(t *Try) *headracev1.LogReport {
	r := t.report
	if r.dropped > 0 {
		first := &headracev1.LogEntry{Level: "warn", Message: fmt.Sprintf("%d earlier lines were dropped by the executor", r.dropped)}
		if len(r.lines) > 0 {
			first.UnixMicros = r.lines[0].UnixMicros
		}
		r.lines = append([]*headracev1.LogEntry{first}, r.lines...)
	}
	m := &headracev1.LogReport{TaskId: t.Push.TaskId, Token: t.Push.Token, Entries: r.lines}
	e.logBytes -= r.lineBytes
	r.lines, r.lineBytes, r.dropped = nil, 0, 0
	return m
}

// reports moves what running tries have said into m, as far as it is due.
func (e *Engine) reports(now time.Time, s *session, m *headracev1.SessionRequest) {
	if len(e.reporting) == 0 || now.Before(s.reportAt) {
		return
	}
	size := 0
	left := e.reporting[:0]
	for _, t := range e.reporting {
		r := t.report
		if t.state != running || t.void {
			if r != nil {
				r.listed = false
			}
			continue
		}
		if t.part.live() == s && size < e.cfg.MessageBytes {
			if (r.progress || r.checked) && !now.Before(r.progressAt) {
				p := &headracev1.ProgressReport{TaskId: t.Push.TaskId, Token: t.Push.Token, Fraction: r.fraction, Message: r.message}
				if r.checked {
					p.Checkpoint = slices.Clip(r.checkpoint)
					if p.Checkpoint == nil {
						p.Checkpoint = []byte{} // present: the checkpoint was cleared
					}
				}
				size += 64 + len(p.Message) + len(p.Checkpoint)
				r.progress, r.checked = false, false
				r.progressAt = now.Add(reportEvery)
				m.Progress = append(m.Progress, p)
			}
			if len(r.lines) > 0 && !now.Before(r.logAt) {
				size += r.lineBytes
				r.logAt = now.Add(logEvery)
				m.Logs = append(m.Logs, e.takeLines(t))
			}
		}
		if r.progress || r.checked || len(r.lines) > 0 {
			left = append(left, t)
		} else {
			r.listed = false
		}
	}
	clear(e.reporting[len(left):])
	e.reporting = left
	s.reportAt = now.Add(logEvery / 4) // a look costs O(reporting)
}

// void drops a try whose token is not current any more: an outcome that waits is forgotten, a running
// handler is cancelled and its outcome will be.
func (e *Engine) void(now time.Time, t *Try) {
	switch t.state {
	case running:
		if !t.void {
			t.void = true
			e.cancel(now, t, CauseStale, "")
		}
	case ended:
		e.refused(now, t)
	}
}

// cancel has the handler's context cancelled. The first cause stays, but for a try that turns out to be void.
func (e *Engine) cancel(now time.Time, t *Try, cause Cause, reason string) {
	if t.state != running || t.cause != CauseNone && cause != CauseStale {
		return
	}
	if t.cause == CauseNone {
		e.timers.set(t, now.Add(t.grace))
	}
	t.cause = cause
	e.fx.Cancel = append(e.fx.Cancel, Cancel{t, cause, reason})
	e.dirty = true
}

// refused forgets an outcome that the owner did not accept, and tells the shell.
func (e *Engine) refused(now time.Time, t *Try) {
	push, data := t.Push, t.Data
	e.finish(now, t)
	t.Push, t.Data = push, data // the shell may look at them once more
	e.fx.Void = append(e.fx.Void, t)
	e.dirty = true
}

// finish forgets all of a try but its token, that for a while.
func (e *Engine) finish(now time.Time, t *Try) {
	if t.state == ended {
		e.ended--
		e.kept -= outcomeBytes(t.outcome)
	}
	if t.report != nil {
		e.logBytes -= t.report.lineBytes
	}
	t.state = done
	t.outcome, t.report, t.Push, t.Data = nil, nil, nil, nil // its payload may be large
	delete(e.tries, t.ID)
	if !t.late(now) {
		e.past.add(t)
	}
}

// late reports whether a second copy of t's push would be refused as stale.
func (t *Try) late(now time.Time) bool { return now.Sub(t.beatAt) > ShelfLife }
