// Package testcluster runs a real node with real clients and executors in a testing/synctest bubble: real
// goroutines, gRPC and deadlines, and a time that costs nothing. Only the disk, etcd and the network are
// in memory.
//
// Its tests are those of the whole server: what needs more than one package, and less than a process. Time
// in a bubble is deterministic, the interleaving of goroutines is not; internal/sim is for that.
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

// Cluster is one node over a disk and a registry that outlive it. Its methods belong to the test's goroutine.
type Cluster struct {
	t        *testing.T
	Config   dispatcher.Config // for the next Start; what the harness needs is filled in
	data     *memstore.Data
	registry *memshard.Registry

	node   *dispatcher.Node
	stop   context.CancelFunc
	ended  chan error
	store  *memstore.Store
	conn   *memshard.Conn
	killed *atomic.Bool

	mu    sync.Mutex        // guards following
	lis   *bufconn.Listener // of the running node; nil: nobody listens
	conns []net.Conn        // to it
}

// Run runs f with a started cluster in a bubble, and stops everything that f left.
func Run(t *testing.T, f func(t *testing.T, c *Cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := &Cluster{t: t, data: new(memstore.Data), registry: memshard.New()}
		t.Cleanup(func() {
			c.Stop()
			c.registry.Close()
		})
		c.Start()
		f(t, c)
	})
}

// Start starts a node and returns when it is ready.
func (c *Cluster) Start() {
	c.t.Helper()
	lis := bufconn.Listen(1 << 20)
	c.store = memstore.Open(c.data)
	c.conn = c.registry.Connect()
	killed := new(atomic.Bool)
	c.killed = killed
	c.store.Fail = func(string) memstore.Fault {
		if killed.Load() {
			return memstore.Fault{Err: errors.New("this process is dead")}
		}
		return memstore.Fault{}
	}
	c.mu.Lock()
	c.lis, c.conns = lis, nil
	c.mu.Unlock()
	cfg := c.Config
	cfg.Store, cfg.Registry, cfg.Secret, cfg.Listener, cfg.HTTP = store.Store(c.store), c.conn, "secret of the test", lis, "off"
	cfg.MemoryBytes = -1
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	node, err := dispatcher.New(cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	c.node, c.stop, c.ended = node, cancel, ended
	go func() { ended <- node.Run(ctx) }()
	select {
	case <-node.Ready():
	case err := <-c.ended:
		c.t.Fatalf("the node has ended: %v", err)
	case <-time.After(time.Minute):
		c.t.Fatal("the node is not ready after a minute")
	}
}

// Stop ends the node in an orderly way and returns how long that took.
func (c *Cluster) Stop() time.Duration {
	c.t.Helper()
	if c.node == nil {
		return 0
	}
	began := time.Now()
	c.stop()
	if err := <-c.ended; err != nil {
		c.t.Errorf("stop: %v", err)
	}
	c.unlisten()
	c.node = nil
	return time.Since(began)
}

// Kill ends the node as a crash does: from now on nothing of it reaches the disk, the registry or a peer. What
// is left of it ends beside the next node, as a process would that is only thought to be dead.
func (c *Cluster) Kill() {
	c.t.Helper()
	c.killed.Store(true)
	c.conn.Cut()
	c.unlisten()
	c.stop()
	ended := c.ended
	c.t.Cleanup(func() { <-ended }) // its errors are those of a dead process
	c.node = nil
}

func (c *Cluster) unlisten() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lis != nil {
		_ = c.lis.Close()
		c.lis = nil
	}
	for _, conn := range c.conns {
		_ = conn.Close()
	}
}

// Dial connects to the running node.
func (c *Cluster) Dial(ctx context.Context, _ string) (net.Conn, error) {
	c.mu.Lock()
	lis := c.lis
	c.mu.Unlock()
	if lis == nil {
		return nil, errors.New("nobody listens")
	}
	conn, err := lis.DialContext(ctx)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lis != lis {
		_ = conn.Close()
		return nil, errors.New("the node has just gone")
	}
	c.conns = append(c.conns, conn)
	return conn, nil
}

// Client returns a client of the tenant.
func (c *Cluster) Client(tenant string) *client.Client {
	c.t.Helper()
	cl, err := client.Dial(client.Config{Addr: "127.0.0.1:7070", Tenant: tenant, Dialer: c.Dial})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(cl.Close)
	return cl
}

// Raw returns a plain gRPC connection, for what the SDK would not send.
func (c *Cluster) Raw() *grpc.ClientConn {
	c.t.Helper()
	cc, err := grpc.NewClient("passthrough:///node", append(grpcx.DialOptions(0),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return c.Dial(ctx, addr) }))...)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = cc.Close() })
	return cc
}

// Executor runs an executor whose functions register adds, until the test ends.
func (c *Cluster) Executor(slots int, tenant string, register func(*executor.Executor)) *executor.Executor {
	c.t.Helper()
	log := slog.New(slog.DiscardHandler)
	x, err := executor.New(executor.Config{Logger: log, Addr: "127.0.0.1:7070", Tenant: tenant, Slots: slots, Name: fmt.Sprint("x-", tenant), Dialer: c.Dial, DrainTimeout: time.Second})
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
