package core

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/headrace/headrace/internal/mutant"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

// executor is one executor process, by the id that is new at each start (R6). It is known while it has
// a session or tries, or decisions about its tries are on their way to disk.
type executor struct {
	id      string
	name    string
	session *session // the newest; nil: none
	flying  items    // its tries, of all its sessions, oldest first
	slots   int      // as its newest hello says
	// begunMillis is the sum of when its tries began, in milliseconds: how long they have run in all needs no walk.
	begunMillis int64
	deciding    int       // tries that have ended here, and not on disk yet
	answeredAt  time.Time // when a beat of it was answered last
	number      uint64    // of its RosterChange
	listed      bool      // successors know of it: it may get pushes (roster.go)
}

// session is one stream of an executor.
type session struct {
	id       SessionID
	executor *executor
	pool     *pool
	index    int // in its pool's heap; -1: may not get a push
	declared []declaration
	closed   bool
	draining bool
	held     bool // may get no push before its next beat
	heard    bool // its first hello is worked off
	ask      bool // it is to be asked again what it holds

	credit   uint64 // slots of pushes that it takes, in all
	sent     uint64 // slots of pushes that were sent
	returned uint64 // credit that was given back
	recalled uint64 // credit that was asked for, in all
	demand   int    // what was told, less what was pushed since
	unit     int    // the credit that a flow needs at once, as was told; 0: any is of use
	promised int    // slots of exclusive ones that wait for their record
	unacked  int    // payload bytes that were sent and not acknowledged
	flight   fifo[unconfirmed]
	timer    timer

	beats    []beat // the newest, oldest first
	openedAt time.Time

	max     int               // bytes of payload in flight
	slots   int               // of its executor
	labels  map[string]string // of its executor; nobody changes it
	costs   map[*function]int // slots of a try, of functions that take more than one; nil: of none
	kept    bool              // for a flow whose function costs more than was free (slots.go)
	inbox   fifo[*inbound]
	listed  bool
	message *headracev1.SessionResponse // being filled until Take
}

type declaration struct {
	function *function
	hash     uint64
	bands    uint8 // that run here: bit b stands for band b
}

// unconfirmed is a push that waits for its acknowledgement.
type unconfirmed struct {
	it    *item
	token task.Token
	at    time.Time
}

// inbound is a message that is being worked off.
type inbound struct {
	m                                      *headracev1.SessionRequest
	claims, acks, progress, logs, outcomes int  // done
	hello                                  bool // to be ended
	number                                 uint64
}

// errUnknownSession refuses a message of a session that is not open.
var errUnknownSession = errors.New("no such session")

// executorOf returns the executor with that id.
func (c *Core) executorOf(id, name string) *executor {
	x := c.executors[id]
	if x == nil {
		x = &executor{id: id, flying: items{of: onExecutorLinks}}
		c.executors[id] = x
		c.enlist(x)
	}
	if name != "" {
		x.name = name
	}
	return x
}

// forgetExecutor drops what has neither a session nor a try that is undecided.
func (c *Core) forgetExecutor(x *executor) {
	if x.session == nil && x.flying.n == 0 && x.deciding == 0 && c.executors[x.id] == x {
		delete(c.executors, x.id)
		c.delist(x)
		c.unsilence(x)
	}
}

// OpenSession opens a session; its hello says what the executor can run and what it holds. Its error
// is a *task.FieldError. A session of an executor that has an older one here replaces that one.
func (c *Core) OpenSession(now time.Time, id SessionID, h *headracev1.Hello) error {
	c.enter(now)
	if len(h.ExecutorId) != len(task.ID{}) {
		return &task.FieldError{Field: "hello.executor_id", Value: fmt.Sprintf("%d bytes", len(h.ExecutorId)), Want: "16 random bytes"}
	}
	if len(h.Name) > task.MaxNameLen {
		return &task.FieldError{Field: "hello.name", Value: h.Name, Want: "at most 63 characters"}
	}
	if h.Slots < 1 || h.Slots > 100_000 {
		return &task.FieldError{Field: "hello.slots", Value: fmt.Sprint(h.Slots), Want: "1 to 100000"}
	}
	if len(h.Functions) == 0 {
		return &task.FieldError{Field: "hello.functions", Want: "at least one function"}
	}
	if err := task.MatchLabels("hello.labels", h.Labels); err != nil {
		return err
	}
	policies := make([]task.Policy, len(h.Functions))
	for i, d := range h.Functions {
		field := fmt.Sprintf("hello.functions[%d]", i)
		if err := task.Name(field+".tenant", d.Tenant); err != nil {
			return err
		}
		if err := task.Name(field+".name", d.Name); err != nil {
			return err
		}
		policies[i] = policyOf(d)
		if err := policies[i].Validate(); err != nil {
			if fe := (*task.FieldError)(nil); errors.As(err, &fe) {
				fe.Field = field + "." + fe.Field
			}
			return err
		}
		if policies[i].Cost > int(h.Slots) {
			return &task.FieldError{Field: field + ".cost", Value: fmt.Sprint(policies[i].Cost), Want: fmt.Sprintf("1 to %d, the executor's slots", h.Slots)}
		}
		if asked, _ := task.ParseMatch("", policies[i].Requires); !task.Matches(h.Labels, asked) {
			return &task.FieldError{Field: field + ".requires", Value: policies[i].Requires, Want: "labels that the executor has: it can't run the function"}
		}
		if d.Bands >= 1<<task.Bands {
			return &task.FieldError{Field: field + ".bands", Value: fmt.Sprint(d.Bands), Want: "0 to 7"}
		}
	}
	x := c.executorOf(string(h.ExecutorId), h.Name)
	x.slots = int(h.Slots)
	c.lookUp(x)
	s := &session{id: id, executor: x, index: -1, openedAt: c.now, max: c.cfg.SessionBytes, slots: int(h.Slots), labels: h.Labels}
	s.timer.owner = s
	old := x.session
	x.session = s // before the old one is closed: that would forget an executor without a session
	if old != nil {
		c.closeSession(old)
	}
	c.sessions[id] = s
	c.opened = append(c.opened, s)
	for i, d := range h.Functions {
		f := c.function(d.Tenant, d.Name)
		c.declare(f, policies[i])
		hash := policies[i].Hash()
		s.declared = append(s.declared, declaration{f, hash, uint8(cmp.Or(d.Bands, allBands))})
		if n := policies[i].Cost; n > 1 {
			if s.costs == nil {
				s.costs = map[*function]int{}
			}
			s.costs[f] = n
		}
		if f.hash == hash {
			f.declared++
		}
	}
	c.joinPool(s)
	c.welcome(s)
	if c.draining {
		c.message(s).GoingAway = true
	}
	c.receive(s, &headracev1.SessionRequest{Hello: h})
	return nil
}

func policyOf(d *headracev1.FunctionDeclaration) task.Policy {
	return task.Policy{
		Version:     d.Version,
		Timeout:     d.Timeout.AsDuration(),
		MaxAttempts: int(min(d.MaxAttempts, 1<<30)),
		Backoff: task.Backoff{
			Base: d.BackoffBase.AsDuration(), Factor: d.BackoffFactor, Max: d.BackoffMax.AsDuration(),
		},
		OrphanTimeout: d.OrphanTimeout.AsDuration(),
		CancelGrace:   d.CancelGrace.AsDuration(),
		Exclusive:     d.Exclusive,
		Downstream:    d.Downstream,
		Cost:          int(min(d.Cost, 1<<30)),
		Requires:      d.Requires,
		Prefers:       d.Prefers,
	}
}

// welcome asks an executor what it holds of the partitions that are held now (R14). Its hello answers.
func (c *Core) welcome(s *session) {
	w := &headracev1.Welcome{}
	for _, p := range c.order {
		w.Epochs = append(w.Epochs, &headracev1.PartitionEpoch{Partition: p.id, Epoch: p.epoch})
	}
	c.message(s).Welcome = w
}

// message returns the message to a session that leaves at the next Take.
func (c *Core) message(s *session) *headracev1.SessionResponse {
	if s.message == nil {
		s.message = &headracev1.SessionResponse{}
		if !s.closed {
			fx := c.effects()
			fx.Send = append(fx.Send, Send{Session: s.id, Message: s.message})
		}
	}
	return s.message
}

// CloseSession says that a session's stream has ended. What the executor holds goes on there; it comes
// back with a new session, or is lost after the orphan timeout (R7).
func (c *Core) CloseSession(now time.Time, id SessionID) {
	c.enter(now)
	if s := c.sessions[id]; s != nil {
		c.closeSession(s)
	}
}

// endSession closes a stream from our side.
func (c *Core) endSession(s *session) {
	if !s.closed {
		fx := c.effects()
		fx.Close = append(fx.Close, s.id)
		c.closeSession(s)
	}
}

func (c *Core) closeSession(s *session) {
	if s.closed {
		return
	}
	s.closed = true
	delete(c.sessions, s.id)
	c.opened = slices.DeleteFunc(c.opened, func(o *session) bool { return o == s })
	c.timers.unset(&s.timer)
	for _, d := range s.declared {
		if d.function.hash == d.hash {
			d.function.declared--
		}
	}
	x := s.executor
	if x.session == s {
		x.session = nil
	}
	for it := x.flying.first; it != nil; it = it.onExecutor.next {
		if it.try.session == s {
			it.try.session = nil
			it.try.bytes = 0
			c.armFlight(it)
		}
	}
	c.leavePool(s)
	c.forgetExecutor(x)
}

// Message takes one message of a session. The core keeps parts of it. Its error closes the session.
func (c *Core) Message(now time.Time, id SessionID, m *headracev1.SessionRequest) error {
	c.enter(now)
	s := c.sessions[id]
	if s == nil {
		return errUnknownSession
	}
	if m.Hello != nil && string(m.Hello.ExecutorId) != s.executor.id {
		return &task.FieldError{Field: "hello.executor_id", Want: "the id that the session was opened with"}
	}
	c.receive(s, m)
	return nil
}

// receive reads what a message says of the session at once and the rest in slices, messages in order.
func (c *Core) receive(s *session, m *headracev1.SessionRequest) {
	if m.Credit > s.credit {
		s.credit = m.Credit
	}
	if m.Recall > s.recalled {
		give := min(m.Recall-s.recalled, uint64(max(s.free(), 0)))
		s.recalled = m.Recall
		s.returned += give
		answer := c.message(s)
		answer.Returned, answer.Recalled = s.returned, s.recalled
	}
	if m.Draining {
		s.draining = true
	}
	if m.Beat != nil {
		if len(s.beats) == beatsKept {
			s.beats = append(s.beats[:0], s.beats[1:]...)
		}
		s.beats = append(s.beats, beat{m.Beat.Number, c.now})
		s.held = false
		if mutant.On("beat-unchecked") {
			c.answerBeats(c.order, c.now)
		}
	}
	s.pool.ready(s)
	c.hellos++
	s.inbox.push(&inbound{m: m, hello: m.Hello != nil, number: c.hellos})
	if !s.listed {
		s.listed = true
		c.inbox.push(s)
	}
	c.readInbox()
}

// readInbox works off a slice of what sessions have sent.
func (c *Core) readInbox() {
	for left := c.cfg.Slice; left > 0 && c.inbox.len() > 0; {
		s := *c.inbox.peek()
		for left > 0 && s.inbox.len() > 0 && !s.closed {
			in := *s.inbox.peek()
			left = c.read(s, in, left)
			if left > 0 {
				s.inbox.pop()
			}
		}
		if s.closed || s.inbox.len() == 0 {
			c.inbox.pop()
			s.listed = false
		} else if c.inbox.len() > 1 {
			c.inbox.push(c.inbox.pop())
		}
	}
	c.hand.set = false
}

// read works off at most left items of a message and returns how many are left; 0: there is more.
func (c *Core) read(s *session, in *inbound, left int) int {
	m := in.m
	if in.hello {
		for in.claims < len(m.Hello.Claims) {
			if left == 0 {
				return 0
			}
			left--
			in.claims++
			c.claimed(s, m.Hello.Claims[in.claims-1], in.number)
		}
		c.helloEnds(s, in)
		in.hello = false
	}
	for in.acks < len(m.Acks) {
		if left == 0 {
			return 0
		}
		left--
		in.acks++
		c.acked(s, m.Acks[in.acks-1])
	}
	for in.progress < len(m.Progress) {
		if left == 0 {
			return 0
		}
		left--
		in.progress++
		c.progressed(s, m.Progress[in.progress-1])
	}
	for in.logs < len(m.Logs) {
		if left == 0 {
			return 0
		}
		left--
		in.logs++
		c.logged(s, m.Logs[in.logs-1])
	}
	for in.outcomes < len(m.Outcomes) {
		if left == 0 {
			return 0
		}
		left--
		in.outcomes++
		c.outcome(s, m.Outcomes[in.outcomes-1])
	}
	return max(left, 1)
}

// acked takes the answer to a push.
func (c *Core) acked(s *session, a *headracev1.Ack) {
	it := c.find(a.TaskId)
	if it == nil || it.try == nil || it.try.token != tokenOf(a.Token) || it.try.session != s || !it.try.pushed {
		return
	}
	y := it.try
	c.landed(y)
	defer s.settle()
	s.pool.ready(s)
	if a.Refusal == headracev1.Refusal_REFUSAL_UNSPECIFIED {
		if y.ackedAt.IsZero() {
			c.confirm(it, c.now)
			c.notify(it)
		}
		return
	}
	if !y.ackedAt.IsZero() {
		return
	}
	if a.Epoch > it.part.epoch {
		c.loseBehind(it.part, a.Epoch)
		return
	}
	s.held = true // until its next beat: whatever it lacked, it will not have it sooner
	s.pool.ready(s)
	c.denied(it)
}

// confirm notes that a try has started.
func (c *Core) confirm(it *item, startedAt time.Time) {
	y := it.try
	y.ackedAt = startedAt
	if y.unsure {
		y.unsure = false
		it.part.unsure--
		if it.part.releasing {
			c.record(it)
			c.stepRelease(it.part)
		}
	}
	if y.record != started {
		c.recordLater(it)
	}
	c.shedPayload(it)
	if len(c.pauseWaits) > 0 {
		c.noStart(it)
	}
	if len(it.waiting) > 0 {
		c.answerAsked(it)
	}
}

// shedPayload drops a running task's payload from memory if it is not small: should it run again, the
// executor fetches it.
func (c *Core) shedPayload(it *item) {
	const small = 4 << 10
	if len(it.t.Payload) <= small {
		return
	}
	t := it.edit()
	t.Payload = nil
	if it.disk == it.t {
		it.disk = t
	}
	it.t = t
	c.bytes -= it.size - overhead
	it.size = overhead
}

// find returns the task in memory that a message names.
func (c *Core) find(b []byte) *item {
	if len(b) != len(task.ID{}) {
		return nil
	}
	return c.item(task.ID(b))
}

func (c *Core) item(id task.ID) *item {
	p := c.parts[id.Partition()]
	if p == nil {
		return nil
	}
	it := p.items[id.Seq()]
	if it == nil || it.t.ID != id {
		return nil
	}
	c.inHand(p.id, id)
	return it
}

func tokenOf(t *headracev1.Token) task.Token {
	if t == nil {
		return task.Token{}
	}
	return task.Token{Epoch: t.Epoch, Push: t.Push}
}

// free is how many slots of pushes the session takes now.
func (s *session) free() int64 { return int64(s.credit-s.sent-s.returned) - int64(s.promised) }

func (s *session) mayPush() bool {
	return !s.closed && !s.draining && !s.held && s.executor.listed && s.free() > 0 && s.unacked <= s.max
}

// ackMargin is how much longer than the shelf life a push may stay unanswered before the session
// counts as dead.
const ackMargin = time.Second

func (s *session) arm(c *Core) {
	if s.settle(); s.flight.len() > 0 {
		c.timers.set(&s.timer, s.flight.peek().at.Add(c.cfg.ShelfLife+ackMargin))
	}
}

// settle drops what is answered from the head of the pushes in flight.
func (s *session) settle() {
	for s.flight.len() > 0 {
		u := s.flight.peek()
		if u.it.try != nil && u.it.try.token == u.token && u.it.try.ackedAt.IsZero() {
			return
		}
		s.flight.pop()
	}
}

// alarm closes a session whose executor has not answered a push for longer than the push was good.
// What it holds is known when it comes back, or lost in time; another executor gets nothing before.
func (s *session) alarm(c *Core) {
	if s.settle(); s.flight.len() > 0 && !s.flight.peek().at.Add(c.cfg.ShelfLife+ackMargin).After(c.now) {
		c.endSession(s)
		return
	}
	s.arm(c)
}
