package sim

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/headrace/headrace/executor/engine"
	"github.com/headrace/headrace/internal/mutant"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
	"google.golang.org/protobuf/types/known/durationpb"
)

// executor is the shell around one engine: what the executor SDK's runtime does, with simulated handlers.
type executor struct {
	process
	w          *world
	engine     *engine.Engine
	streams    map[engine.SessionID]*stream // open at this end
	draining   bool
	running    []*handler      // in the order of their starts
	apart      []time.Duration // from each node: until when it can't be reached
	cutAtStart bool            // of the next handler: nobody has its record then
	guide      int             // index of the node whose directory it follows
	owners     *snapshot       // that directory, as it last came
}

// handler is one run of a function.
type handler struct {
	x       *executor
	life    int
	try     *engine.Try
	run     *run // the oracle's
	plan    functionPlan
	result  engine.Result
	obeys   time.Duration // how long it takes to obey a cancel; < 0: never does
	stopped bool          // it has been told to stop
	ended   bool
}

func newExecutor(w *world, i int) *executor {
	return &executor{process: newProcess(fmt.Sprintf("x%d", i+1)), w: w, apart: make([]time.Duration, w.plan.nodes)}
}

func (x *executor) start() {
	w := x.w
	x.up, x.draining, x.tickAt, x.pausedUntil = true, false, 0, 0
	x.life++
	x.streams = map[engine.SessionID]*stream{}
	x.running = nil
	var id [16]byte
	binary.BigEndian.PutUint64(id[:], w.rand.Uint64())
	binary.BigEndian.PutUint64(id[8:], w.rand.Uint64())
	if mutant.On("same-executor-id") {
		id = [16]byte{1}
	}
	name := x.name
	if w.plan.sameName {
		name = "x"
	}
	x.engine = engine.New(engine.Config{ExecutorID: id, Name: name, Slots: w.plan.slots, Functions: w.plan.declarations()})
	w.log(x.name, "start", "life %d, id %x", x.life, id[:4])
	x.directory()
}

func (p *plan) declarations() (fs []*headracev1.FunctionDeclaration) {
	for _, f := range p.functions {
		fs = append(fs, &headracev1.FunctionDeclaration{
			Tenant: f.tenant, Name: f.name, Version: f.policy.Version,
			Timeout:       orNil(f.policy.Timeout),
			MaxAttempts:   uint32(f.policy.MaxAttempts),
			BackoffBase:   orNil(f.policy.Backoff.Base),
			BackoffFactor: f.policy.Backoff.Factor,
			BackoffMax:    orNil(f.policy.Backoff.Max),
			OrphanTimeout: orNil(f.policy.OrphanTimeout),
			CancelGrace:   orNil(f.policy.CancelGrace),
			Exclusive:     f.policy.Exclusive,
		})
	}
	return fs
}

func orNil(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

// crash is kill -9: its handlers die with it.
func (x *executor) crash() {
	if !x.up {
		return
	}
	x.w.log(x.name, "crash", "")
	x.up = false
	for _, h := range x.running {
		x.w.oracle.died(h.run)
	}
	x.running = nil
	for _, st := range x.w.openStreams() {
		if st.x == x {
			st.cut()
		}
	}
}

// directory keeps one session to each node that owns something, as far as this executor knows.
func (x *executor) directory() {
	w := x.w
	w.on(&x.process, w.between(100*time.Millisecond, 300*time.Millisecond), x.directory)
	if x.draining {
		if drained, _ := x.engine.Drained(); drained {
			w.log(x.name, "exit", "drained")
			x.crash()
			w.after(w.around(time.Second), x.start)
			return
		}
	}
	x.follow()
	for _, n := range w.nodes {
		var st *stream
		for _, s := range w.streams {
			if s.x == x && s.execLife == x.life && s.n == n && s.execOpen {
				st = s
			}
		}
		owns := false
		for p := range w.plan.partitions {
			owns = owns || x.owners.owner(uint32(p)) == n
		}
		switch {
		case st == nil && n.up && n.pausedUntil <= w.now && owns && !n.draining && w.reach(x, n):
			x.open(n)
			x.call(func(time.Time) {})
		case st != nil && !owns && x.engine.Held(st.session) == 0 && w.chance(5):
			st.closeByExecutor()
		}
	}
}

// follow takes the directory of its guide, and looks for another one when that can't be reached, or has nothing
// to say: a node that is cut off from the registry sheds its followers.
func (x *executor) follow() {
	w := x.w
	n := w.nodes[x.guide]
	if !n.up || n.pausedUntil > w.now || !w.reach(x, n) || n.membership.view == nil || n.withoutRegistry() || w.chance(50) {
		x.guide = w.rand.IntN(len(w.nodes))
		return
	}
	x.owners = n.membership.view
}

// call is one entry into the engine, with what it asks for.
func (x *executor) call(f func(now time.Time)) {
	w := x.w
	f(x.clock(w.now))
	if fx := x.engine.Take(); fx != nil {
		for _, t := range fx.Start {
			x.begin(t)
		}
		for _, c := range fx.Cancel {
			x.stop(c)
		}
		for _, t := range fx.Overdue {
			w.log(x.name, "overdue", "%s", short(t.ID))
		}
		for _, t := range fx.Void {
			w.oracle.voided(x, t)
		}
		for _, id := range fx.Close {
			if st := x.streams[id]; st != nil {
				st.execOpen = false
				delete(x.streams, id)
				w.on(&st.n.process, w.around(w.plan.delay)+max(st.up.lastAt-w.now, 0), st.endNode)
			}
		}
	}
	if len(x.running) > w.plan.slots {
		w.fail("%s runs %d handlers on %d slots", x.name, len(x.running), w.plan.slots)
	}
	for _, id := range x.engine.Sessions() {
		for {
			m := x.engine.Message(x.clock(w.now), id)
			if m == nil {
				break
			}
			x.streams[id].toNode(m)
			x.engine.Sent(id)
		}
	}
	x.arm()
}

func (x *executor) arm() {
	next := x.engine.Next()
	if next.IsZero() {
		return
	}
	at := x.w.now + x.w.when(&x.process, next)
	if x.tickAt > x.w.now && x.tickAt <= at {
		return
	}
	x.tickAt = at
	x.w.on(&x.process, at-x.w.now, func() {
		if x.tickAt == at {
			x.tickAt = 0
			x.call(x.engine.Tick)
		}
	})
}

// begin starts a handler, after it has fetched a payload that did not come along.
func (x *executor) begin(t *engine.Try) {
	w := x.w
	h := &handler{x: x, life: x.life, try: t, plan: w.plan.functions[t.Function]}
	t.Data = h
	x.running = append(x.running, h)
	h.run = w.oracle.started(x, t)
	took := h.draw()
	if st := x.streams[t.Session]; x.cutAtStart && st != nil && !w.calm {
		x.cutAtStart = false
		w.after(w.around(100*time.Millisecond), func() { w.lonely(x, st.n) })
	}
	w.log(x.name, "start", "%s %v attempt %d: %q in %v", short(t.ID), t.Token, t.Push.Attempt, h.result.Class, took)
	if t.Push.Fetch {
		h.fetch(took)
	} else {
		w.oracle.payload(t, t.Push.Payload)
		h.after(took, h.end)
	}
	if !t.TimeoutAt.IsZero() { // its context's own deadline
		h.after(w.when(&x.process, t.TimeoutAt), func() { h.interrupt(task.Retryable) })
	}
}

// after schedules something in the handler's process.
func (h *handler) after(d time.Duration, f func()) {
	h.x.w.on(&h.x.process, d, func() {
		if !h.ended {
			f()
		}
	})
}

func (h *handler) fetch(took time.Duration) {
	w := h.x.w
	h.after(w.around(w.plan.delay*2), func() {
		row, err := w.store.Get(background, h.try.ID)
		if h.stopped { // the handler's code has not begun: even a stubborn one ends
			h.result = engine.Result{Class: task.Retryable, Message: "context cancelled", Interrupted: true}
			h.end()
			return
		}
		if err != nil || row.State.Terminal() || w.faulty(faultRead) && w.chance(4) {
			h.after(300*time.Millisecond, func() { h.fetch(took) })
			return
		}
		w.oracle.payload(h.try, row.Payload)
		h.after(took, h.end)
	})
}

// draw decides what the handler will do: result, how long it takes, how it takes a cancel.
func (h *handler) draw() time.Duration {
	w, r := h.x.w, h.x.w.rand
	took := w.around(h.plan.typical)
	h.obeys = w.around(100 * time.Millisecond)
	if w.chance(4) {
		h.obeys = w.around(300 * time.Millisecond)
	}
	h.obeys = min(h.obeys, w.plan.patience(&h.plan.policy)/2)
	if w.faulty(faultStubborn) && w.chance(5) {
		h.obeys = -1
	}
	h.result = engine.Result{Class: task.ClassNone, Body: binary.BigEndian.AppendUint64(nil, r.Uint64())}
	if w.calm {
		took = min(took, 2*time.Second) // it shall come to an end
	}
	switch {
	case h.plan.long && w.chance(20) && !w.calm:
		took = time.Hour
	case w.faulty(faultHang) && w.chance(6):
		took = 5*h.plan.typical + w.between(0, 40*time.Second)
	case w.chance(20):
		took += w.between(0, 5*time.Second)
	}
	switch {
	case w.faulty(faultFail) && w.chance(30):
		h.result = engine.Result{Class: task.NonRetryable, Message: "broken for good", Explicit: true}
	case w.faulty(faultFail) && w.chance(4):
		h.result = engine.Result{Class: task.Retryable, Message: "broken"}
		if w.chance(4) {
			h.result.RetryAfter, h.result.Explicit = w.between(0, 20*time.Second), true
		}
	case w.faulty(faultThrottle) && w.chance(6):
		h.result = engine.Result{Class: task.Throttled, Message: "too much", RetryAfter: w.between(0, 10*time.Second), Explicit: true}
	case w.faulty(faultThrottle) && w.chance(6):
		h.result = engine.Result{Class: task.Snoozed, RetryAfter: w.between(time.Millisecond, 10*time.Second), Explicit: true}
	}
	return took
}

// stop is a cancel of the handler's context.
func (x *executor) stop(c engine.Cancel) {
	h := c.Try.Data.(*handler)
	x.w.log(x.name, "stop", "%s %v: %v %s", short(c.Try.ID), c.Try.Token, c.Cause, c.Reason)
	x.w.oracle.stopped(x, c)
	h.interrupt(task.Retryable)
}

// interrupt tells the handler's code to stop. It ends with its context's error, or with what it had.
func (h *handler) interrupt(class task.Class) {
	if h.ended || h.stopped {
		return
	}
	h.stopped = true
	if h.run.stoppedAt == 0 {
		h.run.stoppedAt = h.x.w.now
	}
	if h.obeys < 0 {
		h.run.stubborn = true
		return
	}
	h.after(h.obeys, func() {
		if h.x.w.rand.IntN(4) > 0 {
			h.result = engine.Result{Class: class, Message: "context cancelled", Interrupted: true}
		}
		h.end()
	})
}

// end is the return of the handler's function.
func (h *handler) end() {
	x := h.x
	h.ended = true
	for i, other := range x.running {
		if other == h {
			x.running = append(x.running[:i:i], x.running[i+1:]...)
			break
		}
	}
	x.w.oracle.ended(h)
	x.w.log(x.name, "end", "%s %v: %q", short(h.try.ID), h.try.Token, h.result.Class)
	x.call(func(now time.Time) { x.engine.Ended(now, h.try, h.result) })
}

func (x *executor) drain() {
	if x.up && !x.draining {
		x.draining = true
		window := x.w.between(0, 20*time.Second)
		x.w.log(x.name, "drain", "%v", window)
		x.call(func(now time.Time) { x.engine.Drain(now, window, 10*time.Second) })
	}
}

func equal(a, b []byte) bool { return bytes.Equal(a, b) }
