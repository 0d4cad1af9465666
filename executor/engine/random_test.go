package engine

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

var flagSeed = flag.Uint64("seed", 0, "run this seed only")

// Random nodes, some of them behind the times, push, cancel, answer, repeat themselves and break off, as
// handlers end and time passes. What must hold after each step is checked by world.check and where
// effects and messages are read; once the noise stops, everything settles.
func TestRandom(t *testing.T) {
	seeds := uint64(100)
	if testing.Short() {
		seeds = 20
	}
	for seed := uint64(1); seed <= seeds; seed++ {
		if *flagSeed != 0 {
			seed = *flagSeed
		}
		if err := newWorld(seed).run(1500); err != nil {
			t.Fatalf("seed %d: %v\ngo test ./executor/engine -run TestRandom -seed=%d", seed, err, seed)
		}
		if *flagSeed != 0 {
			return
		}
	}
}

// world is everything around an engine: the truth about epochs, what runs, and what was said.
type world struct {
	r     *rand.Rand
	now   time.Time
	e     *Engine
	slots int
	err   error

	epochs   map[uint32]uint64   // newest epoch that exists of each partition
	known    map[uint32]uint64   // newest that the engine was told
	pushNo   uint64              // of tokens
	sessions map[SessionID]*peer // open ones
	started  map[key]bool        // tokens that were started
	running  map[key]*Try        // handlers
	causes   map[key][]Cause     // what they were told
	waiting  map[key]bool        // outcomes that were said and are not settled
	pushed   []pushed            // to repeat
	acked    map[key]int         // answers
	asked    map[key]int         // pushes that want one
	beats    map[SessionID][]time.Time
}

type pushed struct {
	id SessionID
	m  *headracev1.Push
}

type key struct {
	id  task.ID
	tok task.Token
}

// peer is a node's end of a session.
type peer struct {
	node   string
	credit uint64
	sent   uint64
}

func newWorld(seed uint64) *world {
	w := &world{
		r: rand.New(rand.NewPCG(seed, 1)), now: epochZero,
		epochs: map[uint32]uint64{1: 5, 2: 5, 3: 5}, known: map[uint32]uint64{}, sessions: map[SessionID]*peer{},
		started: map[key]bool{}, running: map[key]*Try{}, causes: map[key][]Cause{}, waiting: map[key]bool{},
		acked: map[key]int{}, asked: map[key]int{}, beats: map[SessionID][]time.Time{},
	}
	w.slots = 1 + w.r.IntN(8)
	w.e = New(Config{ExecutorID: [16]byte{1}, Slots: w.slots, KeptBytes: 10_000, MessageBytes: 2000, LogBytes: 1000,
		Functions: []*headracev1.FunctionDeclaration{{Tenant: "a", Name: "f"}}})
	return w
}

func (w *world) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf("at %v: %s", w.now.Sub(epochZero), fmt.Sprintf(format, args...))
	}
}

func (w *world) run(steps int) error {
	for range steps {
		w.step()
		w.effects()
		w.check()
		if w.err != nil {
			return w.err
		}
	}
	w.settle()
	return w.err
}

// pick returns a random key of m, in a way that the seed alone decides.
func pick[V any](w *world, m map[key]V) (key, bool) {
	if len(m) == 0 {
		return key{}, false
	}
	keys := make([]key, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b key) int {
		if c := a.id.Compare(b.id); c != 0 {
			return c
		}
		return a.tok.Compare(b.tok)
	})
	return keys[w.r.IntN(len(keys))], true
}

func (w *world) anySession() (SessionID, *peer) {
	ids := w.e.Sessions()
	if len(ids) == 0 {
		return 0, nil
	}
	id := ids[w.r.IntN(len(ids))]
	return id, w.sessions[id]
}

func (w *world) step() {
	switch n := w.r.IntN(100); {
	case n < 4:
		node := fmt.Sprint("n", w.r.IntN(3))
		id := w.e.Open(w.now, node)
		w.sessions[id] = &peer{node: node}
	case n < 6:
		if id, _ := w.anySession(); id != 0 {
			w.e.Closed(w.now, id)
		}
	case n < 8: // somebody acquires
		w.epochs[uint32(1+w.r.IntN(3))]++
	case n < 15:
		if id, _ := w.anySession(); id != 0 {
			w.receive(id, &headracev1.SessionResponse{Welcome: &headracev1.Welcome{Epochs: w.someEpochs()}})
		}
	case n < 45:
		if id, p := w.anySession(); id != 0 {
			w.push(id, p)
		}
	case n < 50: // a copy of an old message
		if n := len(w.pushed); n > 0 { // by the same session: it may be closed
			c := w.pushed[max(0, n-1-w.r.IntN(min(n, 30)))]
			id, m := c.id, c.m
			w.asked[keyOf(m.TaskId, m.Token)]++ // copies are acknowledged, too
			w.receive(id, &headracev1.SessionResponse{Pushes: []*headracev1.Push{m}})
		}
	case n < 65:
		if k, ok := pick(w, w.running); ok {
			w.end(k)
		}
	case n < 72:
		if k, ok := pick(w, w.waiting); ok {
			id, _ := w.anySession()
			w.receive(id, &headracev1.SessionResponse{Committed: []*headracev1.Committed{{TaskId: k.id[:], Token: wire(k.tok), Stale: w.r.IntN(4) == 0}}})
		}
	case n < 76:
		if k, ok := pick(w, w.running); ok {
			id, _ := w.anySession()
			w.receive(id, &headracev1.SessionResponse{Cancels: []*headracev1.CancelTry{{TaskId: k.id[:], Token: wire(k.tok),
				Epoch: w.someEpoch(k.id.Partition()), Cause: headracev1.CancelCause(1 + w.r.IntN(3))}}})
		}
	case n < 79:
		if k, ok := pick(w, w.started); ok {
			id, _ := w.anySession()
			w.receive(id, &headracev1.SessionResponse{Claims: []*headracev1.ClaimAnswer{{TaskId: k.id[:], Token: wire(k.tok),
				Epoch: w.someEpoch(k.id.Partition()), Adopted: w.r.IntN(2) == 0}}})
		}
	case n < 84:
		if id, _ := w.anySession(); id != 0 && len(w.beats[id]) > 0 {
			w.receive(id, &headracev1.SessionResponse{BeatAnswer: &headracev1.BeatAnswer{
				Number: uint64(1 + w.r.IntN(len(w.beats[id])+1)), Partitions: w.someEpochs()}})
		}
	case n < 87:
		if k, ok := pick(w, w.running); ok {
			t := w.running[k]
			w.e.Progress(w.now, t, 0.5, "half")
			w.e.Log(w.now, t, &headracev1.LogEntry{Message: fmt.Sprintf("%0*d", w.r.IntN(600), 1)})
			w.e.Checkpoint(w.now, t, []byte("c"))
		}
	case n < 97:
		w.advance(time.Duration(w.r.IntN(400)) * time.Millisecond)
	default:
		w.advance(time.Duration(w.r.IntN(15)) * time.Second)
	}
}

// advance moves time from one Next to the next. A clock that goes on with nothing said by Next must be
// fine; one that Next holds in place would make a loop spin.
func (w *world) advance(d time.Duration) {
	end := w.now.Add(d)
	for {
		next := w.e.Next()
		if next.IsZero() || next.After(end) {
			break
		}
		if next.Before(w.now) {
			w.fail("Next is %v ago", w.now.Sub(next))
			return
		}
		w.now = next
		w.e.Tick(w.now)
		w.effects()
	}
	w.now = end
	w.e.Tick(w.now)
	w.effects()
}

func (w *world) someEpoch(p uint32) uint64 { return w.epochs[p] - uint64(w.r.IntN(3)) }

func (w *world) someEpochs() []*headracev1.PartitionEpoch {
	var out []*headracev1.PartitionEpoch
	for p := uint32(1); p <= 3; p++ {
		if w.r.IntN(2) == 0 {
			out = append(out, &headracev1.PartitionEpoch{Partition: p, Epoch: w.someEpoch(p)})
		}
	}
	return out
}

func (w *world) push(id SessionID, p *peer) {
	w.pushNo++
	part := uint32(1 + w.r.IntN(3))
	k := key{task.NewID(part, uint64(w.r.IntN(20)), 0), task.Token{Epoch: w.someEpoch(part), Push: w.pushNo}}
	beats := uint64(len(w.beats[id]))
	m := &headracev1.Push{
		TaskId: k.id[:], Token: wire(k.tok), Tenant: "a", Function: "f", Attempt: 1, Beat: beats,
		TimeoutMicros: w.r.Int64N(2) * w.r.Int64N(5_000_000), OrphanMicros: 5_000_000 + w.r.Int64N(100_000_000),
		CancelGraceMicros: 1_000_000,
	}
	if beats > 0 && w.r.IntN(3) == 0 {
		m.Beat = uint64(w.r.IntN(int(beats)))
	}
	if w.r.IntN(10) == 0 {
		m.Function = "unknown"
	}
	if p.sent < p.credit {
		p.sent++ // else the node cheats
	}
	w.asked[k]++
	w.pushed = append(w.pushed, pushed{id, m})
	w.receive(id, &headracev1.SessionResponse{Pushes: []*headracev1.Push{m}})
}

func (w *world) receive(id SessionID, m *headracev1.SessionResponse) {
	before := w.e.session(id)
	w.e.Receive(w.now, id, m)
	if before == nil {
		for _, p := range m.Pushes {
			w.asked[keyOf(p.TaskId, p.Token)]-- // nobody is there to answer
		}
		return
	}
	for _, p := range m.Pushes {
		k := keyOf(p.TaskId, p.Token)
		if known := w.known[k.id.Partition()]; k.tok.Epoch < known {
			if _, ok := w.running[k]; !ok && w.e.held(p.TaskId, p.Token) != nil && !w.started[k] {
				w.fail("a push of epoch %d was taken, %d is known", k.tok.Epoch, known)
			}
		}
	}
	for _, c := range m.Committed {
		if k := keyOf(c.TaskId, c.Token); w.e.held(c.TaskId, c.Token) == nil {
			delete(w.waiting, k)
		} else if _, runs := w.running[k]; !runs {
			w.fail("%v is committed and still held", k)
		}
	}
	for n, p := range w.e.parts {
		if p.epoch < w.known[n] {
			w.fail("the epoch of partition %d fell from %d to %d", n, w.known[n], p.epoch)
		}
		w.known[n] = p.epoch
	}
}

func (w *world) end(k key) {
	t := w.running[k]
	delete(w.running, k)
	r := Result{Class: task.Class(w.r.IntN(5)), Body: make([]byte, w.r.IntN(3000)), Interrupted: w.r.IntN(3) == 0, Message: "m"}
	void := t.void
	w.e.Ended(w.now, t, r)
	w.e.Ended(w.now, t, r) // a second time does nothing
	if void {
		return
	}
	class := task.Class(t.outcome.ErrorClass)
	if r.Class == task.ClassNone && class != task.ClassNone || r.Class != task.ClassNone && class == task.ClassNone {
		w.fail("%v ended as %v and is reported as %v", k, r.Class, class)
	}
	if slices.Contains(w.causes[k], CauseCancelled) && w.causes[k][0] == CauseCancelled && class != task.ClassNone && class != task.CancelledClass {
		w.fail("%v was cancelled and is reported as %v", k, class)
	}
}

func (w *world) effects() {
	if fx := w.e.Take(); fx != nil {
		for _, t := range fx.Start {
			k := key{t.ID, t.Token}
			if w.started[k] {
				w.fail("%v starts twice", k)
			}
			for o := range w.running {
				if o.id == t.ID {
					w.fail("%v starts while %v runs", k, o)
				}
			}
			if t.Token.Epoch < w.known[t.ID.Partition()] {
				w.fail("%v starts, epoch %d is known", k, w.known[t.ID.Partition()])
			}
			if beat := w.beats[t.Session][t.Push.Beat-1]; w.now.Sub(beat) > ShelfLife {
				w.fail("%v starts on a beat of %v ago", k, w.now.Sub(beat))
			}
			w.started[k], w.running[k] = true, t
		}
		for _, c := range fx.Cancel {
			k := key{c.Try.ID, c.Try.Token}
			if w.running[k] == nil {
				w.fail("cancel of %v, which does not run", k)
			}
			if n := len(w.causes[k]); n > 0 && (n > 1 || c.Cause != CauseStale) {
				w.fail("%v is cancelled again: %v after %v", k, c.Cause, w.causes[k])
			}
			w.causes[k] = append(w.causes[k], c.Cause)
		}
		for _, t := range fx.Void {
			delete(w.waiting, key{t.ID, t.Token})
		}
	}
	for _, id := range w.e.Sessions() {
		for m := w.e.Message(w.now, id); m != nil; m = w.e.Message(w.now, id) {
			w.read(id, m)
			if w.e.Message(w.now, id) != nil {
				w.fail("a second message before the first is sent")
			}
			w.e.Sent(id)
		}
	}
}

func (w *world) read(id SessionID, m *headracev1.SessionRequest) {
	p := w.sessions[id]
	if m.Beat != nil {
		w.beats[id] = append(w.beats[id], w.now)
		if m.Beat.Number != uint64(len(w.beats[id])) {
			w.fail("beat %d is numbered %d", len(w.beats[id]), m.Beat.Number)
		}
	}
	if m.Credit != 0 && m.Credit <= p.credit {
		w.fail("credit fell from %d to %d", p.credit, m.Credit)
	}
	p.credit = max(p.credit, m.Credit)
	for _, a := range m.Acks {
		w.acked[keyOf(a.TaskId, a.Token)]++
	}
	said := func(o *headracev1.Outcome) {
		k := keyOf(o.TaskId, o.Token)
		if !w.started[k] || w.running[k] != nil {
			w.fail("an outcome of %v", k)
		}
		w.waiting[k] = true
	}
	for _, o := range m.Outcomes {
		said(o)
	}
	if m.Hello != nil {
		for _, c := range m.Hello.Claims {
			k := keyOf(c.TaskId, c.Token)
			if c.Outcome != nil {
				said(c.Outcome)
			} else if w.e.held(c.TaskId, c.Token) == nil {
				w.fail("claim of %v, which is not held", k)
			}
		}
	}
}

func (w *world) check() {
	if len(w.running) > w.slots || w.e.Running() != len(w.running) {
		w.fail("%d run on %d slots, the engine says %d", len(w.running), w.slots, w.e.Running())
	}
	out := 0
	for _, s := range w.e.sessions {
		out += s.outstanding()
	}
	if out+w.e.Running() > w.slots {
		w.fail("credit for %d is out, %d run, %d slots", out, w.e.Running(), w.slots)
	}
	if w.e.kept < 0 || w.e.logBytes < 0 || w.e.ended < 0 || w.e.logBytes > 1000 {
		w.fail("kept %d, log bytes %d, ended %d", w.e.kept, w.e.logBytes, w.e.ended)
	}
}

// settle: the noise stops, handlers end, one node owns everything and commits what it hears.
func (w *world) settle() {
	id := w.e.Open(w.now, "last")
	w.sessions[id] = &peer{node: "last"}
	var all []*headracev1.PartitionEpoch
	for p := uint32(1); p <= 3; p++ {
		w.epochs[p]++
		all = append(all, &headracev1.PartitionEpoch{Partition: p, Epoch: w.epochs[p]})
	}
	w.effects()
	w.receive(id, &headracev1.SessionResponse{Welcome: &headracev1.Welcome{Epochs: all}})
	for k, ok := pick(w, w.running); ok; k, ok = pick(w, w.running) {
		w.end(k)
		w.effects()
		w.check()
	}
	w.advance(40 * time.Second)
	for k, ok := pick(w, w.waiting); ok && w.err == nil; k, ok = pick(w, w.waiting) {
		w.receive(id, &headracev1.SessionResponse{Committed: []*headracev1.Committed{{TaskId: k.id[:], Token: wire(k.tok)}}})
		delete(w.waiting, k)
		w.effects()
	}
	w.advance(2 * time.Second)
	e := w.e
	if n := len(e.tries); n != 0 || e.running != 0 || e.ended != 0 || e.kept != 0 || e.logBytes != 0 || len(e.timers) != 0 || len(e.past.tokens) != 0 || len(e.past.line)-e.past.from != 0 {
		w.fail("at the end: %d tries, %d running, %d ended, %d bytes, %d of logs, %d timers", n, e.running, e.ended, e.kept, e.logBytes, len(e.timers))
	}
	for k, n := range w.asked {
		if w.acked[k] > n {
			w.fail("%v was pushed %d times and acknowledged %d times", k, n, w.acked[k])
		}
	}
}

func wire(t task.Token) *headracev1.Token { return &headracev1.Token{Epoch: t.Epoch, Push: t.Push} }

func keyOf(id []byte, t *headracev1.Token) key { return key{task.ID(id), token(t)} }
