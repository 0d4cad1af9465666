package sim

import (
	"slices"
	"time"

	"github.com/headrace/headrace/executor/engine"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

type (
	engineTry    = engine.Try
	engineCancel = engine.Cancel
)

const (
	causeStale    = engine.CauseStale
	causeOrphaned = engine.CauseOrphaned
)

// applied judges what a part has changed on disk.
func (o *oracle) applied(part *store.Part, res store.PartResult) {
	o.activeAt = o.w.now
	if part.Floor > o.floors[part.Partition] {
		o.floored(part)
	}
	for i := range part.Changes {
		c := &part.Changes[i]
		if c.Op == store.PutFunc || res.Existing[i] != nil || res.Busy[i] {
			continue
		}
		row := *c.Task
		if c.Op == store.Insert {
			o.inserted(part, &row)
			continue
		}
		t := o.tasks[row.ID]
		if t == nil {
			o.w.fail("change of %s, which is not stored", short(row.ID))
			return
		}
		o.changed(part, t, &row)
		t.row = &row
	}
}

// floored judges the end of a takeover's grace: before its time only once every process that holds a try of an
// earlier owner has answered, so that it is adopted or recorded (R12, R14). What an earlier floor made void is
// nobody's any more.
func (o *oracle) floored(part *store.Part) {
	p, before := part.Partition, o.floors[part.Partition]
	o.floors[p] = part.Floor
	es := o.raises[p]
	at := slices.IndexFunc(es, func(ra raise) bool { return ra.epoch == part.Floor })
	if at < 0 || es[at].orderly || o.w.now-es[at].at >= o.w.plan.least(1500*time.Millisecond) {
		return
	}
	o.early++
	for _, t := range o.order {
		if t.row.ID.Partition() != p || t.row.State.Terminal() {
			continue
		}
		for _, r := range t.runs {
			said := o.saidEpoch[key{r.x, r.life, p}]
			if before <= r.token.Epoch && r.token.Epoch < part.Floor && r.held() && r.token.After(t.row.LastToken) && !r.recorded() && said < part.Floor {
				o.w.fail("R12: the grace of epoch %d ends after %v, and %s, which holds %s %s, knows epoch %d only", part.Floor, o.w.now-es[at].at,
					r.x.name, short(t.row.ID), tokenText(r.token), said)
			}
		}
	}
}

// inserted finds the item of the request that a new row answers for. One item gives one row (P3).
func (o *oracle) inserted(part *store.Part, row *store.Task) {
	w := o.w
	r := w.clients.byID[row.RequestID]
	if r == nil {
		w.fail("P3: %s is stored for request %q, which nobody made", short(row.ID), row.RequestID)
		return
	}
	i := item(r, part, row)
	if i < 0 {
		w.fail("P3: %s is stored, and its commit does not remember request %s", short(row.ID), r.id)
		return
	}
	s := r.specs[i]
	if s.insert != nil {
		w.fail("P3: request %s item %d is stored as %s and as %s", r.id, i, short(s.insert.row.ID), short(row.ID))
		return
	}
	if row.Tenant != r.tenant || row.Function != s.function.name || !equal(row.Payload, s.payload) || row.ClientID != s.clientID {
		w.fail("P3: request %s item %d is stored as something else", r.id, i)
	}
	t := &truth{spec: s, row: row}
	s.insert = t
	o.tasks[row.ID] = t
	o.order = append(o.order, t)
}

// item finds the item of a request that a row is: by what its commit remembers (ADR 0014), or by the
// client's own id, which needs no memory. -1: none.
func item(r *request, part *store.Part, row *store.Task) int {
	if row.ClientID != "" {
		return slices.IndexFunc(r.specs, func(s *spec) bool { return s.clientID == row.ClientID })
	}
	for _, q := range part.Requests {
		if q.ID == r.id {
			return slices.Index(q.IDs, row.ID)
		}
	}
	return -1
}

// changed judges a new state of a row against the old one and against what handlers did.
func (o *oracle) changed(part *store.Part, t *truth, row *store.Task) {
	w, old := o.w, t.row
	name := short(row.ID)
	if old.State.Terminal() {
		w.fail("P1: %s was %v and becomes %v", name, old.State, row.State)
		return
	}
	if old.LastToken.After(row.LastToken) {
		w.fail("R2: %s: %s is decided after %s", name, tokenText(row.LastToken), tokenText(old.LastToken))
		return
	}
	if r := row.Record; r != nil && !r.Token.After(row.LastToken) {
		w.fail("R3: %s: record of %s, and %s is decided", name, tokenText(r.Token), tokenText(row.LastToken))
	}
	if r := row.Record; r != nil && old.Record != nil && old.Record.Token.After(r.Token) {
		w.fail("R3: %s: record of %s over one of %s", name, tokenText(r.Token), tokenText(old.Record.Token))
	}
	decided := row.LastToken != old.LastToken
	var by *run // the run that the decision is about
	for _, r := range t.runs {
		if decided && r.token == row.LastToken {
			by = r
		}
	}
	spent := row.Attempt - old.Attempt
	ended := row.State == task.Failed && (row.ErrClass == task.Retryable || row.ErrClass == task.Timeout || row.ErrClass == task.NonRetryable)
	if ended {
		spent++
	}
	if spent < 0 || spent > 1 {
		w.fail("P5: %s goes from attempt %d to %d", name, old.Attempt, row.Attempt)
	}
	if spent == 1 {
		o.spent(t, row, by, name)
	}
	lost := row.Losses - old.Losses
	if lost < 0 && !decided || lost > 1 {
		w.fail("P5: %s goes from %d losses to %d", name, old.Losses, row.Losses)
	}
	if lost == 1 {
		o.lostTry(part, t, row, by, name)
	}
	if decided && (spent == 1 || row.State == task.Succeeded) && t.newest.After(row.LastToken) {
		w.fail("P2: %s: the outcome of %s is decided and %s has started", name, tokenText(row.LastToken), tokenText(t.newest))
	}
	if decided && spent == 0 && lost == 0 && row.State != task.Succeeded && by != nil && by.alive() {
		o.gaveUp(part, t, row, by, name)
	}
	switch row.State {
	case task.Succeeded:
		if by == nil || !by.reported || by.class != task.ClassNone || !equal(by.result, row.Result) {
			w.fail("P2: %s succeeds with %s, and no such handler reported it", name, tokenText(row.LastToken))
		}
	case task.Failed:
		o.deadLetter(t, row, by, name)
	case task.Cancelled:
		if !t.cancelAsked {
			w.fail("%s is cancelled and nobody asked for it", name)
		}
		o.asQueued(part, t, row, name)
	case task.Expired:
		by := w.time().Add(time.Millisecond + w.plan.skew())
		ttl := row.StartTTL > 0 && by.After(row.FirstDueAt.Add(row.StartTTL))
		deadline := !row.Deadline.IsZero() && by.After(row.Deadline)
		if !ttl && !deadline {
			w.fail("%s expires before its time", name)
		}
	}
	if row.Cancel != nil && old.Cancel == nil && !t.cancelAsked {
		w.fail("%s has a cancel and nobody asked for it", name)
	}
}

// asQueued judges a task that ends as cancelled while an executor holds a try of it that nothing is decided
// about: only a default try that was not recorded may be passed over, once the grace is over (R16).
func (o *oracle) asQueued(part *store.Part, t *truth, row *store.Task, name string) {
	for _, r := range t.runs {
		if !r.held() || !r.token.After(row.LastToken) || r.token != t.newest {
			continue
		}
		passed := false
		for _, ra := range r.unsure {
			passed = passed || ra.epoch <= part.Epoch && !r.adopted[ra.epoch] && o.w.now >= ra.at+o.w.plan.least(1500*time.Millisecond)
		}
		if !passed {
			o.w.fail("R16: %s is cancelled as if it were queued, and %s holds %s", name, r.x.name, tokenText(r.token))
		}
	}
}

// spent judges that an attempt is spent by a failure or timeout of a handler, once each (P5).
func (o *oracle) spent(t *truth, row *store.Task, by *run, name string) {
	w := o.w
	switch {
	case by == nil:
		w.fail("P5: %s spends an attempt, and %s has not started", name, tokenText(row.LastToken))
	case by.reported && (by.class == task.Retryable || by.class == task.NonRetryable || by.class == task.Timeout):
	case by.timeout > 0 && w.now-by.startedAt >= w.plan.least(by.timeout): // by the owner's own clock (R18)
	default:
		w.fail("P5: %s spends an attempt for %s, whose handler did not fail", name, tokenText(by.token))
	}
}

// lostTry judges that a loss is one (R7, R17): of a try that started, whose process is dead or was not
// answered for the orphan timeout.
func (o *oracle) lostTry(part *store.Part, t *truth, row *store.Task, by *run, name string) {
	w := o.w
	t.losses++
	if by == nil {
		w.fail("P5: %s counts a loss, and %s has not started", name, tokenText(row.LastToken))
		return
	}
	if by.dead || by.reported && by.class == task.ExecutorLost {
		return
	}
	if by.reported && by.ended {
		// Its outcome may be on its way, or lost: then the owner must have waited all the same.
		w.log("", "note", "%s %s ended and is counted lost", name, tokenText(by.token))
	}
	if quiet, ok := o.silent(part, t, row, by); !ok {
		w.fail("R7: %s %s counts as lost %v after its owner's last answer, and its process is alive", name, tokenText(by.token), quiet)
	}
}

// silent reports whether the process of a run was not answered for the orphan timeout: now, or some time
// ago, since a decision takes its time to reach the disk and the executor may come back meanwhile.
func (o *oracle) silent(part *store.Part, t *truth, row *store.Task, by *run) (quiet time.Duration, ok bool) {
	least := o.w.plan.least(min(t.orphan(), task.DefaultOrphanTimeout)) - 10*time.Millisecond
	k := key{by.x, by.life, row.ID.Partition()}
	for _, s := range o.silences[k] {
		if s.to > by.startedAt && s.to-s.from >= least {
			return 0, true
		}
	}
	since := o.answeredAt[k]
	for _, ra := range o.raises[row.ID.Partition()] {
		if ra.epoch <= part.Epoch && ra.epoch > by.token.Epoch && !ra.orderly { // who released says for how long it was silent
			since = max(since, ra.at)
		}
	}
	quiet = o.w.now - since
	return quiet, quiet >= least
}

// gaveUp judges a decision that is neither outcome nor loss about a run that goes on: only of a try that
// was never confirmed to its owner, and that has had the time to end by itself (R17).
func (o *oracle) gaveUp(part *store.Part, t *truth, row *store.Task, by *run, name string) {
	if row.State.Terminal() || by.token.Epoch < part.Epoch {
		return
	}
	if _, ok := o.silent(part, t, row, by); ok {
		return
	}
	o.w.fail("R2: %s: %s is given up and its handler runs", name, tokenText(by.token))
}

// deadLetter judges the reason of a failure.
func (o *oracle) deadLetter(t *truth, row *store.Task, by *run, name string) {
	w := o.w
	most := row.MaxAttempts
	if most == 0 {
		most = t.spec.function.policy.WithDefaults().MaxAttempts
	}
	switch row.ErrClass {
	case task.Retryable, task.Timeout:
		if row.Attempt < most {
			w.fail("%s fails for good at attempt %d of %d", name, row.Attempt, most)
		}
	case task.NonRetryable:
		if by == nil || by.class != task.NonRetryable {
			w.fail("%s fails as non-retryable and no handler said so", name)
		}
	case task.ExecutorLost:
		if row.Losses < task.MaxLosses {
			w.fail("%s fails as lost after %d losses", name, row.Losses)
		}
	default:
		w.fail("%s fails with class %q", name, row.ErrClass)
	}
}

// unfinished names a task that is not at its end, or "".
func (o *oracle) unfinished() string {
	for _, t := range o.order {
		if !t.row.State.Terminal() {
			return sprint("%s is %v at attempt %d, due %v", short(t.row.ID), t.row.State, t.row.Attempt, t.row.DueAt.Sub(epoch))
		}
		for _, r := range t.runs {
			if r.alive() {
				return sprint("%s %s still runs", short(t.row.ID), tokenText(r.token))
			}
		}
	}
	return ""
}

// end judges the whole: requests and tasks match one to one, and the store agrees with what was seen.
func (o *oracle) end() {
	w := o.w
	for _, r := range w.clients.requests {
		for i, it := range r.items {
			if it.Err != nil {
				continue
			}
			row, err := w.store.Get(background, it.ID)
			if err != nil || !row.State.Terminal() {
				w.fail("P1: request %s item %d was acknowledged as %s: %v", r.id, i, short(it.ID), err)
				return
			}
		}
	}
	for _, t := range o.order {
		row, err := w.store.Get(background, t.row.ID)
		if err != nil || row.State != t.row.State || row.Attempt != t.row.Attempt {
			w.fail("P1: %s ended as %v, the store has %v", short(t.row.ID), t.row.State, err)
		}
	}
}
