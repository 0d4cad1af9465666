package sim

import (
	"errors"
	"time"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/executor/engine"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

// pipe is one direction of a stream. Messages arrive in order or not at all.
type pipe struct {
	w       *world
	to      *process
	life    int // of that process
	queue   [][]byte
	lastAt  time.Duration // when the newest arrives
	stalled time.Duration // nothing arrives before this
	limit   int           // how many more may arrive; -1: all
	deliver func(message []byte)
}

func (p *pipe) send(message []byte) {
	if p.limit == 0 {
		return // into the void: the sender has not noticed yet
	}
	p.queue = append(p.queue, message)
	p.lastAt = max(p.lastAt, p.stalled, p.w.now+p.w.around(p.w.plan.delay))
	p.w.on(p.to, p.lastAt-p.w.now, func() {
		if len(p.queue) == 0 || p.limit == 0 || p.to.life != p.life {
			return
		}
		next := p.queue[0]
		p.queue = p.queue[1:]
		p.limit--
		p.deliver(next)
	})
}

// cut loses what is on its way, but for some of the first messages, which may take their time.
func (p *pipe) cut() {
	if p.limit != 0 {
		p.limit = p.w.rand.IntN(len(p.queue) + 1)
	}
}

// stream is one session between a node and an executor. Each end learns by itself that it has ended.
type stream struct {
	w           *world
	id          core.SessionID   // the node's name for it
	session     engine.SessionID // the executor's
	n           *node
	x           *executor
	nodeLife    int
	execLife    int
	up, down    *pipe // to the node, to the executor
	nodeOpen    bool  // the node's end is open
	execOpen    bool
	closing     bool     // the core wants it closed
	outbox      [][]byte // taken from the core, not yet written
	beatsSentAt []time.Duration
}

// open connects an executor to a node.
func (x *executor) open(n *node) {
	w := x.w
	w.sessions++
	st := &stream{w: w, id: w.sessions, n: n, x: x, nodeLife: n.life, execLife: x.life, nodeOpen: true, execOpen: true}
	st.up = &pipe{w: w, to: &n.process, life: n.life, limit: -1, deliver: st.atNode}
	st.down = &pipe{w: w, to: &x.process, life: x.life, limit: -1, deliver: st.atExecutor}
	st.session = x.engine.Open(x.clock(w.now), n.name)
	w.streams = append(w.streams, st)
	x.streams[st.session] = st
	n.streams[st.id] = st
	w.log(x.name, "open", "session %d to %s", st.id, n.name)
}

// toNode sends what the engine gave.
func (st *stream) toNode(m *headracev1.SessionRequest) {
	if m.Beat != nil {
		st.beatsSentAt = append(st.beatsSentAt, st.w.now)
	}
	if st.w.trace.on && (st.w.trace.beats || m.SizeVT() > m.Beat.SizeVT()+2 || m.Beat == nil) {
		st.w.log(st.x.name, "says", "%d: %s", st.id, requestText(m))
	}
	st.w.oracle.said(st.x, m)
	b, err := m.MarshalVT()
	if err != nil {
		st.w.fail("marshal: %v", err)
	}
	st.up.send(b)
}

// toExecutor writes what the core gave: some time after it was taken, if the process is stopped between.
func (st *stream) toExecutor(m *headracev1.SessionResponse) {
	if !st.nodeOpen {
		return
	}
	b, err := m.MarshalVT()
	if err != nil {
		st.w.fail("marshal: %v", err)
	}
	if st.w.trace.on && (st.w.trace.beats || m.SizeVT() > m.BeatAnswer.SizeVT()+2 || m.BeatAnswer == nil) {
		st.w.log(st.n.name, "says", "%d: %s", st.id, responseText(m))
	}
	st.outbox = append(st.outbox, b)
	st.w.on(&st.n.process, st.w.around(50*time.Microsecond), func() {
		next := st.outbox[0]
		st.outbox = st.outbox[1:]
		st.down.send(next)
	})
}

func (st *stream) atNode(b []byte) {
	if !st.nodeOpen || st.closing {
		return
	}
	m := new(headracev1.SessionRequest)
	if err := m.UnmarshalVT(b); err != nil {
		st.w.fail("unmarshal: %v", err)
	}
	n := st.n
	var err error
	n.call("message", func(now time.Time) {
		if !n.opened[st.id] {
			n.opened[st.id] = true
			if err = n.core.OpenSession(now, st.id, m.Hello); err != nil {
				return
			}
			m.Hello = nil
		}
		err = n.core.Message(now, st.id, m)
	})
	if field := (*task.FieldError)(nil); errors.As(err, &field) {
		st.w.fail("%s: session %d of %s: %v", n.name, st.id, st.x.name, err)
	} else if err != nil { // replaced by a newer one
		st.closeByNode()
	}
}

func (st *stream) atExecutor(b []byte) {
	if !st.execOpen && !st.w.chance(2) {
		return
	}
	// What is still read from a session that was replaced reaches the engine, which has to ignore it.
	m := new(headracev1.SessionResponse)
	if err := m.UnmarshalVT(b); err != nil {
		st.w.fail("unmarshal: %v", err)
	}
	if st.execOpen {
		st.w.oracle.delivered(st, m)
	}
	st.x.call(func(now time.Time) { st.x.engine.Receive(now, st.session, m) })
}

// cut ends the stream by the network's hand. The ends find out after a while each, or never within this life.
func (st *stream) cut() {
	st.up.cut()
	st.down.cut()
	w := st.w
	notice := func() time.Duration {
		if w.chance(4) {
			return w.between(0, 10*time.Second)
		}
		return w.around(20 * time.Millisecond)
	}
	w.on(&st.n.process, notice(), st.endNode) // which look at the life
	w.on(&st.x.process, notice(), st.endExecutor)
}

// closeByNode ends the stream in order: what was written before arrives.
func (st *stream) closeByNode() {
	w := st.w
	st.closing = true
	w.on(&st.n.process, 0, st.endNode)
	w.on(&st.x.process, w.around(w.plan.delay)+max(st.down.lastAt-w.now, 0), st.endExecutor)
}

// closeByExecutor is the same from the other end.
func (st *stream) closeByExecutor() {
	w := st.w
	st.endExecutor()
	w.on(&st.n.process, w.around(w.plan.delay)+max(st.up.lastAt-w.now, 0), st.endNode)
}

func (st *stream) endNode() {
	if !st.nodeOpen || st.n.life != st.nodeLife {
		return
	}
	st.nodeOpen = false
	n := st.n
	delete(n.streams, st.id)
	n.w.log(n.name, "closed", "session %d of %s", st.id, st.x.name)
	if n.opened[st.id] {
		delete(n.opened, st.id)
		n.call("close", func(now time.Time) { n.core.CloseSession(now, st.id) })
	}
}

func (st *stream) endExecutor() {
	if !st.execOpen || st.x.life != st.execLife {
		return
	}
	st.execOpen = false
	delete(st.x.streams, st.session)
	st.w.log(st.x.name, "closed", "session %d to %s", st.id, st.n.name)
	st.x.call(func(now time.Time) { st.x.engine.Closed(now, st.session) })
}

// streamsOf returns the streams of a node's or executor's present life that are open at that end, and
// forgets those that are closed at both.
func (w *world) streamsOf(n *node) (of []*stream) {
	for _, st := range w.openStreams() {
		if st.n == n {
			of = append(of, st)
		}
	}
	return of
}

func (w *world) openStreams() []*stream {
	open := w.streams[:0]
	for _, st := range w.streams {
		nodeOpen := st.nodeOpen && st.n.up && st.n.life == st.nodeLife
		execOpen := st.execOpen && st.x.up && st.x.life == st.execLife
		if nodeOpen || execOpen {
			open = append(open, st)
		}
	}
	w.streams = open
	return open
}
