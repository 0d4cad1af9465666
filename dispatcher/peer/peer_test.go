package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/dispatcher/loop"
	"github.com/headrace/headrace/internal/faketime"
	"github.com/headrace/headrace/internal/grpcx"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/shard"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/store/memstore"
	"github.com/headrace/headrace/task"
)

// cluster is nodes with real loops over one database, joined by real gRPC in a bubble. The directory is the test's.
type cluster struct {
	t    *testing.T
	data *memstore.Data

	mu    sync.Mutex // guards following
	dir   *shard.Directory
	nodes map[string]*testNode // by address
}

type testNode struct {
	*Router
	c     *cluster
	id    shard.NodeID
	addr  string
	loop  *loop.Loop
	store *memstore.Store
	svc   *Service
	srv   *grpc.Server
	lis   *bufconn.Listener
	conns []net.Conn // to it; guarded by cluster.mu
	mute  bool       // guarded by cluster.mu: what it sends gets lost
}

func join(t *testing.T, f func(t *testing.T, c *cluster)) {
	synctest.Test(t, func(t *testing.T) {
		f(t, &cluster{t: t, data: new(memstore.Data), dir: &shard.Directory{Owners: map[uint32]shard.NodeID{}}, nodes: map[string]*testNode{}})
	})
}

func (c *cluster) directory() *shard.Directory {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dir
}

// node starts a node that owns some partitions.
func (c *cluster) node(id string, partitions ...uint32) *testNode {
	c.t.Helper()
	n := &testNode{c: c, id: shard.NodeID(id), addr: id + ":7070", store: memstore.Open(c.data), lis: bufconn.Listen(1 << 20)}
	seed := uint64(len(id)) + uint64(id[0])
	var err error
	n.loop, err = loop.New(loop.Config{
		Core:      core.Config{Random: func() uint64 { seed = seed*6364136223846793005 + 1442695040888963407; return seed }},
		Databases: []loop.Database{{Name: "main", Store: n.store}},
		Trust:     func() time.Time { return time.Now().Add(time.Second) },
		Elsewhere: func(ctx context.Context, p uint32, tenant, request string) (*store.Request, error) {
			return n.Elsewhere(ctx, p, tenant, request)
		},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = n.loop.Run(ctx) }()
	n.svc = NewService(n.loop, func(m *headracev1.Node) { m.Version = "of " + id }, nil, nil, nil, nil, nil)
	n.srv = grpc.NewServer(grpcx.ServerOptions(0, 0)...)
	headracev1.RegisterPeerServiceServer(n.srv, n.svc)
	go func() { _ = n.srv.Serve(n.lis) }()
	n.Router = NewRouter(Config{NodeID: n.id, Directory: c.directory, Dial: append(grpcx.DialOptions(0),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(c.dial))}, n.loop)
	c.t.Cleanup(func() {
		n.svc.Stop()
		n.srv.Stop()
		n.Close()
		cancel()
		<-ended
		n.svc.Wait()
	})
	for _, p := range partitions {
		epoch, err := n.store.Acquire(c.t.Context(), p, 0)
		if err != nil {
			c.t.Fatal(err)
		}
		recovered, err := n.store.Recover(c.t.Context(), p)
		if err != nil {
			c.t.Fatal(err)
		}
		n.loop.Acquired(core.Acquired{Epoch: epoch, RaisedAt: time.Now(), Recovered: recovered})
	}
	c.mu.Lock()
	c.nodes[n.addr] = n
	d := *c.dir
	d.Owners = map[uint32]shard.NodeID{}
	for p, o := range c.dir.Owners {
		d.Owners[p] = o
	}
	d.Nodes = append(slices.Clone(d.Nodes), shard.Node{ID: n.id, Addr: n.addr})
	d.Partitions = slices.Clone(d.Partitions)
	for _, p := range partitions {
		d.Owners[p] = n.id
		d.Partitions = append(d.Partitions, shard.Partition{ID: p})
	}
	c.dir = &d
	all := make([]*testNode, 0, len(c.nodes))
	for _, o := range c.nodes {
		all = append(all, o)
	}
	c.mu.Unlock()
	for _, o := range all {
		o.Update()
	}
	return n
}

// owns changes what the directory says of a partition.
func (c *cluster) owns(partition uint32, id shard.NodeID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := *c.dir
	d.Owners = map[uint32]shard.NodeID{partition: id}
	for p, o := range c.dir.Owners {
		if p != partition {
			d.Owners[p] = o
		}
	}
	c.dir = &d
}

func (c *cluster) dial(ctx context.Context, addr string) (net.Conn, error) {
	c.mu.Lock()
	n := c.nodes[addr]
	c.mu.Unlock()
	if n == nil {
		return nil, errors.New("nobody listens")
	}
	conn, err := n.lis.DialContext(ctx)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n.conns = append(n.conns, conn)
	return &deafConn{conn, n}, nil
}

// deafConn hears nothing of a node that is mute.
type deafConn struct {
	net.Conn
	n *testNode
}

func (d *deafConn) Read(b []byte) (int, error) {
	for {
		n, err := d.Conn.Read(b)
		d.n.c.mu.Lock()
		mute := d.n.mute
		d.n.c.mu.Unlock()
		if err != nil || !mute {
			return n, err
		}
	}
}

// vanish breaks a node's connections; nobody listens there any more.
func (n *testNode) vanish() {
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	delete(n.c.nodes, n.addr)
	for _, c := range n.conns {
		_ = c.Close()
	}
}

func (n *testNode) submit(t *testing.T, partition uint32, request string) core.SubmitAnswer {
	t.Helper()
	a, err := n.Submit(t.Context(), &core.Submit{Tenant: "acme", Partition: partition, RequestID: request,
		Tasks: []*store.Task{{Tenant: "acme", Function: "f", Band: task.Normal, Payload: []byte("in")}}})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// one is a submit that has to work; its id.
func (n *testNode) one(t *testing.T, partition uint32) task.ID {
	t.Helper()
	a := n.submit(t, partition, "")
	if a.Err != nil || len(a.Items) != 1 || a.Items[0].Err != nil || a.Items[0].ID.Partition() != partition {
		t.Fatalf("submit: %+v", a)
	}
	return a.Items[0].ID
}

// Submits, cancels and views of another node's tasks are its answers.
func TestCallsReachTheOwner(t *testing.T) {
	join(t, func(t *testing.T, c *cluster) {
		a, b := c.node("a", 1), c.node("b", 2)
		here, there := a.one(t, 1), a.one(t, 2)
		live, err := a.Views(t.Context(), []task.ID{there, here, task.NewID(2, 999, 1)})
		if err != nil || live[0].Task == nil || live[0].Task.ID != there || live[1].Task == nil || live[2].Task != nil {
			t.Errorf("views: %+v, %v", live, err)
		}
		if len(live[0].Task.Payload) != 0 {
			t.Error("a view came with its payload")
		}
		if ans, err := b.Cancel(t.Context(), core.Cancel{Tenant: "acme", ID: here, Reason: "no"}); err != nil || ans.Err != nil || ans.Outcome != headracev1.CancelOutcome_CANCEL_OUTCOME_CANCELLED {
			t.Errorf("cancel: %+v, %v", ans, err)
		}
		if ans, err := a.Cancel(t.Context(), core.Cancel{Tenant: "other", ID: there}); err != nil || !errors.Is(ans.Err, store.ErrNotFound) {
			t.Errorf("another tenant's: %+v, %v", ans, err)
		}
		if running, err := a.Running(t.Context(), "acme", "", nil, 10); err != nil || len(running) != 0 {
			t.Errorf("running: %v, %v", running, err)
		}
	})
}

// A node that the directory takes for the owner and is not refuses, and nothing is stored. A partition without an owner
// is nobody's.
func TestWrongOwnerRefuses(t *testing.T) {
	join(t, func(t *testing.T, c *cluster) {
		a := c.node("a", 1)
		c.node("b", 2)
		c.owns(3, "b")
		for _, p := range []uint32{3, 4} {
			if ans := a.submit(t, p, "0123456789abcdef"); !errors.Is(ans.Err, core.ErrNotOwner) {
				t.Errorf("partition %d: %+v", p, ans)
			}
		}
		_, err := a.Views(t.Context(), []task.ID{task.NewID(4, 1, 1)})
		if missing, err := Missing(err); err != nil || !slices.Equal(missing, []string{"partition 4"}) {
			t.Errorf("views without an owner: %v, %v", missing, err)
		}
		if ans, err := a.Cancel(t.Context(), core.Cancel{Tenant: "acme", ID: task.NewID(3, 1, 1)}); err != nil || !errors.Is(ans.Err, core.ErrNotOwner) {
			t.Errorf("cancel: %+v, %v", ans, err)
		}
	})
}

// A call to a node that can't be reached was never sent: somebody else may be asked, within moments. One that broke
// while it was under way may have been stored; a look, once the node answers, finds it.
func TestNeverSentAndUnknown(t *testing.T) {
	join(t, func(t *testing.T, c *cluster) {
		a, b := c.node("a", 1), c.node("b", 2)
		a.one(t, 2)
		gate, stuck := make(chan struct{}), make(chan struct{}, 1)
		b.store.Fail = func(op string) memstore.Fault {
			if op == "commit" {
				stuck <- struct{}{}
				<-gate
			}
			return memstore.Fault{}
		}
		answers := make(chan core.SubmitAnswer, 1)
		go func() { answers <- a.submit(t, 2, "0123456789abcdef") }()
		<-stuck
		b.vanish()
		if ans := <-answers; !errors.Is(ans.Err, core.ErrUnknownOutcome) {
			t.Errorf("under way: %+v", ans)
		}
		began := time.Now()
		if ans := a.submit(t, 2, "fedcba9876543210"); !errors.Is(ans.Err, core.ErrNotOwner) || time.Since(began) > connectMax {
			t.Errorf("never sent: %+v after %v", ans, time.Since(began))
		}
		for _, most := range []time.Duration{holdMargin, holdMargin + connectMax/2} { // its caller hears that, and not of its own deadline
			ctx, cancel := context.WithTimeout(t.Context(), most)
			ans, err := a.Submit(ctx, &core.Submit{Tenant: "acme", Partition: 2, Tasks: []*store.Task{{Tenant: "acme", Function: "f", Band: task.Normal}}})
			if deadline, _ := ctx.Deadline(); err != nil || !errors.Is(ans.Err, core.ErrNotOwner) || time.Until(deadline) < holdMargin {
				t.Errorf("never sent, of %v: %+v, %v; %v are left", most, ans, err, time.Until(deadline))
			}
			cancel()
		}
		if q, err := a.Elsewhere(t.Context(), 2, "acme", "0123456789abcdef"); err == nil || errors.Is(err, store.ErrNotFound) {
			t.Errorf("a look at a node that is away: %v, %v", q, err)
		}
		b.store.Fail = nil
		close(gate)
		c.mu.Lock()
		c.nodes[b.addr] = b
		c.mu.Unlock()
		faketime.Pass(10 * time.Second) // of the bubble: it is dialled again
		if q, err := a.Elsewhere(t.Context(), 2, "acme", "0123456789abcdef"); err != nil || len(q.IDs) != 1 {
			t.Errorf("the look: %v, %v", q, err)
		}
		if _, err := a.Elsewhere(t.Context(), 2, "acme", "fedcba9876543210"); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("a look for what was never sent: %v", err)
		}
		if ans := b.submit(t, 2, "fedcba9876543210"); !errors.Is(ans.Err, core.ErrUnknownOutcome) {
			t.Errorf("its first call comes after the look: %+v", ans)
		}
	})
}

// A node that leaves answers what it was sent before, if that doesn't take long. Of what takes longer the outcome is unknown.
func TestPeerThatLeavesAnswers(t *testing.T) {
	for took, want := range map[time.Duration]error{leaveMax / 2: nil, 2 * leaveMax: core.ErrUnknownOutcome} {
		join(t, func(t *testing.T, c *cluster) {
			a, b := c.node("a", 1), c.node("b", 2)
			a.one(t, 2)
			stuck := make(chan struct{}, 1)
			b.store.Fail = func(op string) memstore.Fault {
				if op == "commit" {
					stuck <- struct{}{}
					faketime.Pass(took)
				}
				return memstore.Fault{}
			}
			answers := make(chan core.SubmitAnswer, 1)
			go func() { answers <- a.submit(t, 2, "") }()
			<-stuck
			c.mu.Lock()
			d := *c.dir
			d.Nodes = slices.DeleteFunc(slices.Clone(d.Nodes), func(n shard.Node) bool { return n.ID == b.id })
			c.dir = &d
			c.mu.Unlock()
			a.Update()
			if ans := <-answers; !errors.Is(ans.Err, want) {
				t.Errorf("a commit of %v: %+v", took, ans)
			}
		})
	}
}

// A watch at another node brings the newest state, ends with the stream, and the next one opens another.
func TestWatchesOfAnotherNode(t *testing.T) {
	join(t, func(t *testing.T, c *cluster) {
		a, b := c.node("a", 1), c.node("b", 2)
		first, second := a.one(t, 2), a.one(t, 2)
		watch := func(id task.ID) (<-chan core.Event, func()) {
			t.Helper()
			events, stop, err := a.Watch(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			return events, stop
		}
		one, stopOne := watch(first)
		two, stopTwo := watch(second)
		synctest.Wait()
		if _, err := a.Cancel(t.Context(), core.Cancel{Tenant: "acme", ID: first}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // two events have come, nobody has read: the newest stays, and the end
		var last core.Event
		for ev := range one {
			last = ev
		}
		if last.Task == nil || last.Task.State != task.Cancelled {
			t.Errorf("the last event: %+v", last)
		}
		stopOne()
		b.vanish()
		for ev := range two {
			if ev.Task != nil && ev.Task.State.Terminal() {
				t.Errorf("%v", ev.Task.State)
			}
		}
		stopTwo()
		c.mu.Lock()
		c.nodes[b.addr] = b
		c.mu.Unlock()
		faketime.Pass(10 * time.Second) // of the bubble: it is dialled again
		again, stop := watch(second)
		defer stop()
		if _, err := a.Cancel(t.Context(), core.Cancel{Tenant: "acme", ID: second}); err != nil {
			t.Fatal(err)
		}
		for ev := range again {
			last = ev
		}
		if last.Task == nil || last.Task.ID != second || last.Task.State != task.Cancelled {
			t.Errorf("after the stream was opened again: %+v", last)
		}
		if gone, stop := watch(task.NewID(3, 1, 1)); true { // nobody's
			defer stop()
			if _, open := <-gone; open {
				t.Error("a task that nobody owns has an event")
			}
		}
	})
}

// Statistics of the others are those of a moment ago, with our own sends since; of a node that tells nothing any more
// nothing is known.
func TestStatisticsAge(t *testing.T) {
	join(t, func(t *testing.T, c *cluster) {
		a, b := c.node("a", 1), c.node("b", 2)
		for range 5 {
			b.one(t, 2)
		}
		faketime.Pass(time.Second) // of the bubble
		parts := a.Partitions()
		if len(parts) != 2 || parts[1].Partition != 2 || parts[1].Backlog != 5 {
			t.Errorf("a knows %+v", parts)
		}
		if l, ok := a.Load(2); !ok || l.Backlog != 5 {
			t.Errorf("the load of b: %+v, %v", l, ok)
		}
		if n := a.Node("b"); n == nil || n.Version != "of b" {
			t.Errorf("what b told of itself: %v", n)
		}
		if p, ok := a.Pick(1, 2, 7); !ok || p != 1 {
			t.Errorf("picked %d, %v", p, ok)
		}
		if p, ok := a.Pick(2, 1, 3); !ok || p != 2 { // 5 there, 7 on their way here
			t.Errorf("picked %d with our own sends, %v", p, ok)
		}
		if l, _ := a.Load(2); l.Backlog != 8 {
			t.Errorf("with what is on its way: %+v", l)
		}
		// What was refused is not chosen, however short its backlog, until its owner tells of it anew; nor is what nobody
		// has heard of yet.
		a.away.note(time.Now(), 1, core.ErrStoreSlow)
		if p, ok := a.Pick(1, 2, 0); !ok || p != 2 || a.Up(1) {
			t.Errorf("picked %d, %v, though 1 refuses", p, ok)
		}
		a.away.note(time.Now(), 2, core.ErrUnknownOutcome)
		if since, away := a.Away(2); !away || time.Since(since) != 0 {
			t.Errorf("2 is away since %v, %v", since, away)
		}
		faketime.Pass(4 * statsEvery)
		if _, away := a.Away(2); away || !a.Up(2) {
			t.Error("its owner has told that it has 2, and it counts as away")
		}
		faketime.Pass(awayLife)
		if !a.Up(1) {
			t.Error("1 is here, and counts as away")
		}
		c.owns(3, "b")
		if p, ok := a.Pick(3, 2, 0); !ok || p != 2 || a.Up(3) {
			t.Errorf("picked %d, %v, though b has not told that it has 3", p, ok)
		}
		if p, ok := a.Pick(3, 9, 0); !ok || p != 3 {
			t.Errorf("picked %d, %v, though 9 has no owner", p, ok)
		}
		c.mu.Lock()
		b.mute = true
		c.mu.Unlock()
		faketime.Pass(statsLife + time.Second)
		if parts := a.Partitions(); len(parts) != 1 {
			t.Errorf("of a silent node a still knows %+v", parts)
		}
		if l, ok := a.Load(2); ok || l != (Load{}) {
			t.Errorf("the load of a silent node: %+v, %v", l, ok)
		}
		if n := a.Node("b"); n != nil {
			t.Errorf("a silent node: %v", n)
		}
		c.mu.Lock()
		b.mute = false
		c.mu.Unlock()
		b.vanish() // what was cut off in the middle can't go on
		c.mu.Lock()
		c.nodes[b.addr] = b
		c.mu.Unlock()
		faketime.Pass(10 * time.Second)
		if _, ok := a.Load(2); !ok {
			t.Error("nothing is known of a node that is back")
		}
	})
}

// Answers are bounded: views come in pieces, and a peer that asks for too much is refused.
func TestBounds(t *testing.T) {
	join(t, func(t *testing.T, c *cluster) {
		a, b := c.node("a", 1), c.node("b", 2)
		var ids []task.ID
		for range 5 {
			ids = append(ids, b.one(t, 2))
		}
		for n := range uint64(2*maxViews + 300) {
			ids = append(ids, task.NewID(2, 10_000+n, 1))
		}
		ids = append(ids, b.one(t, 2))
		live, err := a.Views(t.Context(), ids)
		if err != nil || len(live) != len(ids) {
			t.Fatalf("%d views of %d, %v", len(live), len(ids), err)
		}
		for i, l := range live {
			if there := i < 5 || i == len(ids)-1; there != (l.Task != nil) || there && l.Task.ID != ids[i] {
				t.Errorf("view %d: %+v", i, l)
			}
		}
		if _, err := b.svc.ReadViews(t.Context(), &headracev1.ReadViewsRequest{TaskIds: make([][]byte, maxViews+1)}); err == nil {
			t.Error("more views than may be asked for at once")
		}
		if _, err := b.svc.ForwardSubmit(t.Context(), &headracev1.ForwardSubmitRequest{Tenant: "acme", Partition: 2, Tasks: make([][]byte, task.MaxBatchItems+1)}); err == nil {
			t.Error("more tasks than a batch may have")
		}
		other := store.Encode(nil, &store.Task{Tenant: "other", Function: "f"})
		if _, err := b.svc.ForwardSubmit(t.Context(), &headracev1.ForwardSubmitRequest{Tenant: "acme", Partition: 2, Tasks: [][]byte{other}}); err == nil {
			t.Error("a row of another tenant")
		}
	})
}

// Every error that means something to the caller crosses the wire as itself.
func TestErrorsCrossTheWire(t *testing.T) {
	for _, err := range []error{core.ErrNotOwner, core.ErrStoreSlow, store.ErrFull, core.ErrUnknownOutcome, store.ErrNotFound} {
		if got := readError(writeError(fmt.Errorf("submit: %w", err))); !errors.Is(got, err) {
			t.Errorf("%v became %v", err, got)
		}
	}
	exists := &core.ExistsError{ID: task.NewID(1, 2, 3), State: task.Running}
	var got *core.ExistsError
	if !errors.As(readError(writeError(exists)), &got) || *got != *exists {
		t.Errorf("%v became %v", exists, got)
	}
	if err := readError(writeError(errors.New("boom"))); err == nil || errors.Is(err, core.ErrNotOwner) {
		t.Errorf("another error became %v", err)
	}
	if readError(writeError(nil)) != nil {
		t.Error("no error became one")
	}
}
