package core

import (
	"time"

	"github.com/headrace/headrace/internal/mutant"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// takeover is what a new owner does not know yet.
//
// While it is active nothing is read from the store, so nothing from before is pushed; new submits
// are. It ends with the commit that raises the floor: after the grace, once every try adopted so far
// is recorded (R14).
type takeover struct {
	active    bool
	graceAt   time.Time
	rows      []*store.Task // recorded or with a pending cancel, not in memory yet
	flows     []store.FlowStat
	reading   bool // rows or flows are left
	flooring  bool // the floor's commit is queued or on its way
	floorIn   uint64
	unsettled []*item // cancels that wait for the end
	suspects  map[task.ID]bool
	awaited   map[string]bool // executors that have not answered; nil: nobody knows who they are
	lanes     []*lane         // to be filled, a slice at a time
}

// loading reports whether the store may hold ready rows of a flow that no lane knows of.
func (o *takeover) loading(store.Flow) bool { return o.reading }

// Acquired takes over a partition (R10-R15).
func (c *Core) Acquired(now time.Time, a Acquired) {
	c.enter(now)
	r := a.Recovered
	id := r.Partition.ID
	if old := c.parts[id]; old != nil {
		c.forget(old)
	}
	c.inHand(id, task.ID{})
	p := &partition{
		id: id, db: c.database(a.Database), epoch: a.Epoch, floor: r.Partition.Floor,
		seq: r.Partition.Seq, old: r.Partition.Seq, known: r.Partition.Seq, raisedAt: a.RaisedAt,
		items: map[uint64]*item{}, lanes: map[store.Flow]*lane{}, gets: map[uint64]*getting{},
		policies: map[*function]uint64{}, usage: map[*tenant]*usage{},
	}
	p.timer.owner = p
	p.stat = PartitionStat{Partition: id, Database: a.Database, Epoch: a.Epoch,
		Backlog: r.Partition.Ready, Scheduled: r.Partition.Due, Bytes: r.Partition.Bytes}
	o := &p.takeover
	o.active, o.reading = true, true
	o.graceAt = a.RaisedAt.Add(c.cfg.Grace)
	switch {
	case mutant.On("grace-short"):
		o.graceAt = a.RaisedAt
	case mutant.On("grace-below-shelf"):
		o.graceAt = a.RaisedAt.Add(c.cfg.ShelfLife * 3 / 4)
	}
	if r.Partition.Released == a.Epoch-1 {
		o.graceAt = a.RaisedAt // whoever had it before recorded everything that runs (R13)
	}
	if a.Complete {
		o.awaited = make(map[string]bool, len(a.Executors))
		for _, id := range a.Executors {
			o.awaited[id] = true
		}
	}
	p.believeSilence(r.Recorded)
	o.rows = append(append(o.rows, r.Recorded...), r.Cancels...)
	o.flows = a.Flows
	o.suspects = map[task.ID]bool{}
	c.setPartition(p)
	c.settles(p)
	c.hold(p)
	for _, f := range r.Functions {
		c.storedPolicy(p, f)
	}
	for _, id := range a.Suspects {
		o.suspects[id] = true
		c.get(p, id).kill = true
	}
	if p.db.readAt.IsZero() {
		p.db.readAt = c.now
	}
	p.db.arm(c)
	for _, s := range c.opened {
		c.welcome(s)
	}
	c.recoverSlice(p)
}

func (c *Core) storedPolicy(p *partition, sf store.Function) {
	f := c.function(sf.Tenant, sf.Name)
	if !f.known || sf.Policy.Version > f.version {
		c.setPolicy(f, sf.Policy)
	}
	p.policies[f] = sf.Policy.Hash()
}

// recoverSlice goes on with a takeover.
func (c *Core) recoverSlice(p *partition) {
	o := &p.takeover
	left := c.cfg.Slice
	if o.reading {
		// The counts first: what ends among the rows is taken off them.
		for ; len(o.flows) > 0 && left > 0; left-- {
			l := c.lane(p, o.flows[0].Flow)
			l.more, l.expires = true, true
			l.use.ready += o.flows[0].Ready
			l.ready += o.flows[0].Ready
			l.use.bytes += o.flows[0].Bytes
			o.flows = o.flows[1:]
		}
		for ; len(o.rows) > 0 && left > 0; left-- {
			t := o.rows[0]
			o.rows = o.rows[1:]
			if p.items[t.ID.Seq()] == nil {
				c.inHand(p.id, t.ID)
				c.adoptRow(c.load(p, c.lane(p, t.Flow()), t))
			}
		}
		if len(o.rows)+len(o.flows) > 0 {
			c.more = true
			return
		}
		o.reading, o.rows, o.flows = false, nil, nil
		c.stepTakeover(p)
	}
	for ; len(o.lanes) > 0 && left > 0; left-- {
		l := o.lanes[0]
		o.lanes = o.lanes[1:]
		c.refill(l)
	}
	if len(o.lanes) > 0 {
		c.more = true
	}
}

// adoptRow takes a row into memory that a try may hold, or that somebody cancelled.
func (c *Core) adoptRow(it *item) {
	p, t := it.part, it.t
	switch {
	case p.takeover.suspects[t.ID]:
		c.kill(it)
	case t.Record != nil && (t.Record.Token.After(t.LastToken) || mutant.On("adopt-ignores-last")):
		y := c.newTry()
		y.token, y.attempt = t.Record.Token, t.Attempt
		y.executor = c.executorOf(t.Record.Executor, "")
		y.chosenAt, y.pushedAt, y.pushed = t.Record.StartedAt, t.Record.StartedAt, true
		y.record = announced
		if !t.Record.Announced || mutant.On("announced-started") {
			y.ackedAt, y.record = t.Record.StartedAt, started
		}
		y.timeout = c.timeoutOf(it)
		y.alone = t.Suspect
		c.beginTry(it, y)
		it.exclusive = it.lane.flow.function.policy.Exclusive
		c.armFlight(it)
	case t.Cancel != nil && p.takeover.active:
		it.unsettled = true
		p.takeover.unsettled = append(p.takeover.unsettled, it)
	default:
		c.settle(it)
	}
}

func (c *Core) timeoutOf(it *item) time.Duration {
	d := it.t.Timeout
	if p := it.lane.flow.function.policy.Timeout; p > 0 && (d == 0 || p < d) {
		d = p
	}
	return d
}

// kill ends a task whose handling made the core panic.
func (c *Core) kill(it *item) {
	t := it.edit()
	if it.try != nil {
		c.endRow(it, t, task.NonRetryable, "handling it crashed the node")
		c.endTry(it)
	}
	t.ErrClass, t.ErrMessage = task.NonRetryable, "handling it crashed the node"
	if it.place == atWindow {
		c.unwindow(it)
	}
	c.finish(it, t, task.Failed)
}

// stepTakeover raises the floor once the grace is over and every adopted try is recorded.
func (c *Core) stepTakeover(p *partition) {
	o := &p.takeover
	if p.dead || !o.active || o.reading || o.flooring {
		return
	}
	if mutant.On("no-floor") && !o.graceAt.After(c.now) {
		c.floorRaised(p)
		return
	}
	wait := o.graceAt.After(c.now) && !p.allAnswered() && !mutant.On("floor-early")
	if wait || p.adopting > 0 && !mutant.On("floor-without-adopted") {
		c.armPartition(p)
		return
	}
	// From here on a claim of an older epoch is void unless its try is recorded: what is adopted now
	// would not be on disk before the floor.
	o.flooring = true
	p.floor = p.epoch
	p.floorDue = true
	c.flag(p)
}

// floorRaised opens the partition: what nobody claimed runs again.
func (c *Core) floorRaised(p *partition) {
	o := &p.takeover
	o.active, o.flooring = false, false
	p.stat.Open = true
	c.settled(p)
	if len(c.pauseWaits) > 0 {
		c.stepPauses()
	}
	for _, it := range o.unsettled {
		if it.unsettled && it.place == atCommit {
			it.unsettled = false
			if it.pend == 0 {
				c.inHand(p.id, it.t.ID)
				c.settle(it)
			}
		}
	}
	o.unsettled = nil
	o.lanes = p.sortedLanes()
	c.recoverSlice(p)
	c.armPartition(p)
	c.readDue(p)
	c.stepRelease(p)
}

// alarm does what a partition has to do at times.
func (p *partition) alarm(c *Core) {
	if p.dead {
		return
	}
	c.inHand(p.id, task.ID{})
	c.stepTakeover(p)
	c.readDue(p)
	c.sweepLanes(p)
	c.armPartition(p)
}

// armPartition sets when the partition's alarm is wanted next.
func (c *Core) armPartition(p *partition) {
	o := &p.takeover
	if o.active {
		at := time.Time{}
		if o.graceAt.After(c.now) {
			at = o.graceAt
		}
		c.timers.set(&p.timer, at)
		return
	}
	var at time.Time
	if p.stat.Scheduled > 0 && p.due.reading == nil {
		at = time.UnixMicro(p.due.to.Sort).Add(-c.cfg.TimerHorizon / 2)
		at = later(at, c.now.Add(50*time.Millisecond))
		at = later(at, p.due.again)
	}
	if c.wantsSweep(p) {
		at = sooner(at, later(p.sweep.at, c.now.Add(50*time.Millisecond)))
	}
	c.timers.set(&p.timer, at)
}

// claim is a try that an executor says it holds, or whose outcome it reports.
type claim struct {
	id      task.ID
	token   task.Token
	tenant  string
	outcome *headracev1.Outcome
	run     int64 // microseconds
	hello   uint64
	asked   bool // it came in a hello: answered by a ClaimAnswer
}

// claimed takes one claim of a hello.
func (c *Core) claimed(s *session, h *headracev1.Claim, hello uint64) {
	if len(h.TaskId) != len(task.ID{}) {
		return
	}
	id := task.ID(h.TaskId)
	p := c.parts[id.Partition()]
	if p == nil || p.closing {
		return // the welcome of its owner will ask again
	}
	c.claim(s, p, claim{id: id, token: tokenOf(h.Token), tenant: h.Tenant, outcome: h.Outcome, run: h.RunMicros, hello: hello, asked: true})
}

// valid is R3: a claim may change something only if its token is above the last decided one, and not
// of an epoch below the floor unless it is the recorded one.
func (c *Core) valid(p *partition, t *store.Task, token task.Token) bool {
	if token.Epoch >= p.epoch {
		return false // this owner knows its own pushes, and there is no newer one
	}
	if !token.After(t.LastToken) && !mutant.On("adopt-ignores-last") {
		return false
	}
	return token.Epoch >= p.floor || t.Record != nil && t.Record.Token == token || mutant.On("no-floor")
}

func (c *Core) claim(s *session, p *partition, cl claim) {
	it := c.item(cl.id)
	if it == nil {
		if cl.token.Epoch >= p.epoch {
			c.void(s, p, cl) // a push of this epoch that is not in memory has been decided
			return
		}
		g := c.get(p, cl.id)
		g.claims = append(g.claims, sessionClaim{s, cl})
		return
	}
	c.claimItem(s, it, cl)
}

// claimItem answers a claim of a task in memory.
func (c *Core) claimItem(s *session, it *item, cl claim) {
	p, y := it.part, it.try
	switch {
	case y != nil && y.pushed && (y.token == cl.token && y.executor == s.executor || mutant.On("match-task")):
		y.hello = cl.hello
		c.reach(it, s)
		c.adopted(s, p, cl)
	case y == nil && it.pend > 0 && it.t.LastToken == cl.token:
		// It is being decided: the answer follows the commit (R3).
		if it.answer != s.executor {
			it.late = append(it.late, sessionClaim{s, cl})
		}
		return
	case c.valid(p, it.t, cl.token) && (y == nil && it.place == atCommit && (it.pend == 0 || it.unsettled) || y != nil && cl.token.After(y.token)):
		c.adopt(s, it, cl)
		c.adopted(s, p, cl)
	default:
		c.void(s, p, cl)
		return
	}
	if cl.outcome != nil {
		if it.try.ackedAt.IsZero() {
			c.confirm(it, c.now)
		}
		c.decide(it, cl.outcome)
	}
}

// reach notes that the executor of a try in flight is in reach again, and holds it.
func (c *Core) reach(it *item, s *session) {
	y := it.try
	first := !y.claimed
	y.session, y.claimed = s, true
	if y.ackedAt.IsZero() {
		c.confirm(it, c.now)
	} else if first && y.record != started {
		c.record(it)
	}
	if first && y.record == started {
		c.tellRecorded(it)
	}
	y.cancelSent = false
	if it.t.Cancel != nil && it.pend == 0 {
		c.sendCancel(it)
	}
	if len(it.waiting) > 0 {
		c.answerAsked(it)
	}
	c.armFlight(it)
	c.notify(it)
}

// adopt makes a claimed try of an earlier owner the one in flight. It keeps its token.
func (c *Core) adopt(s *session, it *item, cl claim) {
	p := it.part
	if it.try != nil { // an older one is recorded; the newer token wins
		c.endTry(it)
	}
	it.unsettled = false
	y := c.newTry()
	y.token, y.executor, y.session, y.attempt = cl.token, s.executor, s, it.t.Attempt
	y.pushed, y.claimed, y.adopted = true, true, true
	y.hello = cl.hello
	y.ackedAt = c.now.Add(-time.Duration(cl.run) * time.Microsecond)
	y.chosenAt, y.pushedAt = y.ackedAt, y.ackedAt
	y.timeout = c.timeoutOf(it)
	if r := it.t.Record; r != nil && r.Token == cl.token {
		y.record, y.adopted = started, false
		if r.Announced {
			y.record = announced
		}
	} else {
		p.adopting++
	}
	c.beginTry(it, y)
	it.exclusive = it.lane.flow.function.policy.Exclusive
	if y.record != started && cl.outcome == nil && !mutant.On("floor-without-adopted") {
		c.record(it)
	}
	if it.t.Cancel != nil && it.pend == 0 {
		c.sendCancel(it)
	}
	if len(it.waiting) > 0 {
		c.answerAsked(it)
	}
	c.armFlight(it)
	c.notify(it)
}

func (c *Core) adopted(s *session, p *partition, cl claim) {
	if cl.asked {
		m := c.message(s)
		m.Claims = append(m.Claims, &headracev1.ClaimAnswer{TaskId: cl.id[:], Token: wireToken(cl.token), Adopted: true, Epoch: p.epoch})
	}
}

// void tells an executor that its try is not the current one: it drops it, with its outcome (R15).
func (c *Core) void(s *session, p *partition, cl claim) {
	if s.closed || mutant.On("void-untold") {
		return
	}
	if !cl.asked {
		c.sendCommitted(s, cl.id, cl.token, true)
		return
	}
	m := c.message(s)
	m.Claims = append(m.Claims, &headracev1.ClaimAnswer{TaskId: cl.id[:], Token: wireToken(cl.token), Epoch: p.epoch})
}

// answerLate answers the claims that waited for a decision.
func (c *Core) answerLate(it *item) {
	late := it.late
	it.late = nil
	for _, w := range late {
		c.void(w.s, it.part, w.claim)
	}
}

// helloEnds is called when all claims of a hello are taken: what the executor holds no more of what
// this owner, or its record, says it holds, it denies. Its word counts for the partitions of which it
// knows the owner's epoch: from then on it refuses older pushes. Pushes of this very session may cross
// the hello and are not denied by it.
func (c *Core) helloEnds(s *session, in *inbound) {
	known := make(map[uint32]store.Epoch, len(in.m.Hello.Epochs))
	for _, e := range in.m.Hello.Epochs {
		known[e.Partition] = e.Epoch
	}
	for _, p := range append([]*partition(nil), c.order...) {
		if known[p.id] > p.epoch {
			c.loseBehind(p, known[p.id])
		}
	}
	first := !s.heard
	s.heard = true
	var denied []*item
	for it := s.executor.flying.first; it != nil; it = it.onExecutor.next {
		y, p := it.try, it.part
		if y.hello == in.number || !y.pushed || p.closing || y.session == s && y.claimed || !first && known[p.id] < p.epoch {
			continue
		}
		denied = append(denied, it)
	}
	if first && len(denied) > 0 {
		// While a session of that executor to this very process is open by another name, its first hello
		// leaves out what that one claims. Asked in this session, it says all.
		s.ask = true
		return
	}
	for _, it := range denied {
		c.inHand(it.part.id, it.t.ID)
		c.denied(it)
	}
	if !first { // a first hello may be without what a session by another name claims
		c.answered(s.executor, known)
	}
}
