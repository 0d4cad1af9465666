package core

import (
	"hash/fnv"
	"time"

	"github.com/headrace/headrace/internal/mutant"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// maxThrottleDelay bounds the back-off of a throttled task that was given no time.
const maxThrottleDelay = time.Minute

// outcome takes the end of a try. Only the token in flight counts (R1); any other is answered as
// stale, once it is sure that it is.
func (c *Core) outcome(s *session, o *headracev1.Outcome) {
	if len(o.TaskId) != len(task.ID{}) {
		return
	}
	id, token := task.ID(o.TaskId), tokenOf(o.Token)
	p := c.parts[id.Partition()]
	if p == nil || p.closing {
		return // whoever owns it next will hear it again
	}
	it := c.item(id)
	if it == nil || it.try == nil || it.try.token != token && !mutant.On("match-task") {
		c.claim(s, p, claim{id: id, token: token, outcome: o, run: o.RunMicros, tenant: ""})
		return
	}
	y := it.try
	if y.executor != s.executor && !mutant.On("match-task") {
		return // a token in flight belongs to one executor
	}
	if y.session != s {
		c.reach(it, s)
	}
	if y.ackedAt.IsZero() {
		c.confirm(it, c.now) // an outcome says that it started
	}
	c.decide(it, o)
}

// decide settles what follows from an outcome and queues it. The executor hears that it is committed
// when it is.
func (c *Core) decide(it *item, o *headracev1.Outcome) {
	y := it.try
	class := task.Class(o.ErrorClass)
	if class >= task.ClassCount {
		class = task.Retryable // of a newer executor
	}
	t := it.edit()
	c.endRow(it, t, class, o.Message)
	if o.Checkpoint != nil && len(o.Checkpoint) <= task.MaxCheckpoint {
		t.Checkpoint = o.Checkpoint
	}
	it.answer, it.answerToken = y.executor, y.token
	policy := &it.lane.flow.function.policy
	after := time.Duration(min(max(o.RetryAfterMicros, 0), task.MaxRetryAfter.Microseconds())) * time.Microsecond
	alone := y.alone
	c.took(it, class)
	switch class {
	case task.ClassNone:
		c.limitDone(y)
	case task.Throttled:
		c.limitThrottled(it.lane.flow.function.tenant, y, o.Downstream, after)
	}
	c.endTry(it)
	switch {
	case class == task.ClassNone:
		t.Result, t.ResultType = o.Result, o.ResultContentType
		c.finish(it, t, task.Succeeded)
	case t.Cancel != nil || class == task.CancelledClass:
		c.finishCancelled(it, t)
	case !t.Deadline.IsZero() && !t.Deadline.After(c.now):
		t.ErrClass, t.ErrMessage = task.ExpiredClass, "deadline passed"
		c.finish(it, t, task.Expired)
	case class == task.Throttled:
		t.Throttles++
		if after == 0 {
			back := task.Backoff{Base: time.Second, Factor: 2, Max: maxThrottleDelay}
			after = back.Delay(t.Throttles, c.random())
		}
		c.again(it, t, after)
	case class == task.Snoozed:
		t.Snoozes++
		c.again(it, t, after)
	case class == task.Drained:
		c.requeueRow(it, t)
	case class == task.ExecutorLost:
		c.lossRow(it, t, alone)
	case class == task.NonRetryable || t.Attempt >= c.maxAttempts(it, t):
		c.finish(it, t, task.Failed)
	default: // Retryable, Timeout
		t.Attempt++
		if back := policy.Backoff.Delay(t.Attempt-1, c.random()); after < back && (after == 0 || class == task.Timeout) {
			after = back
		}
		c.again(it, t, after)
	}
}

func (c *Core) maxAttempts(it *item, t *store.Task) int {
	if t.MaxAttempts > 0 {
		return t.MaxAttempts
	}
	return it.lane.flow.function.policy.MaxAttempts
}

// endRow writes the end of the try in flight into the row: its token is decided, its record is gone (R2).
func (c *Core) endRow(it *item, t *store.Task, class task.Class, message string) {
	y := it.try
	t.LastToken = y.token
	t.Record = nil
	c.keepListed(it, y.executor)
	if mutant.On("record-late") && !y.recordAt.IsZero() && !y.ackedAt.IsZero() { // it was to be written behind
		t.Record = &store.Record{Token: y.token, Executor: y.executor.id, StartedAt: y.ackedAt}
	}
	if t.StartedAt.IsZero() && !y.ackedAt.IsZero() {
		t.StartedAt = y.ackedAt
	}
	if y.checkpoint != nil {
		t.Checkpoint = y.checkpoint
	}
	if y.ackedAt.IsZero() {
		return // it never started: no try to speak of
	}
	e := store.Try{
		Attempt: y.attempt, Token: y.token, Executor: y.executor.name,
		ChosenAt: y.chosenAt, PushedAt: y.pushedAt, AckedAt: y.ackedAt, EndedAt: c.now, CommittedAt: c.now,
		Class: class, LogTruncated: y.logsCut,
	}
	if class != task.ClassNone {
		e.Message = task.CutError(message)
		if class != task.Drained && class != task.Snoozed { // no failures
			t.ErrClass, t.ErrMessage, t.Fingerprint = class, e.Message, fingerprint(class, e.Message)
		}
	}
	for _, l := range y.logs {
		e.LogLines = append(e.LogLines, LogText(l))
	}
	t.Tries = appendTry(t.Tries, e)
	t.TriesTotal++
}

// appendTry returns a new list: the old one belongs to the row that the store has.
func appendTry(tries []store.Try, e store.Try) []store.Try {
	if n := len(tries) - (store.MaxTries - 1); n > 0 {
		tries = tries[n:]
	}
	return append(append(make([]store.Try, 0, len(tries)+1), tries...), e)
}

// fingerprint is the same for errors that differ in numbers only.
func fingerprint(class task.Class, message string) uint64 {
	h := fnv.New64a()
	folded := make([]byte, 0, 64)
	folded = append(folded, byte(class))
	digit := false
	for i := range len(message) {
		b := message[i]
		if b >= '0' && b <= '9' {
			if !digit {
				folded = append(folded, '0')
			}
			digit = true
			continue
		}
		digit = false
		folded = append(folded, b)
	}
	h.Write(folded)
	return h.Sum64()
}

// again lets a task wait before its next try. The wait counts from now, when the report came: a
// handler that ran for long is not retried at once (B048).
func (c *Core) again(it *item, t *store.Task, after time.Duration) {
	t.State = task.Retrying
	t.DueAt = c.now.Add(after + time.Microsecond - 1).Truncate(time.Microsecond) // as the store keeps it, never earlier
	if !t.Deadline.IsZero() && t.DueAt.After(t.Deadline) {
		t.DueAt = t.Deadline // it wakes up to expire
	}
	c.change(it, store.Update, t, thenPlaced)
}

// requeueRow gives a task back to its flow, with its place in it.
func (c *Core) requeueRow(it *item, t *store.Task) {
	if t.State != task.Queued {
		t.State = task.Queued
	}
	c.change(it, store.Update, t, thenPlaced)
}

// finish ends a task.
func (c *Core) finish(it *item, t *store.Task, state task.State) {
	it.place = atCommit
	c.timers.unset(&it.timer)
	t.State = state
	t.FinishedAt = c.now
	t.MaxAttempts = c.maxAttempts(it, t) // as it was, whatever the function says later
	t.Record = nil
	c.change(it, store.Finish, t, thenEnded)
}

// decided is called when a decision about a try, or a promotion, is on disk.
func (c *Core) decided(it *item) {
	c.tellCommitted(it)
	if it.pend > 0 || it.place != atCommit {
		return
	}
	c.notify(it)
	if len(it.waiting) > 0 && c.cancelDecided(it) {
		return
	}
	c.settle(it)
}

// ended is called when a task's end is on disk.
func (c *Core) ended(it *item) {
	it.part.stat.Bytes -= int64(it.t.PayloadSize)
	it.lane.use.bytes = max(it.lane.use.bytes-int64(it.t.PayloadSize), 0)
	it.lane.flow.function.tenant.ended++
	c.tellCommitted(it)
	for _, w := range it.waiting {
		outcome := headracev1.CancelOutcome_CANCEL_OUTCOME_ALREADY_FINISHED
		if it.t.State == task.Cancelled {
			outcome = headracev1.CancelOutcome_CANCEL_OUTCOME_CANCELLED
		}
		c.answerCancel(w, CancelAnswer{Outcome: outcome, Task: it.disk})
	}
	it.waiting = nil
	c.leaveMemory(it)
	c.notify(it)
}

// committedBox is the answer to an outcome in one allocation.
type committedBox struct {
	committed headracev1.Committed
	token     headracev1.Token
	id        task.ID
}

// tellCommitted tells the executor that its outcome is on disk, in whatever session it has now. If it
// has none, it asks when it comes back.
func (c *Core) tellCommitted(it *item) {
	if len(it.late) > 0 && it.pend == 0 {
		c.answerLate(it)
	}
	x := it.answer
	if x == nil {
		return
	}
	it.answer = nil
	if x.session != nil {
		c.sendCommitted(x.session, it.t.ID, it.answerToken, false)
	}
}

func (c *Core) sendCommitted(s *session, id task.ID, token task.Token, stale bool) {
	box := &committedBox{id: id}
	box.token.Epoch, box.token.Push = token.Epoch, token.Push
	box.committed.TaskId, box.committed.Token, box.committed.Stale = box.id[:], &box.token, stale
	m := c.message(s)
	m.Committed = append(m.Committed, &box.committed)
}

// recordLater lets a confirmed try be recorded once it has run for a second.
func (c *Core) recordLater(it *item) {
	it.try.recordAt = c.now.Add(c.cfg.RecordAfter)
	c.young.add(it)
}

func (c *Core) notYoung(it *item) {
	if !it.try.recordAt.IsZero() {
		it.try.recordAt = time.Time{}
		c.young.remove(it)
	}
}

// recordBehind records the tries that have run for a second (R9, R17).
func (c *Core) recordBehind() {
	for n := 0; c.young.first != nil && n < c.cfg.Slice; n++ {
		it := c.young.first
		if it.try.recordAt.After(c.now) {
			return
		}
		c.inHand(it.part.id, it.t.ID)
		c.notYoung(it)
		c.limitTook(it.try)
		c.record(it)
	}
}

// record writes that the try in flight runs. Only a token above the last decided one, and not below
// the recorded one, is written (R3).
func (c *Core) record(it *item) {
	y := it.try
	if y.record == started || y.record == recording || it.part.closing || !y.pushed {
		return
	}
	if !mutant.On("record-ignores") && (!y.token.After(it.t.LastToken) || it.t.Record != nil && it.t.Record.Token.After(y.token)) {
		return
	}
	t := it.edit()
	t.Record = &store.Record{Token: y.token, Executor: y.executor.id, StartedAt: y.ackedAt}
	y.record = recording
	c.notYoung(it)
	it.part.recording++
	c.change(it, store.Update, t, thenRecorded)
}

// recorded is called when the record of a running try is on disk.
func (c *Core) recorded(it *item, r *store.Record) {
	p := it.part
	p.recording--
	if y := it.try; y != nil && r != nil && y.token == r.Token && it.place == atFlight {
		if y.adopted && y.record == recording {
			p.adopting--
		}
		y.record = started
		c.tellRecorded(it)
	}
	c.stepTakeover(p)
	c.stepRelease(p)
}

func (c *Core) tellRecorded(it *item) {
	if s := it.try.session; s != nil {
		m := c.message(s)
		id, token := it.t.ID, it.try.token
		m.Recorded = append(m.Recorded, &headracev1.Recorded{TaskId: id[:], Token: wireToken(token)})
	}
}

func wireToken(t task.Token) *headracev1.Token {
	return &headracev1.Token{Epoch: t.Epoch, Push: t.Push}
}
