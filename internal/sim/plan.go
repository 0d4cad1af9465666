package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/task"
)

// The kinds of faults that a plan draws from.
const (
	faultNodeCrash  = "node-crash"  // kill -9 of a node; it starts again
	faultNodePause  = "node-pause"  // SIGSTOP of a node
	faultExecCrash  = "exec-crash"  // kill -9 of an executor; another starts under its name
	faultExecPause  = "exec-pause"  // SIGSTOP of an executor and its handlers
	faultCut        = "cut"         // a stream ends: messages are lost or still arrive late
	faultSplit      = "split"       // an executor can't reach a node for a while
	faultIsolate    = "isolate"     // a node can't reach databases, etcd or both, and some executor nobody else
	faultPeers      = "peers"       // two nodes can't reach each other
	faultStall      = "stall"       // a stream delivers nothing for a while, then everything
	faultLostAnswer = "lost-answer" // a submitter's call or answer is lost: it tries again
	faultUnknown    = "unknown"     // commits whose outcome nobody tells
	faultHeld       = "held"        // a commit is held up on its way
	faultFull       = "full"        // the disk is full for a while
	faultSlow       = "slow"        // the database stalls
	faultRead       = "read"        // reads fail
	faultMove       = "move"        // partitions change their owner in order
	faultLease      = "lease"       // keep-alives are lost, leases revoked: a node loses its keys while it runs
	faultRegistry   = "registry"    // nobody reaches etcd
	faultWatch      = "watch"       // nodes hear late of what changes in etcd
	faultDrain      = "drain"       // nodes and executors shut down in order
	faultRules      = "rules"       // tasks are paused and resumed
	faultCancel     = "cancel"      // tasks are cancelled
	faultFail       = "fail"        // handlers fail, finally too
	faultThrottle   = "throttle"    // handlers throttle and snooze
	faultHang       = "hang"        // handlers outlive their timeout
	faultStubborn   = "stubborn"    // handlers don't obey a cancel
	faultDrift      = "drift"       // clocks are off by seconds, and their rates differ by up to 10 %
)

var faultKinds = []string{faultNodeCrash, faultNodePause, faultExecCrash, faultExecPause, faultCut, faultSplit, faultIsolate, faultPeers, faultStall, faultLostAnswer,
	faultUnknown, faultHeld, faultFull, faultSlow, faultRead, faultMove, faultLease, faultRegistry, faultWatch, faultDrain, faultRules, faultCancel, faultFail, faultThrottle,
	faultHang, faultStubborn, faultDrift}

// a functionPlan is one function with the character of its handlers.
type functionPlan struct {
	tenant, name string
	policy       task.Policy
	typical      time.Duration // of its handlers' run
	long         bool          // some of its handlers run for an hour
}

// plan is what one seed does.
type plan struct {
	seed       uint64
	nodes      int
	executors  int
	partitions int
	databases  int
	sole       bool // one node, which revokes its predecessor's lease
	roster     bool // nodes tell each other who may hold a try (ADR 24)
	slots      int
	tasks      int
	functions  []functionPlan
	busy       time.Duration // submits and faults happen in this time
	every      time.Duration // between two faults, on average
	delay      time.Duration // of a message, on average
	commit     time.Duration // of a commit, on average
	joinDelay  time.Duration // before a leader moves partitions to a new node
	bursts     bool          // tasks come in bursts
	sameName   bool          // all executors have one name
	delayed    bool          // some tasks have due times, TTLs, deadlines
	config     core.Config
	faults     map[string]bool
}

// newPlan draws a plan. Faults of the kinds in without are never drawn; with only, those and no others are.
func newPlan(seed uint64, r *rand.Rand, without, only []string) *plan {
	p := &plan{
		seed:       seed,
		nodes:      1 + r.IntN(3),
		executors:  1 + r.IntN(3),
		partitions: 1 + r.IntN(4),
		databases:  1 + r.IntN(2),
		slots:      1 + r.IntN(6),
		tasks:      5 + r.IntN(60),
		busy:       time.Duration(20+r.IntN(70)) * time.Second,
		every:      time.Duration(2+r.IntN(10)) * time.Second,
		delay:      []time.Duration{200 * time.Microsecond, 2 * time.Millisecond, 20 * time.Millisecond}[r.IntN(3)],
		commit:     []time.Duration{time.Millisecond, 5 * time.Millisecond, 40 * time.Millisecond}[r.IntN(3)],
		bursts:     r.IntN(3) == 0,
		delayed:    r.IntN(2) == 0,
		sameName:   r.IntN(4) == 0,
		faults:     map[string]bool{},
	}
	p.sole = p.nodes == 1 && r.IntN(2) == 0
	p.roster = !p.sole && r.IntN(5) > 0
	p.joinDelay = time.Duration(r.IntN(5000)) * time.Millisecond
	if p.bursts {
		p.tasks += r.IntN(200)
	}
	quiet := r.IntN(12) == 0
	for _, kind := range faultKinds {
		drawn := kind == faultRules && seed%4 == 3
		if kind != faultRules {
			drawn = r.IntN(2) == 0 && !quiet
		}
		if len(only) > 0 {
			drawn = slices.Contains(only, kind)
		}
		p.faults[kind] = drawn && !slices.Contains(without, kind)
	}
	p.config = core.Config{Slice: 256}
	if r.IntN(2) == 0 { // small windows: cursors, refills and slices at work
		p.config.WindowTasks = 1 + r.IntN(8)
		p.config.WindowBytes = 200 + r.IntN(2000)
		p.config.NodeWindowBytes = 4000 + r.IntN(20_000)
		p.config.CommitChanges = 5 + r.IntN(50)
		p.config.Slice = 8 + r.IntN(40)
		p.config.InlineBytes = 100 + r.IntN(1000)
		p.config.TimerTasks = 2 + r.IntN(20)
		p.config.TimerHorizon = time.Duration(1+r.IntN(30)) * time.Second
		p.config.SessionBytes = 500 + r.IntN(5000)
	}
	tenants := 1 + r.IntN(4)
	for t := range tenants {
		for f := range 1 + r.IntN(2) {
			p.functions = append(p.functions, p.drawFunction(r, fmt.Sprintf("t%d", t), fmt.Sprintf("f%d", f)))
		}
	}
	return p
}

func (p *plan) drawFunction(r *rand.Rand, tenant, name string) functionPlan {
	f := functionPlan{tenant: tenant, name: name,
		typical: []time.Duration{5 * time.Millisecond, 300 * time.Millisecond, 4 * time.Second, 40 * time.Second}[r.IntN(4)]}
	f.policy = task.Policy{
		Version:     1,
		MaxAttempts: 1 + r.IntN(4),
		Backoff:     task.Backoff{Base: time.Duration(1+r.IntN(3000)) * time.Millisecond, Factor: 2, Max: 20 * time.Second},
		Exclusive:   r.IntN(3) == 0,
	}
	if r.IntN(3) == 0 {
		f.policy.OrphanTimeout = time.Duration(10+r.IntN(50)) * time.Second
	}
	if r.IntN(4) == 0 || p.faults[faultHang] && r.IntN(2) == 0 {
		f.policy.Timeout = f.typical*2 + time.Duration(r.IntN(5000))*time.Millisecond
	}
	if r.IntN(3) == 0 {
		f.policy.CancelGrace = time.Duration(2+r.IntN(20)) * time.Second
	}
	f.long = f.policy.Timeout == 0 && r.IntN(60) == 0
	return f
}

// database returns the one that holds a partition.
func (p *plan) database(partition uint32) core.Database {
	return core.Database(int(partition) % p.databases)
}

// skew is by how much two processes' clocks may differ.
func (p *plan) skew() time.Duration {
	if p.faults[faultDrift] {
		return 2 * clockSkew
	}
	return 0
}

// least is what a duration by a process's clock is in the world's time, at least.
func (p *plan) least(d time.Duration) time.Duration {
	if p.faults[faultDrift] {
		return time.Duration(float64(d) / (1 + driftMost) * 0.999)
	}
	return d * 999 / 1000
}

// patience is how long a handler of that function may take to obey, and its process may stand still, before
// two may run at once: what R7 leaves of the orphan timeout, less what clocks differ.
func (p *plan) patience(f *task.Policy) time.Duration {
	o := min(f.WithDefaults().OrphanTimeout, task.DefaultOrphanTimeout)
	left := o / 5
	if p.faults[faultDrift] {
		left = o * 11 / 100
	}
	return min(max(left-600*time.Millisecond, 50*time.Millisecond), 3*time.Second)
}

func (p *plan) String() string {
	var on []string
	for _, kind := range faultKinds {
		if p.faults[kind] {
			on = append(on, kind)
		}
	}
	return fmt.Sprintf("%d nodes, %d executors × %d slots, %d partitions in %d databases, %d tasks of %d functions in %v, faults: %s",
		p.nodes, p.executors, p.slots, p.partitions, p.databases, p.tasks, len(p.functions), p.busy, strings.Join(on, " "))
}
