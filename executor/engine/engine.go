package engine

import (
	"fmt"
	"time"

	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

// Times of the protocol (takeover.md).
const (
	// ShelfLife is V: a push is refused when the beat it names was sent longer ago.
	ShelfLife = time.Second
	// BeatEvery is the time between two beats of a session, less than V/3.
	BeatEvery = 250 * time.Millisecond
	// reportEvery is the least time between two progress reports of a try.
	reportEvery = time.Second
	// logEvery is the least time between two batches of log lines of a try that runs.
	logEvery = 250 * time.Millisecond
	// resendEvery is after how long an outcome is sent again that was not answered.
	resendEvery = 30 * time.Second
	// timeoutSlack is how much later than a handler's own context the engine calls a timeout: it is
	// for clocks that stood still, the context's own timer has the better error.
	timeoutSlack = 100 * time.Millisecond
)

// Config describes the executor. Zero values mean the default where one is named.
type Config struct {
	ExecutorID [16]byte // random, new at each start of the process (R6)
	Name       string   // for people
	Slots      int      // tries that run at once, over all sessions; 1 to 100,000; required
	Functions  []*headracev1.FunctionDeclaration
	Labels     map[string]string // what functions may require or prefer; nobody changes it
	SDKVersion string

	MessageBytes int // results in one message, at least one; 1 MiB
	KeptBytes    int // results kept until they are committed; above it no credit is given; 64 MiB
	LogBytes     int // log lines waiting to be sent, over all tries; above it the oldest of a try go; 8 MiB
}

// SessionID names a session of this engine. It is never used again.
type SessionID uint64

// Effects is what the shell has to do, in this order. It is valid until the next Take.
type Effects struct {
	// Start holds tries to be run; each ends with one call of Ended.
	Start []*Try
	// Cancel holds handlers whose context is to be cancelled. They still hold their slot.
	Cancel []Cancel
	// Overdue holds tries whose handler did not return within its cancel grace. Each is named once.
	Overdue []*Try
	// Void holds tries whose report the owner refused as stale, or that it declared void. For the log.
	Void []*Try
	// GoingAway holds sessions whose node takes leave: look at the directory.
	GoingAway []SessionID
	// Close holds sessions that were replaced by a newer one to the same node: close their stream.
	Close []SessionID
}

// Cancel asks for a handler's context to be cancelled.
type Cancel struct {
	Try    *Try
	Cause  Cause
	Reason string // of the person who cancelled; "" otherwise
}

// Engine is the executor's state. All methods belong to one goroutine.
type Engine struct {
	cfg       Config
	functions map[functionKey]int

	tries   map[task.ID]*Try // at most one per task: running or ended
	running int              // tries in state running
	used    int              // slots that they hold
	ended   int              // tries in state ended: the outcome waits to be committed
	kept    int              // bytes of their results

	parts    map[uint32]*partition
	sessions []*session // open ones, oldest first
	last     SessionID
	grants   uint64 // of credit to sessions that wanted it

	past      past // tries that are done; none of a task that tries holds
	timers    timerHeap
	orphanAt  time.Time // next look at orphan timers
	resendAt  time.Time // next look at outcomes that were not answered
	reporting []*Try    // running tries with log lines or progress that wait
	logBytes  int

	draining bool
	cancelAt time.Time // draining: cancel what still runs
	endAt    time.Time // draining: wait no longer
	over     bool      // endAt has come

	fx, spare *Effects
	dirty     bool // fx holds something
	freeAcks  []*headracev1.Ack
}

type functionKey struct{ tenant, name string }

// New returns an engine without sessions. It panics when cfg.Slots is not 1 to 100,000, or a function
// is declared twice for a tenant: the shell checks what its user gave.
func New(cfg Config) *Engine {
	if cfg.Slots < 1 || cfg.Slots > 100_000 {
		panic(fmt.Sprintf("engine: %d slots", cfg.Slots))
	}
	cfg.MessageBytes = orDefault(cfg.MessageBytes, 1<<20)
	cfg.KeptBytes = orDefault(cfg.KeptBytes, 64<<20)
	cfg.LogBytes = orDefault(cfg.LogBytes, 8<<20)
	e := &Engine{
		cfg:       cfg,
		functions: make(map[functionKey]int, len(cfg.Functions)),
		tries:     make(map[task.ID]*Try),
		past:      past{tokens: make(map[task.ID]task.Token)},
		parts:     make(map[uint32]*partition),
		fx:        new(Effects),
		spare:     new(Effects),
	}
	for i, f := range cfg.Functions {
		k := functionKey{f.GetTenant(), f.GetName()}
		if _, ok := e.functions[k]; ok {
			panic(fmt.Sprintf("engine: function %s of tenant %s is declared twice", k.name, k.tenant))
		}
		e.functions[k] = i
	}
	return e
}

func orDefault(v, def int) int {
	if v == 0 {
		return def
	}
	return v
}

// Take returns what the calls since the last Take ask for, nil when that is nothing. The result is
// reused by the Take after the next.
func (e *Engine) Take() *Effects {
	if !e.dirty {
		return nil
	}
	fx := e.fx
	e.fx, e.spare = e.spare, fx
	clear(e.fx.Start) // drop what the shell has done, so that tries can be collected
	clear(e.fx.Cancel)
	clear(e.fx.Overdue)
	clear(e.fx.Void)
	*e.fx = Effects{
		Start: e.fx.Start[:0], Cancel: e.fx.Cancel[:0], Overdue: e.fx.Overdue[:0], Void: e.fx.Void[:0],
		GoingAway: e.fx.GoingAway[:0], Close: e.fx.Close[:0],
	}
	e.dirty = false
	return fx
}

// Drain stops taking pushes and says so in every session. What runs may go on for window; then it is
// cancelled with CauseDrained. Drained reports when everything has ended and is committed, or when
// confirm has passed since the window's end. A second call may only shorten both.
func (e *Engine) Drain(now time.Time, window, confirm time.Duration) {
	cancelAt := now.Add(window)
	endAt := cancelAt.Add(confirm)
	if e.draining {
		if e.cancelAt.Before(cancelAt) {
			cancelAt = e.cancelAt
		}
		if e.endAt.Before(endAt) {
			endAt = e.endAt
		}
	}
	e.draining, e.cancelAt, e.endAt = true, cancelAt, endAt
	e.drainTick(now)
}

// Drained reports whether a drain has come to its end; unfinished names how many tries still run or
// wait to be committed.
func (e *Engine) Drained() (drained bool, unfinished int) {
	n := e.running + e.ended
	return e.draining && (n == 0 || e.over), n
}

// Running returns how many tries hold a slot, and Unconfirmed how many outcomes wait to be committed.
func (e *Engine) Running() int { return e.running }

// Unconfirmed returns how many outcomes wait to be committed.
func (e *Engine) Unconfirmed() int { return e.ended }
