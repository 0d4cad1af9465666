package testcluster_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/executor"
	"github.com/headrace/headrace/internal/testcluster"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// graveyard kills nodes as their tasks say, and starts their next runs, as a supervisor does.
type graveyard struct {
	c     *testcluster.Several
	died  chan *testcluster.OneNode
	pause time.Duration // until the next run of a node
	kills []string      // addresses, in order

	starts []start // that are to come, in order

	mu   sync.Mutex // guards following
	dead map[*testcluster.OneNode]bool
}

type start struct {
	of *testcluster.OneNode
	at time.Time
}

// poison is a label of tasks whose handling kills the node.
const poison = "poison"

func newGraveyard(c *testcluster.Several, pause time.Duration) *graveyard {
	g := &graveyard{c: c, pause: pause, died: make(chan *testcluster.OneNode, 100), dead: map[*testcluster.OneNode]bool{}}
	c.OnTask = func(n *testcluster.OneNode, t *store.Task) {
		if t.Labels[poison] == "" {
			return
		}
		n.Die()
		g.mu.Lock()
		if !g.dead[n] {
			g.dead[n] = true
			g.died <- n
		}
		g.mu.Unlock()
		panic("the end of this process") // what the loop was about to do is not done
	}
	return g
}

// until lets nodes die and start again until something is true.
func (g *graveyard) until(t *testing.T, most time.Duration, what string, is func() bool) {
	t.Helper()
	var lookedAt time.Time
	until(t, most, what, func() bool {
		select {
		case n := <-g.died:
			n.Kill()
			g.kills = append(g.kills, n.Addr)
			g.starts = append(g.starts, start{n, time.Now().Add(g.pause)})
		default:
		}
		for len(g.starts) > 0 && !time.Now().Before(g.starts[0].at) {
			g.c.Restart(g.starts[0].of)
			g.starts = g.starts[1:]
		}
		if time.Since(lookedAt) < time.Second {
			return false
		}
		lookedAt = time.Now()
		return is()
	})
}

// places counts the addresses at which nodes died.
func (g *graveyard) places() int {
	seen := map[string]bool{}
	for _, addr := range g.kills {
		seen[addr] = true
	}
	return len(seen)
}

// A task kills each node that handles it: after two deaths its partition is quarantined, it stays with one node that
// has nothing else, the task is found among the others and ends as a dead letter. Every other task is run.
func TestClusterPoisonIsQuarantined(t *testing.T) {
	for _, pause := range []time.Duration{2 * time.Second, 20 * time.Second} {
		t.Run(fmt.Sprint("next run after ", pause), func(t *testing.T) { poisoned(t, pause) })
	}
}

func poisoned(t *testing.T, pause time.Duration) {
	testcluster.RunSeveral(t, 4, 1, func(t *testing.T, c *testcluster.Several) {
		nodes := c.All()
		g := newGraveyard(c, pause)
		nodes[0].Executor(4, "acme", func(x *executor.Executor) {
			executor.Handle(x, upper, func(ctx context.Context, in string) (string, error) { return in + "!", nil })
		})
		cl := nodes[0].Client("acme")
		var ids []string
		for i := range 40 {
			ids = append(ids, submit(t, cl, client.Task{Function: "upper", Payload: fmt.Appendf(nil, "%d", i), Options: client.Options{Delay: 10 * time.Second}}))
		}
		bad := submit(t, cl, client.Task{Function: "upper", Payload: []byte("bad"), Options: client.Options{Delay: 10 * time.Second, Labels: map[string]string{poison: "yes"}}})
		quarantined, reason := false, ""
		look := func() []*headracev1.Partition {
			for _, n := range c.All() {
				if n.Alive() {
					return partitions(t, n)
				}
			}
			return nil
		}
		g.until(t, 4*time.Minute, "the poison is a dead letter", func() bool {
			for _, p := range look() {
				if p.State == "quarantined" {
					quarantined, reason = true, p.Reason
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			info, err := cl.Get(ctx, client.ByID(bad))
			return err == nil && info.State == task.Failed
		})
		info := get(t, cl, bad)
		if info.Error == nil || info.Error.Class != task.NonRetryable || !quarantined {
			t.Errorf("the poison: %+v; quarantined: %v", info, quarantined)
		}
		t.Logf("died at %v; %q; %v", g.kills, reason, info.Error)
		if len(g.kills) > 8 || g.places() > 3 { // two until it is quarantined, and the one that opens it then
			t.Errorf("died at %v", g.kills)
		}
		for i, id := range ids {
			if info := wait(t, cl, id); info.State != task.Succeeded || string(info.Result) != fmt.Sprint(i, "!") {
				t.Errorf("task %d: %v %q", i, info.State, info.Result)
			}
		}
		g.until(t, time.Minute, "all partitions are open", func() bool {
			ps := look()
			for _, p := range ps {
				if p.State == "quarantined" || p.State == "none" {
					return false
				}
			}
			return len(ps) == 4
		})
	})
}
