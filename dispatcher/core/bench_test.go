package core

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// BenchmarkCore measures the whole cycle of a task in the core: submit, commit, push, ack, outcome,
// commit. The store says yes at once; ten executors take everything. Only time inside the core counts.
// It reports the core's time a task and the loop's busy ratio at 60,000 tasks a second. With limits, each tenant has three
// functions of one downstream with a limit, and tenants and functions have bounds of tries and of starts, some of which hold
// tasks back.
func BenchmarkCore(b *testing.B) {
	for _, bench := range []struct {
		tenants, functions, submit int
		limits                     bool
	}{{1, 1, 100, false}, {1000, 1, 100, false}, {1000, 3, 100, false}, {1000, 3, 100, true}, {1000, 1, 1, false}, {1000, 3, 1, true}} {
		name := fmt.Sprintf("tenants=%d/flows=%d/submit=%d", bench.tenants, bench.tenants*bench.functions, bench.submit)
		if bench.limits {
			name += "/limits"
		}
		b.Run(name, func(b *testing.B) {
			benchmarkCycle(b, bench.tenants, bench.functions, bench.submit, bench.limits)
		})
	}
}

type benchNode struct {
	core    *Core
	now     time.Time
	in      time.Duration // time inside the core
	clock   time.Duration // what looking at the clock costs
	acks    map[SessionID]*headracev1.SessionRequest
	credit  map[SessionID]uint64
	commits []*Commit
	ended   int
}

func (n *benchNode) call(f func()) {
	t := cpuTime()
	f()
	n.in += cpuTime() - t - n.clock
}

// cpuTime is what this thread has used: others may want the machine, too.
func cpuTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		panic(err)
	}
	return time.Duration(ts.Nano())
}

func benchmarkCycle(b *testing.B, tenants, flows, size int, limits bool) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const executors, partitions, wave = 10, 8, 2000
	r := rand.New(rand.NewPCG(1, 2))
	n := &benchNode{core: New(Config{Random: r.Uint64}), now: began, acks: map[SessionID]*headracev1.SessionRequest{}, credit: map[SessionID]uint64{}}
	n.core.Trust(began.Add(24 * time.Hour))
	for p := range uint32(partitions) {
		n.core.Acquired(n.now, Acquired{Epoch: 1, RaisedAt: n.now, Recovered: &store.Recovered{Partition: store.Partition{ID: p}}})
	}
	names := make([]string, tenants)
	var functions []*headracev1.FunctionDeclaration
	for i := range names {
		names[i] = fmt.Sprintf("tenant%d", i)
		bounds := []task.Bound{{Concurrency: 20, Rate: 100_000}}
		for k := range flows {
			f := &headracev1.FunctionDeclaration{Tenant: names[i], Name: fmt.Sprint("f", k)}
			if limits {
				f.Downstream = "d"
				bounds = append(bounds, task.Bound{Function: f.Name, Concurrency: 10, Rate: 50_000})
			}
			functions = append(functions, f)
		}
		if limits {
			n.core.SetBounds(n.now, names[i], bounds)
			n.core.SetLimits(n.now, names[i], []task.Limit{{Downstream: "d", Min: 30, Max: 100}})
		}
	}
	for s := range SessionID(executors) {
		id := task.NewID(1, uint64(s), 0)
		if err := n.core.OpenSession(n.now, s+1, &headracev1.Hello{ExecutorId: id[:], Slots: 1000, Functions: functions}); err != nil {
			b.Fatal(err)
		}
		n.credit[s+1] = 400
		_ = n.core.Message(n.now, s+1, &headracev1.SessionRequest{Credit: 400, Beat: &headracev1.Beat{Number: 1}})
	}
	n.turn(b)
	n.in = 0
	for range 10_000 {
		n.call(func() {})
	}
	n.clock = n.in / 10_000
	payload := make([]byte, 200)
	hash, next, done, beats := "", 0, 0, uint64(1)
	n.in, n.ended = 0, 0
	b.ReportAllocs()
	b.ResetTimer()
	for done = 0; done < b.N; done += wave {
		n.now = n.now.Add(wave * time.Second / 60_000)
		if beat := n.now.Sub(began) / (300 * time.Millisecond); uint64(beat) > beats {
			beats = uint64(beat)
			for s := range n.credit {
				_ = n.core.Message(n.now, s, &headracev1.SessionRequest{Beat: &headracev1.Beat{Number: beats}})
			}
		}
		for k := 0; k < wave; k += size {
			tasks := make([]*store.Task, size)
			for i := range tasks {
				tasks[i] = &store.Task{Tenant: names[next%tenants], Function: fmt.Sprint("f", next/tenants%flows), Payload: payload, PayloadHash: hash, Band: task.Band(next / tenants % flows % task.Bands), Priority: 5, DueAt: n.now, FirstDueAt: n.now}
			}
			s := &Submit{Reply: ReplyID(done + k), Tenant: names[next%tenants], Partition: uint32(next % partitions), Tasks: tasks}
			next++
			n.call(func() { n.core.Submit(n.now, s) })
		}
		for n.ended < done+wave {
			n.turn(b)
		}
	}
	b.StopTimer()
	perTask := float64(n.in.Nanoseconds()) / float64(done) / 1000
	b.ReportMetric(perTask, "core-µs/task")
	b.ReportMetric(perTask*60_000/1e6, "busy-at-60k")
	if err := n.core.Check(); err != nil {
		b.Fatal(err)
	}
}

// turn is one round of the shell: effects out, answers in.
func (n *benchNode) turn(b *testing.B) {
	var fx *Effects
	n.call(func() { fx = n.core.Take() })
	if fx == nil {
		if next := n.core.Next(); !next.IsZero() && !next.After(n.now) {
			n.call(func() { n.core.Tick(n.now) })
		}
		return
	}
	for _, s := range fx.Send {
		if len(s.Message.Pushes) == 0 {
			continue
		}
		m := &headracev1.SessionRequest{}
		for _, p := range s.Message.Pushes {
			m.Acks = append(m.Acks, &headracev1.Ack{TaskId: p.TaskId, Token: p.Token})
			m.Outcomes = append(m.Outcomes, &headracev1.Outcome{TaskId: p.TaskId, Token: p.Token})
		}
		n.credit[s.Session] += uint64(len(s.Message.Pushes))
		m.Credit = n.credit[s.Session]
		n.acks[s.Session] = m
	}
	commits := append(n.commits[:0], fx.Commits...)
	reads := append([]*EpochRead(nil), fx.EpochReads...)
	if len(fx.Lost)+len(fx.Close) > 0 {
		b.Fatalf("lost %v, closed %v", fx.Lost, fx.Close)
	}
	loads := append([]*Load(nil), fx.Loads...)
	for _, c := range commits {
		for i := range c.Batch.Parts {
			for _, ch := range c.Batch.Parts[i].Changes {
				if ch.Op == store.Finish {
					n.ended++
				}
			}
		}
		rs := make([]store.PartResult, len(c.Batch.Parts))
		n.call(func() { n.core.Committed(n.now, n.now, c, rs, nil) })
	}
	for _, l := range loads {
		if l.Kind != LoadDue {
			b.Fatalf("load of kind %d", l.Kind)
		}
		n.core.Loaded(n.now, l, LoadAnswer{})
	}
	for _, r := range reads {
		epochs := make([]store.Epoch, len(r.Partitions))
		for i := range epochs {
			epochs[i] = 1
		}
		n.call(func() { n.core.EpochsRead(n.now, n.now, r, epochs, nil) })
	}
	for s := range SessionID(len(n.credit)) {
		if m := n.acks[s+1]; m != nil {
			delete(n.acks, s+1)
			n.call(func() { _ = n.core.Message(n.now, s+1, m) })
		}
	}
}
