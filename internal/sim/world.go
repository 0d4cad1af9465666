package sim

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/store/memstore"
)

// epoch is where virtual time starts.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Options narrow a run. They are the flags of the test.
type Options struct {
	Lines   int      // of the trace to keep
	Beats   bool     // tell also messages that hold nothing but a beat or its answer
	Without []string // kinds of faults that don't happen
	Only    []string // if any: only these kinds happen
}

// Result is what one seed gave.
type Result struct {
	Seed    uint64
	Failure string // "" if nothing was wrong
	Plan    string
	Trace   string // of a failure
	Events  uint64
	Virtual time.Duration
	Starts  int // of handlers
	Early   int // takeovers whose grace ended before its time (ADR 24)
}

// Run runs one seed. A seed that fails is run once more with its trace on.
func Run(seed uint64, o Options) Result {
	w := newWorld(seed, o, false)
	w.run()
	if w.failure == "" {
		return w.result()
	}
	first := w.failure
	w = newWorld(seed, o, true)
	w.run()
	r := w.result()
	r.Trace = w.trace.String() + w.stack + w.dump()
	if w.failure != first {
		r.Failure = fmt.Sprintf("not deterministic: first %q, then %q", first, w.failure)
	}
	return r
}

// world is one run.
type world struct {
	plan      *plan
	rand      *rand.Rand
	queue     queue
	now       time.Duration
	events    uint64
	trace     trace
	oracle    oracle
	store     *memstore.Store
	registry  *registry
	nodes     []*node
	executors []*executor
	streams   []*stream // in the order in which they were opened
	sessions  core.SessionID
	clients   clients
	pauses    pauses
	calm      bool            // faults have ended
	fullUntil []time.Duration // by database
	slowUntil []time.Duration
	done      bool
	failure   string
	stack     string // of a panic
}

func newWorld(seed uint64, o Options, traced bool) *world {
	w := &world{rand: rand.New(rand.NewPCG(seed, 0x48656164)), store: memstore.New()}
	w.plan = newPlan(seed, w.rand, o.Without, o.Only)
	w.trace = trace{on: traced, beats: o.Beats, most: max(o.Lines, 1)}
	w.oracle = newOracle(w)
	w.registry = newRegistry(w)
	w.fullUntil, w.slowUntil = make([]time.Duration, w.plan.databases), make([]time.Duration, w.plan.databases)
	for i := range w.plan.nodes {
		w.nodes = append(w.nodes, newNode(w, i))
	}
	for i := range w.plan.executors {
		w.executors = append(w.executors, newExecutor(w, i))
	}
	return w
}

// run plays the plan to its end, or to the first failure.
func (w *world) run() {
	defer func() {
		for _, n := range w.nodes {
			n.stopped() // its coroutines, too
		}
	}()
	defer func() {
		if r := recover(); r != nil {
			if w.failure == "" {
				w.fail("panic: %v", r)
				w.stack = shortStack()
			}
		}
	}()
	for _, n := range w.nodes {
		n.start()
	}
	for _, x := range w.executors {
		x.start()
	}
	w.clients.begin(w)
	w.pauses.begin(w)
	w.beginFaults()
	w.beginDrift()
	w.after(w.plan.busy, w.calmDown)
	for w.failure == "" && !w.done && len(w.queue.events) > 0 {
		e := w.queue.pop()
		w.now = e.at
		w.events++
		if w.events > 1_000_000 {
			w.fail("livelock: %d events", w.events)
		}
		e.run()
	}
	if w.failure == "" && !w.done {
		w.fail("nothing left to happen")
	}
}

func (w *world) result() Result {
	return Result{Seed: w.plan.seed, Failure: w.failure, Plan: w.plan.String(), Events: w.events, Virtual: w.now, Starts: w.oracle.starts, Early: w.oracle.early}
}

// dump shows the cores as they are at the end.
func (w *world) dump() string {
	var b strings.Builder
	for _, n := range w.nodes {
		if n.up {
			fmt.Fprintf(&b, "--- %s\n%s", n.name, n.core.Dump())
		}
	}
	return b.String()
}

// fail notes what is wrong and ends the run. The first failure counts.
func (w *world) fail(format string, args ...any) {
	if w.failure == "" {
		w.failure = fmt.Sprintf(format, args...)
		w.log("", "FAILURE", "%s", w.failure)
	}
}

func (w *world) log(who, what, format string, args ...any) {
	if w.trace.on {
		w.trace.line(w.now, who, what, format, args...)
	}
}

// time is the world's time, which is the database's and the nodes'.
func (w *world) time() time.Time { return epoch.Add(w.now) }

// after schedules something that no process does: the network, etcd, a database.
func (w *world) after(d time.Duration, run func()) { w.queue.push(w.now+max(d, 0), run) }

// around draws an exponential duration with a mean, at most ten times as long.
func (w *world) around(mean time.Duration) time.Duration {
	return min(time.Duration(w.rand.ExpFloat64()*float64(mean)), 10*mean)
}

// between draws a duration in [low, high).
func (w *world) between(low, high time.Duration) time.Duration {
	return low + time.Duration(w.rand.Int64N(int64(high-low)))
}

// chance is true with probability one in n.
func (w *world) chance(n int) bool { return w.rand.IntN(n) == 0 }

// faulty reports whether a kind of fault may happen now.
func (w *world) faulty(kind string) bool { return !w.calm && w.plan.faults[kind] }
