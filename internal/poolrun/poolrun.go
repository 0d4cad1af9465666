// Package poolrun keeps as many child processes on this machine as an executor pool needs: it is `headrace pool run`.
//
//	asked once a second: how many? who is idle? ──▶ start │ SIGTERM (idle ones first) ──▶ drained │ SIGKILL after Drain
//
// A child is told its name in HEADRACE_EXECUTOR_NAME, which the SDK gives to the server: so it is known which child is
// idle. Idle children leave first; of working ones one at a time, and none is killed before its drain time is over. A
// child that ends by itself is replaced, after a pause that doubles from one second to a minute while children die
// young; from the third such death on that is told as a crash loop. While the server does not answer nobody leaves.
//
// Run owns one goroutine, and one for each child that waits for its end.
package poolrun

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/headrace/headrace/flowcontrol/elastic"
	"github.com/headrace/headrace/internal/program"
)

// Config says what to run. All is required but Memory, CPU and ScaleIn.
type Config struct {
	Path     string
	Args     []string
	Env      []string // beside HEADRACE_EXECUTOR_NAME
	Out, Err *os.File // of the children
	Name     string   // of this pool run: children are Name-1, Name-2, …
	Min, Max int
	Drain    time.Duration // from SIGTERM to SIGKILL
	ScaleIn  time.Duration // a need counts for so long; 0: leave at once
	Memory   int64         // bytes of each child; 0: any
	CPU      float64       // CPUs of each child; 0: any
	// Ask returns what is needed now.
	Ask   func(context.Context) (Answer, error)
	Event func(Event) // called by Run
}

// Answer is what the server knows of the pool.
type Answer struct {
	Desired int    // executors
	Why     string // for people
	// Order are the executors in the order of leaving. A child with reserved slots is several: NAME, and NAME:… for these.
	Order []Executor
}

// Executor is one that the server knows.
type Executor struct {
	Name string
	Idle bool
}

// Event is something that happened.
type Event struct {
	Event   string // started, draining, drained, killed, died, crash_loop, desired, unreachable, reachable
	Name    string // of the child; "": of none
	PID     int
	Desired int // of desired
	Running int // children after it, those that drain too
	Detail  string
}

// The pauses between a death and the next start.
const (
	every    = time.Second
	askMax   = 5 * time.Second
	backMin  = time.Second
	backMax  = time.Minute
	oldAge   = 30 * time.Second // a child that got this old was well
	loopFrom = 3
)

type child struct {
	name    string
	cmd     *exec.Cmd
	bound   *bounds
	began   time.Time
	drainAt time.Time // zero: it is not told to leave
	killed  bool
}

type runner struct {
	cfg      Config
	hold     elastic.Hold
	children []*child // by start
	ended    chan *child
	number   int
	young    int       // deaths in a row of children that were not old
	notUntil time.Time // no start before
	target   int
	silent   bool
}

// Run keeps children until ctx ends, then drains all of them and returns when they have ended.
func Run(ctx context.Context, cfg Config) error {
	r := &runner{cfg: cfg, ended: make(chan *child, cfg.Max), target: -1}
	tick := time.NewTicker(every)
	defer tick.Stop()
	r.step(ctx)
	for {
		select {
		case c := <-r.ended:
			r.gone(c)
		case <-tick.C:
			r.step(ctx)
		case <-ctx.Done():
			r.drainAll()
			return nil
		}
	}
}

func (r *runner) event(e Event) {
	e.Running = len(r.children)
	r.cfg.Event(e)
}

// step asks what is needed and acts on it.
func (r *runner) step(ctx context.Context) {
	call, cancel := context.WithTimeout(ctx, askMax)
	a, err := r.cfg.Ask(call)
	cancel()
	now := time.Now()
	r.killLate(now)
	switch {
	case ctx.Err() != nil:
		return
	case err != nil && !r.silent:
		r.silent = true
		r.event(Event{Event: "unreachable", Detail: err.Error()})
	case err == nil && r.silent:
		r.silent = false
		r.event(Event{Event: "reachable"})
	}
	if err == nil {
		need := elastic.Need{Slots: float64(a.Desired), Active: a.Desired > 0}
		target := r.hold.Step(now, need, elastic.Config{Use: 1}, 1, r.cfg.ScaleIn, r.cfg.Min, r.cfg.Max)
		if target != r.target {
			r.target = target
			r.event(Event{Event: "desired", Desired: target, Detail: a.Why})
		}
	} else if r.target < r.cfg.Min {
		r.target = r.cfg.Min
	}
	if slices.ContainsFunc(r.children, func(c *child) bool { return now.Sub(c.began) >= oldAge }) {
		r.young = 0
	}
	staying := 0
	for _, c := range r.children {
		if c.drainAt.IsZero() {
			staying++
		}
	}
	for ; staying < r.target && len(r.children) < r.cfg.Max && !now.Before(r.notUntil); staying++ {
		if err := r.start(now); err != nil {
			r.died(now, Event{Detail: err.Error()}, 0)
			break
		}
	}
	if err == nil {
		r.leave(now, a, staying-r.target)
	}
}

// leave has the n children go that have least to lose.
func (r *runner) leave(now time.Time, a Answer, n int) {
	rank := func(c *child) int { // its place; who is not known to the server comes behind the idle ones
		at, works := len(a.Order), false
		for i, x := range a.Order {
			if x.Name == c.name || strings.HasPrefix(x.Name, c.name+":") { // the latter: slots that it reserves
				at, works = i, works || !x.Idle
			}
		}
		if works {
			return len(a.Order) + 1 + at
		}
		return at
	}
	var staying []*child
	leaving := false
	for _, c := range r.children {
		if c.drainAt.IsZero() {
			staying = append(staying, c)
		} else {
			leaving = true
		}
	}
	slices.SortStableFunc(staying, func(x, y *child) int { return cmp.Compare(rank(x), rank(y)) })
	for _, c := range staying[:max(min(n, len(staying)), 0)] {
		if rank(c) > len(a.Order) && leaving { // it works: the one before it first, whose tasks may end it all
			return
		}
		leaving = true
		r.drain(now, c)
	}
}

func (r *runner) drain(now time.Time, c *child) {
	c.drainAt = now
	_ = c.cmd.Process.Signal(syscall.SIGTERM) // not its group: what it runs may go on; nobody if it has just ended
	r.event(Event{Event: "draining", Name: c.name, PID: c.cmd.Process.Pid})
}

// killLate ends those whose drain time is over.
func (r *runner) killLate(now time.Time) {
	for _, c := range r.children {
		if !c.drainAt.IsZero() && !c.killed && now.Sub(c.drainAt) >= r.cfg.Drain {
			c.killed = true
			syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL)
		}
	}
}

// start starts one child.
func (r *runner) start(now time.Time) error {
	r.number++
	c := &child{name: fmt.Sprintf("%s-%d", r.cfg.Name, r.number), began: now}
	c.cmd = exec.Command(r.cfg.Path, r.cfg.Args...)
	c.cmd.Env = append(append(os.Environ(), r.cfg.Env...), "HEADRACE_EXECUTOR_NAME="+c.name)
	c.cmd.Stdout, c.cmd.Stderr = r.cfg.Out, r.cfg.Err
	c.cmd.SysProcAttr = program.Child()
	if err := c.cmd.Start(); err != nil {
		return err
	}
	c.bound = bind(c.cmd.Process.Pid, r.number, r.cfg.Memory, r.cfg.CPU)
	r.children = append(r.children, c)
	go func() {
		_ = c.cmd.Wait() // what it says is in ProcessState
		r.ended <- c
	}()
	r.event(Event{Event: "started", Name: c.name, PID: c.cmd.Process.Pid, Detail: c.bound.how})
	return nil
}

// gone takes a child out that has ended.
func (r *runner) gone(c *child) {
	now := time.Now()
	syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL) // what it left behind
	c.bound.release()
	r.children = slices.DeleteFunc(r.children, func(o *child) bool { return o == c })
	e := Event{Name: c.name, PID: c.cmd.Process.Pid, Detail: c.cmd.ProcessState.String()}
	switch {
	case c.killed:
		e.Event = "killed"
	case !c.drainAt.IsZero():
		e.Event = "drained"
	default:
		r.died(now, e, now.Sub(c.began))
		return
	}
	r.event(e)
}

// died counts a death that nobody asked for, and says how long nobody is started.
func (r *runner) died(now time.Time, e Event, age time.Duration) {
	if r.young++; age >= oldAge {
		r.young = 1
	}
	pause := backMin
	for i := 1; i < r.young && pause < backMax; i++ {
		pause = min(2*pause, backMax)
	}
	r.notUntil = now.Add(pause)
	e.Event = "died"
	if r.young >= loopFrom {
		e.Event = "crash_loop"
		e.Detail = fmt.Sprintf("%s; %d children in a row died young", e.Detail, r.young)
	}
	e.Detail += fmt.Sprintf("; the next start is in %v", pause)
	r.event(e)
}

// drainAll tells all children to leave and waits for their end.
func (r *runner) drainAll() {
	now := time.Now()
	for _, c := range r.children {
		if c.drainAt.IsZero() {
			r.drain(now, c)
		}
	}
	tick := time.NewTicker(every / 10)
	defer tick.Stop()
	for len(r.children) > 0 {
		select {
		case c := <-r.ended:
			r.gone(c)
		case <-tick.C:
			r.killLate(time.Now())
		}
	}
}
