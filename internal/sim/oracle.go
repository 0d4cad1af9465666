package sim

import (
	"time"

	"github.com/headrace/headrace/dispatcher/core"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// oracle knows what really happens and what is allowed (takeover.md §3). It judges at each step.
type oracle struct {
	w        *world
	tasks    map[task.ID]*truth
	order    []*truth // in the order in which they were stored
	raises   [][]raise
	floors   []store.Epoch      // by partition, on disk
	early    int                // takeovers whose grace ended before its time
	tokens   map[partToken]bool // started
	starts   int
	activeAt time.Duration // of the last end of a handler, or change of a row
	// answeredAt is when an owner last answered a beat of a process for a partition; heardAt is when the newest
	// answered beat was sent that reached the process.
	answeredAt, heardAt map[key]time.Duration
	silences            map[key][]silence   // those of 4 s and more
	saidEpoch           map[key]store.Epoch // the newest that an executor has said it knows
}

type partToken struct {
	partition uint32
	token     task.Token
}

type key struct {
	x         *executor
	life      int
	partition uint32
}

// silence is a time in which a process's beats were not answered for a partition.
type silence struct{ from, to time.Duration }

// raise is one growth of a partition's epoch.
type raise struct {
	epoch   store.Epoch
	at      time.Duration
	orderly bool
}

// truth is what the oracle knows of one task.
type truth struct {
	spec           *spec
	row            *store.Task // as stored last
	runs           []*run      // in the order of their starts
	newest         task.Token  // the highest that has started
	cancelAsked    bool
	cancelAnswered bool // with a promise
	losses         int
}

// run is one start of a handler.
type run struct {
	t         *truth
	token     task.Token
	x         *executor
	life      int
	startedAt time.Duration
	timeout   time.Duration
	beatAt    time.Duration // when the beat that its push named was sent
	stoppedAt time.Duration // when its handler was first told to stop; 0: never
	standing  time.Duration // how long its process had been stopped before
	stubborn  bool          // does not obey
	ended     bool
	dead      bool // with its process
	void      bool // its engine has dropped it
	reported  bool
	class     task.Class           // reported
	result    []byte               // of a success
	unsure    []raise              // epochs at whose raise it had no record on disk
	adopted   map[store.Epoch]bool // owners that have told its executor so
}

// expirySlack is what drifting clocks may add to a push's shelf life of at most a second.
const expirySlack = 50 * time.Millisecond

func newOracle(w *world) oracle {
	return oracle{w: w, tasks: map[task.ID]*truth{}, raises: make([][]raise, w.plan.partitions), floors: make([]store.Epoch, w.plan.partitions), tokens: map[partToken]bool{},
		answeredAt: map[key]time.Duration{}, heardAt: map[key]time.Duration{}, saidEpoch: map[key]store.Epoch{},
		silences: map[key][]silence{}}
}

// alive reports whether the handler still runs.
func (r *run) alive() bool { return !r.ended && !r.dead }

// held reports whether the executor still has the try, running or with its outcome.
func (r *run) held() bool { return !r.dead && !r.void && r.x.up && r.x.life == r.life }

// stood is how long the process has been stopped since the run began.
func (r *run) stood() time.Duration { return r.x.stood - r.standing }

// recorded reports whether the run's record is on disk.
func (r *run) recorded() bool {
	return r.t.row.Record != nil && r.t.row.Record.Token == r.token
}

// orphan is the orphan timeout that holds for a function's tries.
func (t *truth) orphan() time.Duration {
	return t.spec.function.policy.WithDefaults().OrphanTimeout
}

func (t *truth) exclusive() bool { return t.spec.function.policy.Exclusive }

// raised is told of each growth of an epoch, when it is on disk. After an orderly release nothing that the
// old owner knew may run twice (R13).
func (o *oracle) raised(p uint32, e store.Epoch, orderly bool) {
	ra := raise{e, o.w.now, orderly}
	o.raises[p] = append(o.raises[p], ra)
	if orderly {
		return
	}
	for _, t := range o.order {
		if t.row.ID.Partition() != p || t.row.State.Terminal() {
			continue
		}
		for _, r := range t.runs {
			if r.held() && !r.recorded() {
				r.unsure = append(r.unsure, ra)
			}
		}
	}
}

// started judges the start of a handler (P1, P2, P6, I4, I8).
func (o *oracle) started(x *executor, et *engineTry) *run {
	w, p := o.w, et.Push
	o.starts++
	r := &run{token: et.Token, x: x, life: x.life, startedAt: w.now, standing: x.stood, adopted: map[store.Epoch]bool{},
		timeout: time.Duration(p.TimeoutMicros) * time.Microsecond}
	t := o.tasks[et.ID]
	if t == nil {
		w.fail("P1: %s starts and is not stored", short(et.ID))
		return r
	}
	r.t = t
	if st := x.streams[et.Session]; st != nil && p.Beat > 0 && int(p.Beat) <= len(st.beatsSentAt) {
		r.beatAt = st.beatsSentAt[p.Beat-1]
	}
	row := t.row
	name := short(et.ID) + " " + tokenText(et.Token)
	due := row.DueAt.Sub(epoch)
	skew := w.plan.skew()
	margin := time.Millisecond + skew
	switch {
	case o.tokens[partToken{et.ID.Partition(), et.Token}]:
		w.fail("P2: token %s starts twice", name)
	case t.newest.After(et.Token):
		w.fail("P2: %s starts after %s", name, tokenText(t.newest))
	case !et.Token.After(row.LastToken):
		w.fail("R2: %s starts, and %s is decided", name, tokenText(row.LastToken))
	case o.saidEpoch[key{x, x.life, et.ID.Partition()}] > et.Token.Epoch:
		w.fail("R5: %s starts on %s, which has answered for epoch %d", name, x.name, o.saidEpoch[key{x, x.life, et.ID.Partition()}])
	case o.floors[et.ID.Partition()] > et.Token.Epoch:
		w.fail("R12: %s starts, and the grace of epoch %d is over", name, o.floors[et.ID.Partition()])
	case row.State.Terminal():
		w.fail("P1: %s starts and is %v", name, row.State)
	case t.cancelAnswered:
		w.fail("P6: %s starts after its cancel was answered", name)
	case w.now+margin < due:
		w.fail("P6: %s starts %v before it is due", name, due-w.now)
	case !row.Deadline.IsZero() && w.now > row.Deadline.Sub(epoch)+expirySlack+skew:
		w.fail("P6: %s starts %v after its deadline", name, w.now-row.Deadline.Sub(epoch))
	case row.StartTTL > 0 && len(t.runs) == 0 && w.now > row.FirstDueAt.Add(row.StartTTL).Sub(epoch)+expirySlack+skew:
		w.fail("P6: %s starts %v after its start TTL", name, w.now-row.FirstDueAt.Add(row.StartTTL).Sub(epoch))
	case p.Tenant != row.Tenant || p.Function != row.Function:
		w.fail("P7: %s starts as %s/%s and is %s/%s", name, p.Tenant, p.Function, row.Tenant, row.Function)
	case int(p.Attempt) != row.Attempt:
		w.fail("P5: %s starts attempt %d and is at %d", name, p.Attempt, row.Attempt)
	case t.exclusive() && !r.recorded():
		w.fail("P2: exclusive %s starts without its record on disk", name)
	}
	for _, ra := range o.raises[et.ID.Partition()] {
		if ra.epoch > et.Token.Epoch && !r.recorded() && !ra.orderly {
			r.unsure = append(r.unsure, ra)
		}
	}
	w.pauses.started(r, name)
	for _, old := range t.runs {
		o.together(old, r)
	}
	o.tokens[partToken{et.ID.Partition(), et.Token}] = true
	t.newest = et.Token
	t.runs = append(t.runs, r)
	return r
}

// together judges a start beside an older run of the same task: both run, or the older one's outcome
// waits for its owner.
func (o *oracle) together(old, r *run) {
	w, t := o.w, r.t
	decided := !old.token.After(t.row.LastToken)
	if !old.alive() && (!old.held() || decided) {
		return
	}
	if old.alive() && o.excused(old) {
		return
	}
	// A default try without a record at a takeover, on an executor that had not answered when the grace ended.
	if !t.exclusive() {
		for _, ra := range old.unsure {
			if ra.epoch > r.token.Epoch || old.adopted[ra.epoch] {
				continue
			}
			if old.alive() {
				most := min(t.orphan(), task.DefaultOrphanTimeout) // a longer one begins with the record (R9)
				until := ra.at + most + most/50
				w.after(until-w.now, func() {
					if old.alive() && r.alive() && !o.excused(old) {
						w.fail("P2: %s: %s still runs on %s beside %s, %v after the raise of epoch %d", short(t.row.ID),
							tokenText(old.token), old.x.name, tokenText(r.token), w.now-ra.at, ra.epoch)
					}
				})
			}
			return
		}
	}
	if old.alive() {
		w.fail("P2: %s runs twice: %s on %s since %v, now %s on %s", short(t.row.ID), tokenText(old.token), old.x.name,
			old.startedAt, tokenText(r.token), r.x.name)
	} else {
		w.fail("P2: %s: %s has ended on %s and nothing is decided, now %s starts on %s", short(t.row.ID), tokenText(old.token), old.x.name,
			tokenText(r.token), r.x.name)
	}
}

// excused reports whether a run that goes on is beyond what the protocol can do about: its handler does
// not obey, or its process stood still for longer than the fifth of R7 leaves.
func (o *oracle) excused(r *run) bool {
	return r.stubborn && r.stoppedAt > 0 || r.stood() > o.w.plan.patience(&r.t.spec.function.policy)/2
}

// payload judges what a handler gets (I8).
func (o *oracle) payload(et *engineTry, b []byte) {
	if t := o.tasks[et.ID]; t != nil && !equal(b, t.spec.payload) {
		o.w.fail("I8: %s gets %d bytes of payload, %d were submitted", short(et.ID), len(b), len(t.spec.payload))
	}
}

func (o *oracle) ended(h *handler) {
	h.run.ended = true
	o.activeAt = o.w.now
	h.run.result = h.result.Body
}

func (o *oracle) died(r *run) { r.dead = true }

// voided is told of outcomes that an engine drops because its owner said so.
func (o *oracle) voided(x *executor, et *engineTry) {
	h := et.Data.(*handler)
	h.run.void = true
	o.disturbed(h.run, "its outcome is refused")
}

// stopped judges what an engine tells a handler (P4, R7, R15).
func (o *oracle) stopped(x *executor, c engineCancel) {
	r := c.Try.Data.(*handler).run
	switch c.Cause {
	case causeStale:
		r.void = true
		o.disturbed(r, "it is told to stop as stale")
	case causeOrphaned:
		heard := max(o.heardAt[key{x, x.life, c.Try.ID.Partition()}], r.beatAt)
		least := min(r.t.orphan(), task.DefaultOrphanTimeout) * 8 / 10
		least = o.w.plan.least(least) - 5*time.Millisecond
		if quiet := o.w.now - heard; quiet < least {
			o.w.fail("P4: %s %s orphans itself %v after its owner's answer", short(c.Try.ID), tokenText(r.token), quiet)
		}
	}
}

// disturbed: a try that is the newest, undecided, and known to the owner must not be thrown away.
func (o *oracle) disturbed(r *run, how string) {
	t := r.t
	if t == nil || r.token != t.newest || !r.token.After(t.row.LastToken) || t.row.State.Terminal() {
		return
	}
	if c := t.row.Cancel; c != nil && o.w.now+o.w.plan.skew() >= c.At.Sub(epoch)+o.w.plan.least(t.spec.function.policy.WithDefaults().CancelGrace) {
		return // it ends as cancelled, whatever it does
	}
	es := o.raises[t.row.ID.Partition()]
	known := r.recorded() || r.token.Epoch == es[len(es)-1].epoch
	if known {
		o.w.fail("P4: %s %s is the newest try and undecided, and %s", short(t.row.ID), tokenText(r.token), how)
	}
}

// delivered is told what reaches an executor's engine in an open session.
func (o *oracle) delivered(st *stream, m *headracev1.SessionResponse) {
	if a := m.BeatAnswer; a != nil && a.Number > 0 && int(a.Number) <= len(st.beatsSentAt) {
		for _, p := range a.Partitions {
			k := key{st.x, st.x.life, p.Partition}
			if p.Epoch >= o.saidEpoch[k] { // one of an older owner is not believed (R5)
				o.heardAt[k] = max(o.heardAt[k], st.beatsSentAt[a.Number-1])
			}
		}
	}
}

// sent is told what a node sends.
func (o *oracle) sent(_ *node, st *stream, m *headracev1.SessionResponse) {
	if a := m.BeatAnswer; a != nil {
		for _, p := range a.Partitions {
			if es := o.raises[p.Partition]; p.Epoch != es[len(es)-1].epoch {
				o.oldAnswer(st, a.Number, p)
				continue // of an old owner, who answers a beat from before the raise: nobody counts from that
			}
			k := key{st.x, st.execLife, p.Partition}
			if was := o.answeredAt[k]; o.w.now-was > 4*time.Second {
				o.silences[k] = append(o.silences[k], silence{was, o.w.now})
			}
			o.answeredAt[k] = o.w.now
		}
	}
	for _, c := range m.Claims {
		if t := o.tasks[task.ID(c.TaskId)]; t != nil && c.Adopted {
			for _, r := range t.runs {
				if r.token == tokenOf(c.Token) {
					r.adopted[c.Epoch] = true
				}
			}
		}
	}
}

// said is told what an executor reports.
func (o *oracle) said(x *executor, m *headracev1.SessionRequest) {
	for _, e := range m.GetHello().GetEpochs() {
		k := key{x, x.life, e.Partition}
		o.saidEpoch[k] = max(o.saidEpoch[k], e.Epoch)
	}
	note := func(oc *headracev1.Outcome) {
		t := o.tasks[task.ID(oc.TaskId)]
		for _, r := range t.runs {
			if r.token == tokenOf(oc.Token) {
				r.reported, r.class = true, class(oc.ErrorClass)
				if !r.ended {
					o.w.fail("%s %s is reported as ended and runs", short(t.row.ID), tokenText(r.token))
				}
			}
		}
	}
	for _, oc := range m.Outcomes {
		note(oc)
	}
	if m.Hello != nil {
		for _, c := range m.Hello.Claims {
			if c.Outcome != nil {
				note(c.Outcome)
			}
		}
	}
}

// called judges one entry into a core: no call handles more than a slice.
func (o *oracle) called(n *node, what string, fx *core.Effects) {
	pushes, answers := 0, 0
	for _, s := range fx.Send {
		pushes += len(s.Message.Pushes)
		answers += len(s.Message.Committed) + len(s.Message.Recorded) + len(s.Message.Cancels)
	}
	most := o.w.plan.config.Slice
	if pushes > most || answers > 256 || len(fx.Submitted) > 256 || len(fx.Loads) > 256 || len(fx.Events) > 256 {
		o.w.fail("one %s of %s: %d pushes, %d answers to executors, %d to submitters, %d loads, %d events; a slice is %d", what, n.name,
			pushes, answers, len(fx.Submitted), len(fx.Loads), len(fx.Events), most)
	}
}
