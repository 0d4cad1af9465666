package pools

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/internal/grpcx"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// harness is one node's picture, with peers that tell what the test says.
type harness struct {
	*Pools
	now   time.Time
	peers []Report
}

func newHarness() *harness {
	h := &harness{now: t0}
	h.Pools = New(Config{Now: func() time.Time { return h.now }, NodeID: "n1", Peers: func() []Report { return h.peers }})
	return h
}

func fn(name string) core.FunctionName { return core.FunctionName{Tenant: "a", Name: name} }

func load(name string, waiting, running int64) core.FunctionLoad {
	return core.FunctionLoad{FunctionName: fn(name), Downstream: name, Waiting: waiting, Running: running, Limit: -1}
}

func (h *harness) text() string {
	v, _ := h.View()
	var b strings.Builder
	for _, p := range v.Pools {
		fmt.Fprintf(&b, "%s/%s: %d slots, %d run, %d wait, want %d (%v)", p.Tenant, p.Name, p.Slots, p.Running, p.Waiting, p.Desired, p.Need.Why)
		for _, x := range p.Executors {
			fmt.Fprintf(&b, " %s:%d/%d", x.Name, x.Running, x.Slots)
		}
		b.WriteString("\n")
	}
	return b.String()
}

func (h *harness) is(t *testing.T, want string) {
	t.Helper()
	if got := h.text(); got != strings.ReplaceAll(strings.TrimPrefix(want, "\n"), "\t", "") {
		t.Errorf("have:\n%swant:%s", got, want)
	}
}

// An executor that holds a session to two nodes is one executor, and leaves by what it does on both.
func TestNodesAreAddedUp(t *testing.T) {
	h := newHarness()
	h.peers = []Report{{Node: "n2", At: t0, Stats: &headracev1.PeerPoolStats{
		Functions: []*headracev1.PeerFunctionStats{{Tenant: "a", Name: "f", Downstream: "f", Waiting: 600, Running: 2}},
		Pools: []*headracev1.PeerPool{{Functions: []*headracev1.PeerFunctionName{{Tenant: "a", Name: "f"}}, Executors: []*headracev1.PeerExecutor{
			{Id: []byte("x"), Name: "x", Slots: 4, Running: 2, BusyMillis: 5000}, {Id: []byte("y"), Name: "y", Slots: 4}, {Id: []byte("z"), Name: "z", Slots: 4}}}},
	}}}
	h.Step([]core.FunctionLoad{load("f", 600, 3), load("g", 1, 0)}, []core.PoolLoad{{Functions: []core.FunctionName{fn("f")}, Executors: []core.ExecutorLoad{
		{ID: "x", Name: "x", Slots: 4, Running: 1, Busy: time.Second}, {ID: "y", Name: "y", Slots: 4, Running: 2, Busy: 10 * time.Second}, {ID: "z", Name: "z", Slots: 4}, {ID: "d", Name: "d", Slots: 4, Running: 1, Busy: time.Hour, Draining: true}}}})
	// 1,200 tasks of a second in 300 s, 5 in flight: max(4, 5)/(4·0.8).
	h.is(t, `
	a/f: 12 slots, 5 run, 1200 wait, want 3 (running) d:1/4 z:0/4 x:3/4 y:2/4
	a/g: 0 slots, 0 run, 1 wait, want 1 (backlog)
	`)
	v, _ := h.View()
	if cost := v.Pools[0].Executors[2].DeletionCost(); cost != 6 {
		t.Errorf("x costs %d, want 5 s there and 1 s here", cost)
	}
	if n := len(h.Stats().Functions); n != 2 {
		t.Errorf("%d functions are told", n)
	}
}

// A function of two pools is divided by their slots, its downstream's limit too.
func TestFunctionOfTwoPools(t *testing.T) {
	h := newHarness()
	f := load("f", 6000, 0)
	f.Limit = 12
	h.Step([]core.FunctionLoad{f}, []core.PoolLoad{
		{Functions: []core.FunctionName{fn("f")}, Executors: []core.ExecutorLoad{{ID: "x", Name: "x", Slots: 2}}},
		{Functions: []core.FunctionName{fn("g"), fn("f")}, Executors: []core.ExecutorLoad{{ID: "y", Name: "y", Slots: 4}}}})
	h.is(t, `
	a/f: 2 slots, 0 run, 2000 wait, want 3 (downstream) x:0/2
	a/f+g: 4 slots, 0 run, 4000 wait, want 3 (downstream) y:0/4
	`)
	v, _ := h.View()
	if ls := v.Loads("a", []string{"f", "g"}); len(ls) != 1 || ls[0].Waiting != 6000 || ls[0].Limit != 12 {
		t.Errorf("of the functions as a whole: %+v", ls)
	}
}

// With the last executor gone, it is known how many slots one had; executors leave five minutes after the need.
func TestPoolWithoutExecutors(t *testing.T) {
	h := newHarness()
	pool := []core.PoolLoad{{Functions: []core.FunctionName{fn("f")}, Executors: []core.ExecutorLoad{{ID: "x", Name: "x", Slots: 10}}}}
	h.Step([]core.FunctionLoad{load("f", 6000, 0)}, nil)
	h.is(t, `
	a/f: 0 slots, 0 run, 6000 wait, want 1 (backlog)
	`)
	h.now = h.now.Add(time.Second)
	h.Step([]core.FunctionLoad{load("f", 6000, 0)}, pool)
	h.now = h.now.Add(time.Second)
	h.Step([]core.FunctionLoad{load("f", 6000, 0)}, nil)
	h.is(t, `
	a/f: 0 slots, 0 run, 6000 wait, want 3 (backlog)
	`)
	h.Step(nil, pool)
	h.is(t, `
	a/f: 10 slots, 0 run, 0 wait, want 3 (idle) x:0/10
	`)
	h.now = h.now.Add(scaleIn + scaleIn/20)
	h.Step(nil, pool)
	h.is(t, `
	a/f: 10 slots, 0 run, 0 wait, want 0 (idle) x:0/10
	`)
}

// A node that is silent is missed after half a minute, also one that has never told anything; until then its last word counts.
func TestSilentNodesAreMissed(t *testing.T) {
	h := newHarness()
	told := Report{Node: "n2", At: t0, Stats: &headracev1.PeerPoolStats{Functions: []*headracev1.PeerFunctionStats{{Tenant: "a", Name: "f", Waiting: 7}}}}
	h.peers = []Report{told, {Node: "n3"}}
	for _, s := range []struct {
		after   time.Duration
		pools   int
		missing string
	}{{0, 1, "[]"}, {30 * time.Second, 1, "[]"}, {time.Second, 0, "[n2 n3]"}} {
		h.now = h.now.Add(s.after)
		h.Step(nil, nil)
		v, _ := h.View()
		if len(v.Pools) != s.pools || fmt.Sprint(v.Missing) != s.missing {
			t.Errorf("at %v: %d pools, missing %v; want %d, %s", h.now.Sub(t0), len(v.Pools), v.Missing, s.pools, s.missing)
		}
	}
	told.At = h.now
	h.peers = []Report{told}
	_, changed := h.View()
	h.Step(nil, nil)
	select {
	case <-changed:
	default:
		t.Error("nobody was told of the new view")
	}
	if v, _ := h.View(); len(v.Pools) != 1 || len(v.Missing) != 0 {
		t.Errorf("once it tells again: %d pools, missing %v", len(v.Pools), v.Missing)
	}
}

// What a node tells is bounded, and has those with most.
func TestStatsAreBounded(t *testing.T) {
	h := newHarness()
	var fs []core.FunctionLoad
	pool := core.PoolLoad{Functions: []core.FunctionName{fn("f")}}
	for i := range 3 * maxFunctions {
		fs = append(fs, load(fmt.Sprint("f", i), int64(i+1), 0))
		pool.Executors = append(pool.Executors, core.ExecutorLoad{ID: fmt.Sprint(i), Slots: 1})
	}
	h.Step(fs, []core.PoolLoad{pool})
	s := h.Stats()
	if len(s.Functions) != maxFunctions || s.Functions[maxFunctions-1].Waiting != 2*maxFunctions+1 || len(s.Pools[0].Executors) != maxExecutors {
		t.Errorf("%d functions, the last with %d, %d executors", len(s.Functions), s.Functions[len(s.Functions)-1].Waiting, len(s.Pools[0].Executors))
	}
	var ps []core.PoolLoad
	for i := range 2 * maxNames / maxFunctions {
		l := core.PoolLoad{Executors: []core.ExecutorLoad{{ID: fmt.Sprint(i), Slots: 1}}}
		for k := range 2 * maxFunctions {
			l.Functions = append(l.Functions, fn(fmt.Sprintf("%063d", i*2*maxFunctions+k)))
		}
		ps = append(ps, l)
	}
	h.Step(nil, append(ps, pool))
	if s = h.Stats(); len(s.Pools) != maxNames/maxFunctions || len(s.Pools[0].Functions) != 1 || proto.Size(s) > grpcx.DefaultMessageBytes/2 {
		t.Errorf("%d pools of %d, %d bytes", len(s.Pools), len(ps), proto.Size(s))
	}
}
