package executor

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/headrace/headrace/executor/engine"
	"github.com/headrace/headrace/internal/clock"
	"github.com/headrace/headrace/internal/grpcx"
	"github.com/headrace/headrace/internal/version"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

// loop is the shell around the engine: it turns what arrives into calls, and effects into handlers and
// messages. It never waits for the network or for a handler.
type loop struct {
	x         *Executor
	base      context.Context // of all handlers
	functions []*registration
	bootstrap []string // configured addresses
	box       box
	pool      *pool
	wg        sync.WaitGroup // goroutines of nodes and of the directory

	// Run's goroutine only.
	clock   *clock.Clock
	now     time.Time
	engine  *engine.Engine
	events  events // being worked on
	starts  []*call
	streams map[engine.SessionID]*stream
	nodes   map[string]*node // by key, see follow
	conns   map[string]*conn
	ctx     context.Context // of everything on the network
	drains  bool
}

// closePatience is how long the end of Run waits for nodes to close their side of the streams.
const closePatience = 200 * time.Millisecond

func newLoop(x *Executor, base context.Context, sh share) *loop {
	l := &loop{
		x: x, base: base, functions: sh.functions, bootstrap: grpcx.Addrs(x.cfg.Addr),
		box:     box{wake: make(chan struct{}, 1)},
		clock:   clock.New(),
		streams: make(map[engine.SessionID]*stream),
		nodes:   make(map[string]*node),
		conns:   make(map[string]*conn),
	}
	l.pool = newPool(l.box.ended)
	cfg := engine.Config{ExecutorID: sh.id, Name: sh.name, Slots: sh.slots, Labels: x.cfg.Labels, SDKVersion: "go/" + version.String()}
	for _, f := range sh.functions {
		d := f.declaration()
		d.Cost = min(d.Cost, uint32(sh.slots))
		if b := sh.bands(f); b != allBands {
			d.Bands = b
		}
		cfg.Functions = append(cfg.Functions, d)
	}
	l.engine = engine.New(cfg)
	return l
}

// run is Executor.Run once everything is checked; done ends it.
func (l *loop) run(done <-chan struct{}) error {
	ctx, cancel := context.WithCancel(l.base)
	l.ctx = ctx
	timer := time.NewTimer(0)
	defer timer.Stop()
	defer l.close(cancel)
	if err := l.connect(); err != nil {
		return err
	}
	draining, hurry := l.x.draining, l.x.hurry
	for {
		select {
		case <-l.box.wake:
		case <-timer.C:
		case <-done:
			done = nil
			l.drain(l.x.cfg.DrainTimeout)
		case <-draining:
			draining = nil
			l.drain(l.x.cfg.DrainTimeout)
		case <-hurry:
			hurry = nil
			l.drain(0)
		}
		// Let the handlers that were just started go first: what is short ends now, and its outcome joins
		// this round's message. With few slots that saves a third of the CPU a task.
		runtime.Gosched()
		l.now = l.clock.Now()
		l.work()
		if drained, unfinished := l.engine.Drained(); drained {
			if unfinished > 0 {
				return fmt.Errorf("%w: %d tries still run or are not confirmed", ErrUnfinished, unfinished)
			}
			return nil
		}
		if next := l.engine.Next(); !next.IsZero() {
			timer.Reset(max(0, next.Sub(l.now)))
		} else {
			timer.Reset(time.Second)
		}
	}
}

// work takes what has arrived through the engine, and what comes out of it to where it belongs.
func (l *loop) work() {
	l.events = l.box.take(l.events)
	e := &l.events
	for i := range e.reports { // before the ends: a try's last words
		l.reported(e.reports[i])
	}
	for i := range e.ended {
		l.ended(e.ended[i].call, e.ended[i].result)
	}
	for i := range e.sent {
		l.engine.Recycle(e.sent[i].message)
		l.engine.Sent(e.sent[i].stream.id)
	}
	for i := range e.received {
		l.received(e.received[i].stream, e.received[i].message)
	}
	l.effects() // before streams go: tries that just came need theirs
	for i := range e.calls {
		e.calls[i]()
	}
	e.reset()
	l.engine.Tick(l.now)
	l.effects()
	for _, s := range l.streams { // order does not matter: each has its own messages
		l.send(s)
	}
	l.retire()
}

// effects does what the engine asks for.
func (l *loop) effects() {
	fx := l.engine.Take()
	if fx == nil {
		return
	}
	log := l.x.cfg.Logger
	for _, t := range fx.Start {
		l.starts = append(l.starts, l.newCall(t))
	}
	if len(l.starts) > 0 {
		l.x.running.Add(int64(len(l.starts)))
		l.pool.start(l.starts)
		clear(l.starts)
		l.starts = l.starts[:0]
	}
	for _, c := range fx.Cancel {
		cause := causes[c.Cause]
		if c.Reason != "" {
			cause = fmt.Errorf("%w: %s", cause, c.Reason)
		}
		c.Try.Data.(*call).end(cause)
	}
	for _, t := range fx.Overdue {
		log.Warn("handler does not stop; it keeps its slot", "task", t.ID.String(), "tenant", t.Push.Tenant, "function", t.Push.Function, "attempt", t.Push.Attempt)
	}
	if n := len(fx.Void); n > 0 {
		t := fx.Void[0]
		f := l.functions[t.Function]
		log.Warn("outcomes refused as stale: somebody else runs these tasks", "count", n, "first", t.ID.String(), "tenant", f.tenant, "function", f.name)
	}
	for _, id := range fx.GoingAway {
		if s := l.streams[id]; s != nil {
			log.Info("node is going away", "node", s.node.name)
		}
	}
	for _, id := range fx.Close {
		if s := l.streams[id]; s != nil {
			s.cancel()
		}
	}
}

// newCall prepares a try for the pool.
func (l *loop) newCall(t *engine.Try) *call {
	p := t.Push
	c := &call{
		Task: Task{
			ID: t.ID, Token: t.Token, Tenant: p.Tenant, Function: p.Function, Attempt: int(p.Attempt), ClientID: p.ClientId,
			Payload: p.Payload, ContentType: p.ContentType, Labels: p.Labels, Checkpoint: p.Checkpoint,
			TraceParent: p.TraceParent, TraceState: p.TraceState,
		},
		loop: l, try: t, reg: l.functions[t.Function],
	}
	if !t.TimeoutAt.IsZero() {
		c.deadline = time.Now().Add(t.TimeoutAt.Sub(t.StartedAt))
	}
	if p.Fetch {
		c.node = l.streams[t.Session].node
	}
	t.Data = c
	return c
}

// ended frees a try's slot.
func (l *loop) ended(c *call, r engine.Result) {
	l.x.running.Add(-1)
	if r.Class == task.ClassNone {
		l.x.succeeded.Add(1)
	} else {
		l.x.failed.Add(1)
	}
	l.engine.Ended(l.now, c.try, r)
}

// received takes one message of a node.
func (l *loop) received(s *stream, m *headracev1.SessionResponse) {
	if m.Welcome != nil && !s.welcomed {
		s.welcomed = true
		l.x.sessions.Add(1)
		l.x.cfg.Logger.Info("session open", "node", s.node.name, "partitions", len(m.Welcome.Epochs))
		l.x.welcomed.Do(func() { close(l.x.ready) })
	}
	s.heardAt = l.now
	l.engine.Receive(l.now, s.id, m)
	<-s.inbox
}

// drain starts the end.
func (l *loop) drain(window time.Duration) {
	l.now = l.clock.Now()
	if !l.drains {
		l.drains = true
		l.x.cfg.Logger.Info("draining", "running", l.engine.Running(), "timeout", window)
	}
	l.engine.Drain(l.now, max(0, window), confirmTimeout)
}

// close ends everything on the network and all idle goroutines, in the loop's goroutine. Handlers that have not returned by now
// are not waited for; what they return goes nowhere.
func (l *loop) close(cancel context.CancelFunc) {
	for _, s := range l.streams {
		s.finish()
	}
	ended := make(chan struct{})
	go func() {
		l.wg.Wait()
		close(ended)
	}()
	// A node that was told of the end closes its side; a dead one does not.
	patience := time.NewTimer(closePatience)
	defer patience.Stop()
	for open := true; open; {
		select {
		case <-ended:
			open = false
		case <-patience.C:
			cancel()
		case <-l.box.wake: // streams say goodbye
			l.events = l.box.take(l.events)
			for i := range l.events.received {
				<-l.events.received[i].stream.inbox
			}
			for _, f := range l.events.calls {
				f()
			}
			l.events.reset()
			for _, s := range l.streams { // one that was just opened
				s.finish()
			}
		}
	}
	cancel()
	l.pool.close()
	if l.engine.Running() == 0 {
		l.pool.wg.Wait()
	}
	for _, c := range l.conns {
		_ = c.close()
	}
}
