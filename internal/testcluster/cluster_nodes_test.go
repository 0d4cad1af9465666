package testcluster_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/executor"
	"github.com/headrace/headrace/fn"
	"github.com/headrace/headrace/internal/faketime"
	"github.com/headrace/headrace/internal/testcluster"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/store/memstore"
	"github.com/headrace/headrace/task"
)

// until waits in the bubble's time for something to become true, and returns how long that took.
func until(t *testing.T, most time.Duration, what string, is func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	for !is() {
		if time.Since(began) > most {
			t.Fatalf("not within %v: %s", most, what)
		}
		faketime.Pass(20 * time.Millisecond) // of the bubble
	}
	return time.Since(began)
}

// partitions are all partitions as the node sees them.
func partitions(t *testing.T, n *testcluster.OneNode) []*headracev1.Partition {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	res, err := headracev1.NewClusterServiceClient(n.Raw()).ListPartitions(ctx, &headracev1.ListPartitionsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return res.Partitions
}

// shares counts the open partitions by node.
func shares(t *testing.T, n *testcluster.OneNode) map[string]int {
	t.Helper()
	m := map[string]int{}
	for _, p := range partitions(t, n) {
		if p.State == "open" {
			m[p.NodeId]++
		}
	}
	return m
}

// balanced waits until each node serves at least `each` partitions and all of them are open.
func balanced(t *testing.T, each, all int, nodes ...*testcluster.OneNode) {
	t.Helper()
	until(t, 15*time.Second, "each node serves its share", func() bool {
		m, sum := shares(t, nodes[0]), 0
		for _, n := range nodes {
			if m[n.ID()] < each {
				return false
			}
			sum += m[n.ID()]
		}
		return sum == all
	})
}

// ran counts starts by payload.
type ran struct {
	mu     sync.Mutex // guards following
	starts map[string]int
}

func (r *ran) note(in string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.starts == nil {
		r.starts = map[string]int{}
	}
	r.starts[in]++
}

func (r *ran) of(in string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.starts[in]
}

func three(t *testing.T, f func(t *testing.T, c *testcluster.Several, a, b, d *testcluster.OneNode)) {
	t.Helper()
	testcluster.RunSeveral(t, 1, 2, func(t *testing.T, c *testcluster.Several) {
		a := c.All()[0]
		b, d := c.Start(), c.Start()
		balanced(t, 2, 8, a, b, d)
		f(t, c, a, b, d)
	})
}

// Any node takes any request: tasks that are submitted at one are run, read, waited for, listed and cancelled
// through another, wherever they are.
func TestClusterAnyNodeServesAll(t *testing.T) {
	three(t, func(t *testing.T, c *testcluster.Several, a, b, d *testcluster.OneNode) {
		nodes := []*testcluster.OneNode{a, b, d}
		hold := make(chan struct{})
		held := fn.Raw("held", fn.Options{})
		a.Executor(50, "acme", func(x *executor.Executor) {
			executor.Handle(x, upper, func(_ context.Context, in string) (string, error) { return in + "!", nil })
			executor.Handle(x, held, func(ctx context.Context, _ []byte) ([]byte, error) {
				select {
				case <-hold:
					return nil, nil
				case <-ctx.Done():
					return nil, context.Cause(ctx)
				}
			})
		})
		var clients []*client.Client
		for _, n := range nodes {
			clients = append(clients, n.Client("acme"))
		}
		seen := map[string]bool{}
		for i := range 30 {
			id := submit(t, clients[i%3], client.Task{Function: "upper", Payload: fmt.Appendf(nil, "%d", i)})
			info := wait(t, clients[(i+1)%3], id)
			if info.State != task.Succeeded || string(info.Result) != fmt.Sprint(i, "!") {
				t.Errorf("task %d: %v %q", i, info.State, info.Result)
			}
			got, err := clients[(i+2)%3].Get(t.Context(), client.ByID(id))
			if err != nil || got.State != task.Succeeded {
				t.Errorf("task %d: get: %v, %v", i, got, err)
			}
			seen[owner(t, d, got.Partition)] = true
		}
		if len(seen) < 2 {
			t.Errorf("all tasks were on one node: %v", seen)
		}
		// Running ones.
		var ids []string
		for i := range 12 {
			ids = append(ids, submit(t, clients[i%3], client.Task{Function: "held"}))
		}
		for i, cl := range clients {
			until(t, 5*time.Second, fmt.Sprintf("all running are listed by node %d", i), func() bool {
				n := 0
				for info, err := range cl.ListAll(t.Context(), client.ListOptions{State: task.Running, PageSize: 5}) {
					if err != nil {
						t.Fatal(err)
					}
					if slices.Contains(ids, info.ID) {
						n++
					}
				}
				return n == len(ids)
			})
			for _, id := range ids {
				if info, err := cl.Get(t.Context(), client.ByID(id)); err != nil || info.State != task.Running {
					t.Errorf("node %d: %v, %v", i, info, err)
				}
			}
		}
		for i, id := range ids[:6] {
			if res, _, err := clients[(i+1)%3].Cancel(t.Context(), client.ByID(id), "enough"); err != nil {
				t.Errorf("cancel: %v, %v", res, err)
			}
			if info := wait(t, clients[(i+2)%3], id); info.State != task.Cancelled {
				t.Errorf("cancelled task is %v", info.State)
			}
		}
		close(hold)
		for i, id := range ids[6:] {
			if info := wait(t, clients[i%3], id); info.State != task.Succeeded {
				t.Errorf("held task is %v", info.State)
			}
		}
		// An id that never was is not found anywhere, also at once.
		for i, cl := range clients {
			if _, err := cl.Get(t.Context(), client.ByID("2222c222222222dloj377ptun6")); !errors.Is(err, client.ErrNotFound) {
				t.Errorf("node %d: %v", i, err)
			}
		}
		for _, n := range nodes {
			cc := headracev1.NewClusterServiceClient(n.Raw())
			until(t, 5*time.Second, n.Addr+" sees all nodes as they are", func() bool {
				res, err := cc.ListNodes(t.Context(), &headracev1.ListNodesRequest{})
				if err != nil || len(res.Nodes) != 3 {
					t.Fatalf("%v, %v", res, err)
				}
				return !slices.ContainsFunc(res.Nodes, func(m *headracev1.Node) bool {
					return m.Executors != 1 || m.Address == "" || len(m.Partitions) < 2
				})
			})
		}
	})
}

// alarmed waits until one node says that another has alarms of these kinds and no others.
func alarmed(t *testing.T, ask, of *testcluster.OneNode, kinds ...string) {
	t.Helper()
	cc := headracev1.NewClusterServiceClient(ask.Raw())
	until(t, 10*time.Second, fmt.Sprintf("%s has alarms %v", of.Addr, kinds), func() bool {
		res, err := cc.ListNodes(t.Context(), &headracev1.ListNodesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range res.Nodes {
			if m.Address == of.Addr {
				var got []string
				for _, a := range m.Alarms {
					got = append(got, a.Kind)
				}
				return slices.Equal(got, kinds)
			}
		}
		return false
	})
}

func owner(t *testing.T, n *testcluster.OneNode, partition uint32) string {
	t.Helper()
	for _, p := range partitions(t, n) {
		if p.Id == partition {
			return p.NodeId
		}
	}
	t.Fatalf("no partition %d", partition)
	return ""
}

// A node is killed amid work. Its partitions are taken over, running tasks of surviving executors go on with one
// start, waiting ones are run, and new submits are served, also in the meantime.
func TestClusterNodeIsKilled(t *testing.T) {
	three(t, func(t *testing.T, c *testcluster.Several, a, b, d *testcluster.OneNode) {
		var r ran
		release := make(chan struct{})
		long := fn.DefineCodec("long", fn.Text(), fn.Text(), fn.Options{})
		a.Executor(20, "acme", func(x *executor.Executor) {
			executor.Handle(x, long, func(ctx context.Context, in string) (string, error) {
				r.note(in)
				select {
				case <-release:
				case <-ctx.Done():
					return "", context.Cause(ctx)
				}
				return in, nil
			})
			executor.Handle(x, upper, func(_ context.Context, in string) (string, error) { r.note(in); return in, nil })
		})
		cb, cd := b.Client("acme"), d.Client("acme")
		var longs, waiting []string
		for i := range 20 {
			longs = append(longs, submit(t, cb, client.Task{Function: "long", Payload: fmt.Appendf(nil, "long %d", i)}))
		}
		until(t, 5*time.Second, "all long ones run", func() bool {
			n := 0
			for i := range 20 {
				n += r.of(fmt.Sprint("long ", i))
			}
			return n == 20
		})
		for i := range 50 { // no slot is free: they wait
			waiting = append(waiting, submit(t, cb, client.Task{Function: "upper", Payload: fmt.Appendf(nil, "waiting %d", i)}))
		}
		a.Kill()
		killed := time.Now()
		// New ones are taken at once where a living node has a candidate, and by all once the lease has ended.
		for i := range 30 {
			ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
			s, err := cd.Submit(ctx, client.Task{Function: "upper", Payload: fmt.Appendf(nil, "new %d", i)})
			cancel()
			if err != nil {
				t.Fatalf("submit %d, %v after the kill: %v", i, time.Since(killed), err)
			}
			waiting = append(waiting, s.ID)
		}
		balanced(t, 4, 8, b, d)
		if took := time.Since(killed); took > 6500*time.Millisecond {
			t.Errorf("all partitions are open after %v", took)
		}
		faketime.Pass(3 * time.Second) // of the bubble: whatever would be pushed again is
		close(release)
		for i, id := range longs {
			if info := wait(t, cd, id); info.State != task.Succeeded || info.Losses != 0 {
				t.Errorf("long %d: %v, %d losses", i, info.State, info.Losses)
			}
			if n := r.of(fmt.Sprint("long ", i)); n != 1 {
				t.Errorf("long %d started %d times", i, n)
			}
		}
		for _, id := range waiting {
			if info := wait(t, cb, id); info.State != task.Succeeded {
				t.Errorf("%s: %v", info.ID, info.State)
			}
		}
	})
}

// A node that stops hands over: the gap is short, nothing is started twice, and no submit fails.
func TestClusterNodeStops(t *testing.T) {
	three(t, func(t *testing.T, c *testcluster.Several, a, b, d *testcluster.OneNode) {
		var r ran
		release := make(chan struct{})
		long := fn.DefineCodec("long", fn.Text(), fn.Text(), fn.Options{})
		b.Executor(100, "acme", func(x *executor.Executor) {
			executor.Handle(x, long, func(ctx context.Context, in string) (string, error) {
				r.note(in)
				<-release
				return in, nil
			})
			executor.Handle(x, upper, func(_ context.Context, in string) (string, error) { r.note(in); return in, nil })
		})
		cd := d.Client("acme")
		var longs []string
		for i := range 20 {
			longs = append(longs, submit(t, cd, client.Task{Function: "long", Payload: fmt.Appendf(nil, "long %d", i)}))
		}
		ids := make(chan string, 1000)
		stop := make(chan struct{})
		var slowest atomic.Int64
		go func() {
			defer close(ids)
			for i := 0; ; i++ {
				began := time.Now()
				s, err := cd.Submit(t.Context(), client.Task{Function: "upper", Payload: fmt.Appendf(nil, "%d", i)})
				if err != nil {
					t.Errorf("submit %d: %v", i, err)
					return
				}
				ids <- s.ID
				slowest.Store(max(slowest.Load(), int64(time.Since(began))))
				select {
				case <-stop:
					return
				case <-time.After(20 * time.Millisecond):
				}
			}
		}()
		faketime.Pass(time.Second) // of the bubble
		a.Stop()
		balanced(t, 4, 8, b, d)
		faketime.Pass(time.Second)
		close(stop)
		close(release)
		n := 0
		for id := range ids {
			if info := wait(t, cd, id); info.State != task.Succeeded {
				t.Errorf("%v", info.State)
			}
			if r.of(fmt.Sprint(n)) != 1 {
				t.Errorf("%d started %d times", n, r.of(fmt.Sprint(n)))
			}
			n++
		}
		for i, id := range longs {
			if info := wait(t, cd, id); info.State != task.Succeeded || r.of(fmt.Sprint("long ", i)) != 1 {
				t.Errorf("long %d: %v, %d starts", i, info.State, r.of(fmt.Sprint("long ", i)))
			}
		}
		if gap := time.Duration(slowest.Load()); gap > 500*time.Millisecond {
			t.Errorf("a submit took %v", gap)
		}
	})
}

// The answer to a submit is lost between two nodes, while it is being committed. The retry comes through another
// node and goes to another owner: it waits for the commit and names its tasks.
func TestClusterLostAnswerAcrossNodes(t *testing.T) {
	three(t, func(t *testing.T, c *testcluster.Several, a, b, d *testcluster.OneNode) {
		nodes := []*testcluster.OneNode{a, b, d}
		crossed := 0
		for i := range 40 {
			req := &headracev1.SubmitBatchRequest{Tenant: "acme", RequestId: fmt.Appendf(nil, "request %08d", i),
				Tasks: []*headracev1.TaskSpec{{Function: fmt.Sprint("f", i)}, {Function: fmt.Sprint("f", i)}}}
			// Commits hang everywhere until the retry has come.
			gate := make(chan struct{})
			for _, n := range nodes {
				n.Fault(func(_ int, op string) memstore.Fault {
					if op == "commit" {
						<-gate
					}
					return memstore.Fault{}
				})
			}
			ctx, cancel := context.WithCancel(t.Context())
			first := make(chan error, 1)
			go func() {
				_, err := headracev1.NewTaskServiceClient(nodes[i%3].Raw()).SubmitBatch(ctx, req)
				first <- err
			}()
			faketime.Pass(10 * time.Millisecond) // of the bubble: it is on its way to a database
			cancel()
			if err := <-first; err == nil {
				t.Fatal("the first answer was not lost")
			}
			retry := &headracev1.SubmitBatchRequest{Tenant: req.Tenant, RequestId: req.RequestId, Retry: true, Tasks: req.Tasks}
			var got []*headracev1.SubmitBatchResponse
			var mu sync.Mutex
			var wg sync.WaitGroup
			for k := range 2 { // two at once
				raw := headracev1.NewTaskServiceClient(nodes[(i+1+k)%3].Raw())
				wg.Go(func() {
					for range 20 {
						ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
						res, err := raw.SubmitBatch(ctx, retry)
						cancel()
						if err == nil {
							mu.Lock()
							got = append(got, res)
							mu.Unlock()
							return
						}
						faketime.Pass(100 * time.Millisecond)
					}
				})
			}
			faketime.Pass(50 * time.Millisecond)
			close(gate)
			wg.Wait()
			if len(got) != 2 {
				t.Fatalf("request %d: %d answers", i, len(got))
			}
			page, err := headracev1.NewTaskServiceClient(nodes[0].Raw()).List(t.Context(), &headracev1.ListRequest{Tenant: "acme", Function: fmt.Sprint("f", i)})
			if err != nil || len(page.Tasks) != 2 {
				t.Fatalf("request %d: %d tasks, %v", i, len(page.GetTasks()), err)
			}
			for _, res := range got {
				for k, o := range res.Outcomes {
					if o.Id != page.Tasks[1-k].Id {
						t.Errorf("request %d, item %d: %q, stored %q", i, k, o.Id, page.Tasks[1-k].Id)
					}
				}
			}
			if owner(t, a, page.Tasks[0].Partition) != nodes[(i+1)%3].ID() {
				crossed++
			}
		}
		if crossed == 0 {
			t.Error("no request crossed nodes")
		}
	})
}

// A node is paused for longer than its lease, with a commit on its way. Others take over; when it wakes its
// commit is refused, and it serves again what it is given.
func TestClusterPausedNodeIsFenced(t *testing.T) {
	three(t, func(t *testing.T, c *testcluster.Several, a, b, d *testcluster.OneNode) {
		var r ran
		b.Executor(100, "acme", func(x *executor.Executor) {
			executor.Handle(x, upper, func(_ context.Context, in string) (string, error) {
				r.note(in)
				faketime.Pass(200 * time.Millisecond)
				return in, nil
			})
		})
		cb := b.Client("acme")
		stop := make(chan struct{})
		ids := make(chan string, 10_000)
		var wg sync.WaitGroup
		for w := range 4 {
			wg.Go(func() {
				for i := 0; ; i++ {
					s, err := cb.Submit(t.Context(), client.Task{Function: "upper", Payload: fmt.Appendf(nil, "%d/%d", w, i)})
					if err != nil {
						t.Errorf("submit: %v", err)
						return
					}
					ids <- s.ID
					select {
					case <-stop:
						return
					case <-time.After(10 * time.Millisecond):
					}
				}
			})
		}
		faketime.Pass(time.Second)
		before := epochs(t, b)
		a.Pause()
		paused := time.Now()
		balanced(t, 4, 8, b, d)
		if took := time.Since(paused); took > 8*time.Second {
			t.Errorf("taken over after %v", took)
		}
		after := epochs(t, b)
		faketime.Pass(15*time.Second - time.Since(paused))
		a.Resume()
		faketime.Pass(10 * time.Second) // it joins again and gets its share back
		balanced(t, 2, 8, a, b, d)
		close(stop)
		wg.Wait()
		close(ids)
		n := 0
		for id := range ids {
			n++
			if info := wait(t, cb, id); info.State != task.Succeeded {
				t.Errorf("%v", info.State)
			}
		}
		if n < 1000 {
			t.Errorf("%d tasks only", n)
		}
		grown := 0
		for p, e := range after {
			if e > before[p] {
				grown++
			}
		}
		if grown < 2 {
			t.Errorf("epochs grew of %d partitions: %v, %v", grown, before, after)
		}
	})
}

func epochs(t *testing.T, n *testcluster.OneNode) map[uint32]uint64 {
	m := map[uint32]uint64{}
	for _, p := range partitions(t, n) {
		m[p.Id] = p.Epoch
	}
	return m
}

// One of two databases fails for a while. Submits and runs of the other go on.
func TestClusterOneDatabaseFails(t *testing.T) {
	three(t, func(t *testing.T, c *testcluster.Several, a, b, d *testcluster.OneNode) {
		a.Executor(100, "acme", func(x *executor.Executor) {
			executor.Handle(x, upper, func(_ context.Context, in string) (string, error) { return in, nil })
		})
		cl := b.Client("acme")
		for _, n := range []*testcluster.OneNode{a, b, d} {
			n.Fault(func(database int, _ string) memstore.Fault {
				if database == 1 {
					return memstore.Fault{Err: errors.New("connection refused")}
				}
				return memstore.Fault{}
			})
		}
		down := time.Now()
		faketime.Pass(3 * time.Second) // of the bubble
		stored, failed := 0, 0
		for i := range 100 {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			s, err := cl.Submit(ctx, client.Task{Function: "upper", Payload: fmt.Appendf(nil, "%d", i)})
			if err != nil {
				failed++
				cancel()
				continue
			}
			stored++
			if info, err := cl.Wait(ctx, client.ByID(s.ID)); err != nil || info.State != task.Succeeded {
				t.Errorf("%v, %v", info, err)
			}
			cancel()
		}
		t.Logf("%d stored, %d not, in %v", stored, failed, time.Since(down))
		for _, n := range []*testcluster.OneNode{a, b, d} {
			alarmed(t, b, n, "store_down")
		}
		if stored < 50 {
			t.Errorf("%d of 100 were stored while the other database is well", stored)
		}
		for _, n := range []*testcluster.OneNode{a, b, d} {
			n.Fault(nil)
		}
		until(t, 20*time.Second, "all partitions are open again", func() bool {
			open := 0
			for _, n := range shares(t, b) {
				open += n
			}
			return open == 8
		})
		for _, n := range []*testcluster.OneNode{a, b, d} {
			alarmed(t, b, n)
		}
		for i := range 30 {
			if info := wait(t, cl, submit(t, cl, client.Task{Function: "upper", Payload: fmt.Appendf(nil, "%d", i)})); info.State != task.Succeeded {
				t.Errorf("%v", info.State)
			}
		}
	})
}

// The registry is away for a minute, for all nodes: submits, pushes and outcomes go on through every node. After
// it, ownership moves again.
func TestClusterWithoutRegistry(t *testing.T) {
	three(t, func(t *testing.T, c *testcluster.Several, a, b, d *testcluster.OneNode) {
		a.Executor(100, "acme", func(x *executor.Executor) {
			executor.Handle(x, upper, func(_ context.Context, in string) (string, error) { return in, nil })
		})
		nodes := []*testcluster.OneNode{a, b, d}
		var clients []*client.Client
		for _, n := range nodes {
			clients = append(clients, n.Client("acme"))
		}
		wait(t, clients[0], submit(t, clients[0], client.Task{Function: "upper", Payload: []byte("before")}))
		var heal []func()
		for _, n := range nodes {
			heal = append(heal, n.CutRegistry())
		}
		for i := range 60 {
			began := time.Now()
			id := submit(t, clients[i%3], client.Task{Function: "upper", Payload: fmt.Appendf(nil, "%d", i)})
			if info := wait(t, clients[(i+1)%3], id); info.State != task.Succeeded {
				t.Errorf("task %d: %v", i, info.State)
			}
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("task %d, without a registry, took %v", i, took)
			}
			faketime.Pass(time.Second) // of the bubble
		}
		alarmed(t, b, a, "etcd_unreachable")
		for _, h := range heal {
			h()
		}
		balanced(t, 2, 8, a, b, d)
		alarmed(t, b, a)
		a.Stop()
		balanced(t, 4, 8, b, d)
		wait(t, clients[1], submit(t, clients[1], client.Task{Function: "upper", Payload: []byte("after")}))
	})
}

// One node is cut off from the registry: its partitions move, and it serves requests by forwarding them once it
// is back.
func TestClusterOneNodeIsCutOff(t *testing.T) {
	three(t, func(t *testing.T, c *testcluster.Several, a, b, d *testcluster.OneNode) {
		var r ran
		a.Executor(100, "acme", func(x *executor.Executor) {
			executor.Handle(x, upper, func(_ context.Context, in string) (string, error) { r.note(in); return in, nil })
		})
		cl := b.Client("acme")
		heal := a.CutRegistry()
		cut := time.Now()
		n := 0
		for time.Since(cut) < 20*time.Second {
			id := submit(t, cl, client.Task{Function: "upper", Payload: fmt.Appendf(nil, "%d", n)})
			if info := wait(t, cl, id); info.State != task.Succeeded {
				t.Errorf("task %d: %v", n, info.State)
			}
			n++
			faketime.Pass(100 * time.Millisecond)
		}
		balanced(t, 4, 8, b, d)
		heal()
		balanced(t, 2, 8, b, a, d)
		for i := range n {
			if got := r.of(fmt.Sprint(i)); got != 1 {
				t.Errorf("task %d started %d times", i, got)
			}
		}
		ca := a.Client("acme")
		wait(t, ca, submit(t, ca, client.Task{Function: "upper", Payload: []byte("after")}))
	})
}
