package testcluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/dispatcher"
	"github.com/headrace/headrace/executor"
	"github.com/headrace/headrace/internal/grpcx"
	"github.com/headrace/headrace/shard/memshard"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/store/memstore"
)

// Several is a cluster: nodes over one registry and shared databases, each node with its own connections to them.
// Its methods belong to the test's goroutine.
type Several struct {
	t        *testing.T
	Config   dispatcher.Config // for the next Start; what the harness needs is filled in
	data     []*memstore.Data  // by database
	registry *memshard.Registry
	// OnTask, if set, is told each task that a node is about to handle, by the node's own goroutine (see
	// dispatcher.Config.OnTask). Set it before anything is submitted.
	OnTask func(*OneNode, *store.Task)

	mu    sync.Mutex          // guards following
	nodes map[string]*OneNode // by address, those that listen
	all   []*OneNode          // that were started
}

// OneNode is one node's process.
type OneNode struct {
	Addr string
	c    *Several

	node   *dispatcher.Node
	stop   context.CancelFunc
	ended  chan error
	conn   *memshard.Conn
	killed atomic.Bool
	freeze *frozen
	ends   bool // it was stopped or killed

	// Fault, if set, is asked at each call of a database (see memstore.Store.Fail).
	fault atomic.Pointer[func(database int, op string) memstore.Fault]

	lis   *bufconn.Listener
	conns []net.Conn // to it; guarded by Several.mu
}

// frozen holds back what a paused process does.
type frozen struct {
	mu   sync.Mutex    // guards following
	gate chan struct{} // closed: go on
}

func (f *frozen) wait() {
	f.mu.Lock()
	gate := f.gate
	f.mu.Unlock()
	<-gate
}

func (f *frozen) set(on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if on {
		f.gate = make(chan struct{})
	} else {
		close(f.gate)
	}
}

// RunSeveral runs f with a cluster of n nodes and some databases of four partitions each, in a bubble.
func RunSeveral(t *testing.T, n, databases int, f func(t *testing.T, c *Several)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := &Several{t: t, registry: memshard.New(), nodes: map[string]*OneNode{}}
		for range databases {
			c.data = append(c.data, new(memstore.Data))
		}
		t.Cleanup(func() {
			for _, n := range c.all {
				if !n.ends {
					n.Stop()
				}
			}
			c.registry.Close()
		})
		for range n {
			c.Start()
		}
		f(t, c)
	})
}

// Start starts one more node and returns when it is ready.
func (c *Several) Start() *OneNode {
	c.t.Helper()
	return c.start(fmt.Sprintf("10.0.0.%d:7070", len(c.all)+1))
}

// Restart starts the next run of a node that was stopped or killed, at its address.
func (c *Several) Restart(n *OneNode) *OneNode {
	c.t.Helper()
	return c.start(n.Addr)
}

func (c *Several) start(addr string) *OneNode {
	c.t.Helper()
	n := &OneNode{c: c, Addr: addr, conn: c.registry.Connect(),
		lis: bufconn.Listen(1 << 20), freeze: &frozen{gate: make(chan struct{})}, ended: make(chan error, 1)}
	close(n.freeze.gate)
	cfg := c.Config
	for i, data := range c.data {
		s := memstore.Open(data)
		s.Fail = func(op string) memstore.Fault {
			n.freeze.wait()
			if n.killed.Load() {
				return memstore.Fault{Err: errors.New("this process is dead")}
			}
			if f := n.fault.Load(); f != nil {
				return (*f)(i, op)
			}
			return memstore.Fault{}
		}
		cfg.Databases = append(cfg.Databases, dispatcher.Database{Name: fmt.Sprint("db", i+1), Partitions: 4, Store: s})
	}
	cfg.Registry, cfg.Listener, cfg.HTTP, cfg.Advertise, cfg.MemoryBytes = n.conn, n.lis, "off", n.Addr, -1
	cfg.PeerDialer = func(ctx context.Context, addr string) (net.Conn, error) { return c.dial(ctx, n, addr) }
	cfg.OnTask = func(t *store.Task) {
		if c.OnTask != nil {
			c.OnTask(n, t)
		}
	}
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	cfg.Logger = cfg.Logger.With(zap.String("at", n.Addr))
	node, err := dispatcher.New(cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	n.node, n.stop = node, cancel
	c.mu.Lock()
	c.nodes[n.Addr] = n
	c.all = append(c.all, n)
	c.mu.Unlock()
	go func() { n.ended <- node.Run(ctx) }()
	select {
	case <-node.Ready():
	case err := <-n.ended:
		c.t.Fatalf("node %s has ended: %v", n.Addr, err)
	case <-time.After(time.Minute):
		c.t.Fatalf("node %s is not ready after a minute", n.Addr)
	}
	return n
}

// Registry is what all nodes share, to be restored.
func (c *Several) Registry() *memshard.Registry { return c.registry }

// Database is the data of one, by its index, to be restored.
func (c *Several) Database(i int) *memstore.Data { return c.data[i] }

// AddDatabase adds an empty database to the configuration of the nodes that are started from now on.
func (c *Several) AddDatabase() { c.data = append(c.data, new(memstore.Data)) }

// All returns the nodes that were started, oldest first.
func (c *Several) All() []*OneNode { return c.all }

// Alive reports whether the node was neither stopped nor killed.
func (n *OneNode) Alive() bool { return !n.ends && !n.killed.Load() }

// ID names the node in lists.
func (n *OneNode) ID() string { return n.node.ID() }

// Stop ends the node in an orderly way and returns how long that took.
func (n *OneNode) Stop() time.Duration {
	n.c.t.Helper()
	n.ends = true
	began := time.Now()
	n.stop()
	if err := <-n.ended; err != nil {
		n.c.t.Errorf("stop %s: %v", n.Addr, err)
	}
	n.unlisten()
	return time.Since(began)
}

// Kill ends the node as a crash does: from now on nothing of it reaches a database, the registry or a peer.
func (n *OneNode) Kill() {
	n.c.t.Helper()
	n.ends = true
	n.Die()
	n.unlisten()
	n.stop()
	n.c.t.Cleanup(func() { <-n.ended }) // its errors are those of a dead process
}

// Die is the first part of Kill, for any goroutine: nothing of the node has an effect any more. Kill follows.
func (n *OneNode) Die() {
	n.killed.Store(true)
	n.conn.Cut()
}

// Pause keeps everything that the node does from having an effect, and everything else from reaching it, until
// Resume: calls of databases and of the registry wait, bytes stay on their way.
func (n *OneNode) Pause() {
	n.conn.Cut()
	n.freeze.set(true)
}

// Resume ends a Pause.
func (n *OneNode) Resume() {
	n.freeze.set(false)
	n.conn.Heal()
}

// CutRegistry cuts the node off from the registry only; the answer heals that.
func (n *OneNode) CutRegistry() (heal func()) {
	n.conn.Cut()
	return n.conn.Heal
}

// Fault has f asked at each call of one of the node's databases; nil: none fails.
func (n *OneNode) Fault(f func(database int, op string) memstore.Fault) {
	if f == nil {
		n.fault.Store(nil)
		return
	}
	n.fault.Store(&f)
}

func (n *OneNode) unlisten() {
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	delete(n.c.nodes, n.Addr)
	_ = n.lis.Close()
	for _, conn := range n.conns {
		_ = conn.Close()
	}
}

// Dial connects to a node by its address.
func (c *Several) Dial(ctx context.Context, addr string) (net.Conn, error) {
	return c.dial(ctx, nil, addr)
}

// dial connects; from is the node that does, nil: somebody else. The connection ends with either.
func (c *Several) dial(ctx context.Context, from *OneNode, addr string) (net.Conn, error) {
	c.mu.Lock()
	to := c.nodes[addr]
	c.mu.Unlock()
	if to == nil || from != nil && from.killed.Load() {
		return nil, errors.New("nobody listens")
	}
	raw, err := to.lis.DialContext(ctx)
	if err != nil {
		return nil, err
	}
	conn := &gated{Conn: raw, gates: []*frozen{to.freeze}}
	if from != nil {
		conn.gates = append(conn.gates, from.freeze)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.nodes[addr] != to {
		_ = raw.Close()
		return nil, errors.New("the node has just gone")
	}
	to.conns = append(to.conns, conn)
	if from != nil {
		from.conns = append(from.conns, conn)
	}
	return conn, nil
}

// gated is a connection whose bytes wait while one of its ends is paused.
type gated struct {
	net.Conn
	gates []*frozen
}

func (g *gated) Write(b []byte) (int, error) {
	for _, f := range g.gates {
		f.wait()
	}
	return g.Conn.Write(b)
}

func (g *gated) Read(b []byte) (int, error) {
	n, err := g.Conn.Read(b)
	for _, f := range g.gates {
		f.wait()
	}
	return n, err
}

// Client returns a client of the tenant that talks to the node.
func (n *OneNode) Client(tenant string) *client.Client {
	n.c.t.Helper()
	cl, err := client.Dial(client.Config{Addr: n.Addr, Tenant: tenant, Dialer: n.c.Dial})
	if err != nil {
		n.c.t.Fatal(err)
	}
	n.c.t.Cleanup(cl.Close)
	return cl
}

// Raw returns a plain gRPC connection to the node.
func (n *OneNode) Raw() *grpc.ClientConn {
	n.c.t.Helper()
	cc, err := grpc.NewClient("passthrough:///"+n.Addr, append(grpcx.DialOptions(0),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(n.c.Dial))...)
	if err != nil {
		n.c.t.Fatal(err)
	}
	n.c.t.Cleanup(func() { _ = cc.Close() })
	return cc
}

// Executor runs an executor that is configured with the node's address, until the test ends.
func (n *OneNode) Executor(slots int, tenant string, register func(*executor.Executor)) *executor.Executor {
	c := n.c
	c.t.Helper()
	x, err := executor.New(executor.Config{Logger: slog.New(slog.DiscardHandler), Addr: n.Addr, Tenant: tenant, Slots: slots,
		Name: fmt.Sprint("x-", tenant), Dialer: c.Dial, DrainTimeout: time.Second})
	if err != nil {
		c.t.Fatal(err)
	}
	register(x)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- x.Run(ctx) }()
	c.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, executor.ErrUnfinished) {
			c.t.Errorf("executor: %v", err)
		}
	})
	select {
	case <-x.Ready():
	case err := <-ended:
		ended <- err
		c.t.Fatalf("the executor has ended: %v", err)
	}
	return x
}
