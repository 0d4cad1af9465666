package core

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// plant is a node whose store says yes at once, with executors that take what is pushed and end it after its service
// time. Time is what the ends make of it.
type plant struct {
	t       *testing.T
	core    *Core
	now     time.Time
	beat    time.Time
	credit  []uint64
	beats   uint64
	ends    ends
	service func(*headracev1.Push) time.Duration
	started func(*headracev1.Push)
	tasks   map[task.ID]*store.Task
}

type end struct {
	at      time.Time
	session SessionID
	outcome *headracev1.Outcome
}

type ends []end

func (e ends) Len() int           { return len(e) }
func (e ends) Less(i, j int) bool { return e[i].at.Before(e[j].at) }
func (e ends) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *ends) Push(v any)        { *e = append(*e, v.(end)) }
func (e *ends) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// newPlant has executors of so many slots, all of them for function f of each tenant.
func newPlant(t *testing.T, cfg Config, tenants []string, slots ...int) *plant {
	r := rand.New(rand.NewPCG(1, 2))
	cfg.Random = r.Uint64
	p := &plant{t: t, core: New(cfg), now: began, beat: began, tasks: map[task.ID]*store.Task{}, started: func(*headracev1.Push) {}}
	p.core.Trust(began.Add(1000 * time.Hour))
	p.core.Acquired(p.now, Acquired{Epoch: 1, RaisedAt: p.now, Recovered: &store.Recovered{Partition: store.Partition{ID: 1}}})
	var functions []*headracev1.FunctionDeclaration
	for _, name := range tenants {
		functions = append(functions, &headracev1.FunctionDeclaration{Tenant: name, Name: "f"})
	}
	for i, n := range slots {
		id := task.NewID(1, uint64(i), 0)
		if err := p.core.OpenSession(p.now, SessionID(i+1), &headracev1.Hello{ExecutorId: id[:], Slots: uint32(n), Functions: functions}); err != nil {
			t.Fatal(err)
		}
		p.credit = append(p.credit, uint64(n))
	}
	p.allBeat()
	p.turn()
	return p
}

func (p *plant) allBeat() {
	p.beats++
	for i, n := range p.credit {
		_ = p.core.Message(p.now, SessionID(i+1), &headracev1.SessionRequest{Credit: n, Beat: &headracev1.Beat{Number: p.beats}})
	}
}

func (p *plant) submit(tenant string, band task.Band, priority, n int) {
	s := &Submit{Tenant: tenant, Partition: 1}
	for range n {
		s.Tasks = append(s.Tasks, &store.Task{Tenant: tenant, Function: "f", Band: band, Priority: uint8(priority), DueAt: p.now, FirstDueAt: p.now})
	}
	p.core.Submit(p.now, s)
}

// turn passes effects on until there are none.
func (p *plant) turn() {
	for {
		fx := p.core.Take()
		if fx == nil {
			next := p.core.Next()
			if next.IsZero() || next.After(p.now) {
				return
			}
			p.core.Tick(p.now)
			continue
		}
		for _, m := range fx.Send {
			acks := &headracev1.SessionRequest{}
			for _, push := range m.Message.Pushes {
				acks.Acks = append(acks.Acks, &headracev1.Ack{TaskId: push.TaskId, Token: push.Token})
				p.started(push)
				heap.Push(&p.ends, end{p.now.Add(p.service(push)), m.Session, &headracev1.Outcome{TaskId: push.TaskId, Token: push.Token}})
			}
			if len(acks.Acks) > 0 {
				_ = p.core.Message(p.now, m.Session, acks)
			}
		}
		commits, reads, loads := slices.Clone(fx.Commits), slices.Clone(fx.EpochReads), slices.Clone(fx.Loads)
		for _, c := range commits {
			for i := range c.Batch.Parts {
				for _, ch := range c.Batch.Parts[i].Changes {
					if ch.Op == store.Insert {
						p.tasks[ch.Task.ID] = ch.Task
					}
				}
			}
			p.core.Committed(p.now, p.now, c, make([]store.PartResult, len(c.Batch.Parts)), nil)
		}
		for _, l := range loads {
			if l.Kind != LoadDue {
				p.t.Fatalf("load of kind %d: a flow has left its window", l.Kind)
			}
			p.core.Loaded(p.now, l, LoadAnswer{})
		}
		for _, r := range reads {
			epochs := make([]store.Epoch, len(r.Partitions))
			for i := range epochs {
				epochs[i] = 1
			}
			p.core.EpochsRead(p.now, p.now, r, epochs, nil)
		}
	}
}

// until lets time pass: tries end, and what they leave is used.
func (p *plant) until(at time.Time) {
	for {
		next := at
		if b := p.beat.Add(250 * time.Millisecond); b.Before(next) {
			next = b
		}
		if len(p.ends) > 0 && p.ends[0].at.Before(next) {
			next = p.ends[0].at
		}
		p.now = next
		if next.Sub(p.beat) >= 250*time.Millisecond {
			p.beat = next
			p.allBeat()
		}
		for len(p.ends) > 0 && !p.ends[0].at.After(next) {
			e := heap.Pop(&p.ends).(end)
			p.credit[e.session-1]++
			_ = p.core.Message(p.now, e.session, &headracev1.SessionRequest{Credit: p.credit[e.session-1], Outcomes: []*headracev1.Outcome{e.outcome}})
			p.turn()
		}
		p.turn()
		if !next.Before(at) {
			return
		}
	}
}

// waited is how long a task that starts now has waited.
func (p *plant) waited(push *headracev1.Push) time.Duration {
	return p.now.Sub(p.of(push).DueAt)
}

func (p *plant) of(push *headracev1.Push) *store.Task { return p.tasks[task.ID(push.TaskId)] }

func exp(r *rand.Rand, mean time.Duration) time.Duration {
	return time.Duration(r.ExpFloat64() * float64(mean))
}

// Whatever else its tenant submits as high and normal, and whatever others do, low has its turn after at most 20 of the
// others' when all wait all the time, and after 22 when they come and go: 4.76 % of what its tenant gets.
func TestLowHasItsTurns(t *testing.T) {
	for seed := range uint64(12) {
		steady := seed%2 == 0
		r := rand.New(rand.NewPCG(seed, 3))
		p := newPlant(t, Config{}, []string{"a", "b"}, 1+r.IntN(20), 1+r.IntN(5))
		p.service = func(*headracev1.Push) time.Duration { return exp(r, 20*time.Millisecond) }
		turns, low, gap, most := 0, 0, 0, 0
		waiting := [task.Bands]int{}
		p.started = func(push *headracev1.Push) {
			if push.Tenant != "a" {
				return
			}
			turns++
			gap++
			b := p.of(push).Band
			waiting[b]--
			if b == task.Low {
				low++
				most, gap = max(most, gap), 0
			}
		}
		fill := func(b task.Band, n int) {
			if n > 0 {
				p.submit("a", b, r.IntN(10), n)
				waiting[b] += n
			}
		}
		for step := range 400 {
			fill(task.Low, 200-waiting[task.Low])
			for b := task.High; b <= task.Normal; b++ {
				if steady {
					fill(b, 300-waiting[b])
				} else if r.IntN(2) == 0 {
					fill(b, r.IntN(40))
				}
			}
			if r.IntN(3) == 0 {
				p.submit("b", task.High, 0, r.IntN(30))
			}
			p.until(began.Add(time.Duration(step) * 50 * time.Millisecond))
		}
		bound := 23
		if steady {
			bound = 21
		}
		if most > bound || turns < 1000 || steady && float64(low) < float64(turns)/21-1 {
			t.Errorf("seed %d: low had %d of %d turns, the longest wait was %d turns, want %d", seed, low, turns, most, bound)
		}
	}
}

// A tenant that calls all its work urgent starts it no sooner than one that calls it nothing, and takes nothing from
// others: every start of theirs comes at the same time.
func TestUrgencyTakesNothingFromOthers(t *testing.T) {
	starts := func(band task.Band, priority int) (a, b []time.Duration) {
		r := rand.New(rand.NewPCG(5, 6))
		p := newPlant(t, Config{}, []string{"a", "b", "c"}, 7, 3)
		durations := map[string]*rand.Rand{} // each tenant's own, in the order of its starts
		for i, name := range []string{"a", "b", "c"} {
			durations[name] = rand.New(rand.NewPCG(uint64(i), 8))
		}
		p.service = func(push *headracev1.Push) time.Duration { return exp(durations[push.Tenant], 30*time.Millisecond) }
		p.started = func(push *headracev1.Push) {
			switch push.Tenant {
			case "a":
				a = append(a, p.now.Sub(began))
			case "b":
				b = append(b, p.now.Sub(began))
			}
		}
		for step := range 300 {
			p.submit("a", band, priority, 1+r.IntN(30)) // more than there is room for
			p.submit("b", task.Low, 9, r.IntN(6))
			p.submit("c", task.Normal, 5, r.IntN(6))
			p.until(began.Add(time.Duration(step) * 50 * time.Millisecond))
			if len(p.tasks) > 900+len(a) {
				break // its window is full: the rest would be in the store
			}
		}
		return a, b
	}
	a1, b1 := starts(task.Normal, 5)
	a2, b2 := starts(task.High, 0)
	if len(b1) < 200 || !slices.Equal(b1, b2) {
		t.Errorf("%d starts of the other when nothing is urgent, %d when all is: they differ", len(b1), len(b2))
	}
	if !slices.Equal(a1, a2) {
		t.Errorf("%d starts of its own when nothing is urgent, %d when all is: they differ", len(a1), len(a2))
	}
}

// A light tenant beside F that flood waits for M slots with tasks of S on average: in 99 of 100 cases at most
// 2·(F+1)·S/M + 5·S/M (algorithms.md §10, 29), as long as it waits for others and not for itself.
func TestLightTenantBesideFloods(t *testing.T) {
	const service = 100 * time.Millisecond
	for _, c := range []struct{ floods, slots int }{{1, 10}, {1, 100}, {10, 50}, {20, 20}} {
		t.Run(fmt.Sprintf("floods=%d/slots=%d", c.floods, c.slots), func(t *testing.T) {
			r := rand.New(rand.NewPCG(9, uint64(c.floods)))
			names := []string{"light"}
			for i := range c.floods {
				names = append(names, fmt.Sprint("flood", i))
			}
			p := newPlant(t, Config{}, names, c.slots/2, c.slots-c.slots/2)
			p.service = func(*headracev1.Push) time.Duration { return exp(r, service) }
			waiting := map[string]int{}
			var waits []time.Duration
			p.started = func(push *headracev1.Push) {
				waiting[push.Tenant]--
				if push.Tenant == "light" {
					waits = append(waits, p.waited(push))
				}
			}
			pause := 10 * time.Duration(c.floods+1) * service / time.Duration(c.slots)
			for next := p.now; len(waits) < 300; {
				for _, name := range names[1:] {
					if n := 500 - waiting[name]; n > 0 {
						p.submit(name, task.High, 0, n)
						waiting[name] += n
					}
				}
				if !p.now.Before(next) {
					p.submit("light", task.Low, 9, 1)
					next = p.now.Add(pause + exp(r, pause/4))
				}
				p.until(p.now.Add(service / 10))
			}
			slices.Sort(waits)
			p99 := waits[len(waits)*99/100]
			unit := service / time.Duration(c.slots)
			if bound := 2*time.Duration(c.floods+1)*unit + 5*unit; p99 > bound {
				t.Errorf("p99 wait of the light tenant %v, want at most %v", p99, bound)
			}
		})
	}
}

// Inside a flow priority p is worth p minutes: nothing waits longer than by due time alone, and p minutes.
func TestAgeingIsStatic(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	p := newPlant(t, Config{}, []string{"a"}, 1)
	p.service = func(*headracev1.Push) time.Duration { return 6 * time.Second }
	var order []*store.Task
	p.started = func(push *headracev1.Push) { order = append(order, p.of(push)) }
	for step := range 400 {
		p.submit("a", task.Normal, r.IntN(10), 1+r.IntN(2))
		p.until(began.Add(time.Duration(step) * 8 * time.Second))
	}
	if len(order) < 300 {
		t.Fatalf("%d starts", len(order))
	}
	for i, a := range order {
		for _, b := range order[i+1:] {
			if ahead := a.DueAt.Sub(b.DueAt); ahead > time.Duration(b.Priority)*time.Minute {
				t.Fatalf("a task of priority %d was overtaken by one that was due %v later", b.Priority, ahead)
			}
		}
	}
}

// Two tenants that flood get the same slot-seconds, however their tasks' times vary.
func TestVarianceCostsNothing(t *testing.T) {
	for _, slots := range []int{4, 40} {
		r := rand.New(rand.NewPCG(9, 2))
		p := newPlant(t, Config{}, []string{"even", "uneven"}, slots)
		used := map[string]time.Duration{}
		waiting := map[string]int{}
		p.service = func(push *headracev1.Push) time.Duration {
			d := 100 * time.Millisecond
			if push.Tenant == "uneven" {
				d = exp(r, 100*time.Millisecond)
			}
			used[push.Tenant] += d
			return d
		}
		p.started = func(push *headracev1.Push) { waiting[push.Tenant]-- }
		for step := range 400 {
			for _, name := range []string{"even", "uneven"} {
				if n := 500 - waiting[name]; n > 0 {
					p.submit(name, task.Normal, 5, n)
					waiting[name] += n
				}
			}
			p.until(began.Add(time.Duration(step) * 50 * time.Millisecond))
		}
		if share := used["even"].Seconds() / (used["even"] + used["uneven"]).Seconds(); share < 0.48 || share > 0.52 {
			t.Errorf("%d slots: the even one had %.3f of the slot-seconds, want half", slots, share)
		}
	}
}
