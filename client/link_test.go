package client_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/test/bufconn"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/internal/faketime"
	"github.com/headrace/headrace/internal/grpcx"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

// network joins a client with nodes by their addresses. All nodes serve the same tasks, as those of a cluster do.
type network struct {
	t     *testing.T
	tasks *fakeServer

	mu    sync.Mutex // guards following
	nodes map[string]*bufconn.Listener
	conns map[string][]*mutable
	dials []string
}

// mutable is a connection on which, once it is mute, nothing arrives and nothing says so.
type mutable struct {
	net.Conn
	mute, closed chan struct{}
	once         sync.Once
}

func (m *mutable) isMute() bool {
	select {
	case <-m.mute:
		return true
	default:
		return false
	}
}

func (m *mutable) Write(b []byte) (int, error) {
	if m.isMute() {
		return len(b), nil
	}
	return m.Conn.Write(b)
}

func (m *mutable) Read(b []byte) (int, error) {
	n, err := m.Conn.Read(b)
	if m.isMute() {
		<-m.closed
		return 0, net.ErrClosed
	}
	return n, err
}

func (m *mutable) Close() error {
	m.once.Do(func() { close(m.closed) })
	return m.Conn.Close()
}

func onNetwork(t *testing.T, addrs []string, f func(t *testing.T, n *network)) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{t: t, tasks: newFake(), nodes: map[string]*bufconn.Listener{}, conns: map[string][]*mutable{}}
		t.Cleanup(n.tasks.stop)
		for _, a := range addrs {
			n.serve(a)
		}
		f(t, n)
	})
}

func (n *network) serve(addr string) {
	lis := bufconn.Listen(1 << 20)
	srv := grpc.NewServer(grpcx.ServerOptions(0, 0)...)
	headracev1.RegisterTaskServiceServer(srv, n.tasks)
	go func() { _ = srv.Serve(lis) }()
	n.t.Cleanup(srv.Stop)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.nodes[addr] = lis
}

func (n *network) dial(ctx context.Context, addr string) (net.Conn, error) {
	n.mu.Lock()
	n.dials = append(n.dials, addr)
	lis := n.nodes[addr]
	n.mu.Unlock()
	if lis == nil {
		return nil, errors.New("nobody is there")
	}
	conn, err := lis.DialContext(ctx)
	if err != nil {
		return nil, err
	}
	m := &mutable{Conn: conn, mute: make(chan struct{}), closed: make(chan struct{})}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.conns[addr] = append(n.conns[addr], m)
	return m, nil
}

// last is the address that was dialled last.
func (n *network) last() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dials[len(n.dials)-1]
}

// kill ends a node: its connections break, and nobody listens any more.
func (n *network) kill(addr string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.nodes, addr)
	for _, c := range n.conns[addr] {
		_ = c.Close()
	}
}

// mute silences the connections to a node that are there now.
func (n *network) mute(addr string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.conns[addr] {
		if !c.isMute() {
			close(c.mute)
		}
	}
}

func (n *network) client(cfg client.Config) *client.Client {
	n.t.Helper()
	cfg.Dialer = n.dial
	c, err := client.Dial(cfg)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(c.Close)
	return c
}

// submits stores one task and returns how long that took.
func (n *network) submits(c *client.Client) time.Duration {
	n.t.Helper()
	began := time.Now()
	if _, err := c.Submit(n.t.Context(), client.Task{Function: "f"}); err != nil {
		n.t.Fatal(err)
	}
	return time.Since(began)
}

func (n *network) stored() int {
	n.tasks.mu.Lock()
	defer n.tasks.mu.Unlock()
	return len(n.tasks.tasks)
}

// A node dies while it has a submit in hand that it has stored: another one gets the same request at once, as
// a retry.
func TestAnotherNodeIsTakenAtOnce(t *testing.T) {
	onNetwork(t, []string{"a:1", "b:1"}, func(t *testing.T, n *network) {
		c := n.client(client.Config{Addr: "a:1, b:1"})
		n.submits(c)
		n.tasks.submit = func(call int, req *headracev1.SubmitBatchRequest, commit func() *headracev1.SubmitBatchResponse) (*headracev1.SubmitBatchResponse, error) {
			if call == 2 {
				n.kill(n.last())
			}
			return commit(), nil
		}
		if took := n.submits(c); took > 200*time.Millisecond {
			t.Errorf("took %v", took)
		}
		calls := n.tasks.calls
		if len(calls) != 3 || n.stored() != 2 || !calls[2].Retry || string(calls[2].RequestId) != string(calls[1].RequestId) {
			t.Errorf("%d calls, %d tasks", len(calls), n.stored())
		}
	})
}

// The network to a node drops everything and says nothing (B112, B114): a submit goes elsewhere within 4 s, also where
// elsewhere is another connection to the same address.
func TestSilentNetworkIsNoticed(t *testing.T) {
	for _, addr := range []string{"a:1,b:1", "a:1"} {
		t.Run(addr, func(t *testing.T) {
			onNetwork(t, []string{"a:1", "b:1"}, func(t *testing.T, n *network) {
				c := n.client(client.Config{Addr: addr})
				n.submits(c)
				was := n.last()
				n.mute(was)
				if took := n.submits(c); took < quiet || took > 4*time.Second {
					t.Errorf("took %v", took)
				}
				if len(addr) > 3 && n.last() == was {
					t.Error("the same node was dialled again")
				}
				if n.stored() != 2 {
					t.Errorf("%d tasks", n.stored())
				}
			})
		})
	}
}

const quiet = 2 * time.Second

// A wait that is silent for hours is looked after as well: it goes on elsewhere, and misses nothing.
func TestWaitGoesOnElsewhere(t *testing.T) {
	onNetwork(t, []string{"a:1", "b:1"}, func(t *testing.T, n *network) {
		c := n.client(client.Config{Addr: "a:1,b:1"})
		s, err := c.Submit(t.Context(), client.Task{Function: "f"})
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() {
			_, err := c.Wait(t.Context(), client.ByID(s.ID))
			ended <- err
		}()
		synctest.Wait()
		faketime.Pass(time.Hour)
		n.mu.Lock()
		dials := len(n.dials)
		n.mu.Unlock()
		if dials != 1 {
			t.Errorf("%d connections in an hour of silence", dials)
		}
		n.mute(n.last())
		faketime.Pass(11 * time.Second)
		n.tasks.change(s.ID, func(t *headracev1.Task) { t.State = headracev1.TaskState(task.Succeeded) })
		synctest.Wait()
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		default:
			t.Error("the wait has not gone elsewhere")
			c.Close()
		}
	})
}

// A server that takes its time for an answer is not dead.
func TestSlowAnswerIsNoSilence(t *testing.T) {
	onNetwork(t, []string{"a:1", "b:1"}, func(t *testing.T, n *network) {
		n.tasks.submit = func(_ int, _ *headracev1.SubmitBatchRequest, commit func() *headracev1.SubmitBatchResponse) (*headracev1.SubmitBatchResponse, error) {
			faketime.Pass(time.Minute)
			return commit(), nil
		}
		c := n.client(client.Config{Addr: "a:1,b:1", CallTimeout: 5 * time.Minute})
		n.submits(c)
		if len(n.tasks.calls) != 1 || len(n.dials) != 1 {
			t.Errorf("%d calls on %d connections", len(n.tasks.calls), len(n.dials))
		}
	})
}

// A node that says that it goes away is left at once, calls under way there may end.
func TestNodeThatGoesAwayIsLeft(t *testing.T) {
	onNetwork(t, []string{"a:1", "b:1"}, func(t *testing.T, n *network) {
		hold := make(chan struct{})
		n.tasks.submit = func(call int, _ *headracev1.SubmitBatchRequest, commit func() *headracev1.SubmitBatchResponse) (*headracev1.SubmitBatchResponse, error) {
			switch call {
			case 1:
				<-hold
			case 2:
				return nil, grpcx.Info{Code: codes.Unavailable, Reason: "draining", Message: "this node is going away", RetryAfter: 100 * time.Millisecond}.Err()
			}
			return commit(), nil
		}
		c := n.client(client.Config{Addr: "a:1,b:1"})
		first := make(chan error, 1)
		go func() {
			_, err := c.Submit(t.Context(), client.Task{Function: "f"})
			first <- err
		}()
		synctest.Wait()
		was := n.last()
		if took := n.submits(c); took > 300*time.Millisecond || n.last() == was {
			t.Errorf("after %v on %s, before on %s", took, n.last(), was)
		}
		close(hold)
		if err := <-first; err != nil {
			t.Error(err)
		}
		if len(n.tasks.calls) != 3 {
			t.Errorf("%d calls", len(n.tasks.calls))
		}
	})
}

// Both nodes are replaced, and their name leads nowhere for a while: the client is back soon after it does (B112).
func TestNameThatMoves(t *testing.T) {
	onNetwork(t, []string{"nodes.example:1"}, func(t *testing.T, n *network) {
		c := n.client(client.Config{Addr: "nodes.example:1"})
		n.submits(c)
		n.kill("nodes.example:1")
		time.AfterFunc(20*time.Second, func() { n.serve("nodes.example:1") })
		if took := n.submits(c); took < 20*time.Second || took > 27*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

func TestAddrIsChecked(t *testing.T) {
	for _, addr := range []string{"a:1,", "a:1,b", ",", "a:1;b:1"} {
		var field *task.FieldError
		if _, err := client.Dial(client.Config{Addr: addr}); !errors.As(err, &field) || field.Field != "Addr" {
			t.Errorf("%q: %v", addr, err)
		}
	}
	if !slices.Equal(grpcx.Addrs("a:1, b:1"), []string{"a:1", "b:1"}) {
		t.Error("blanks stay")
	}
}
