package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/internal/ledger"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

// Every third answer to a submit is lost with its connection. The SDK's retries make no second task: there
// are as many tasks as requests, and each payload runs once.
func TestLostAnswersMakeNoSecondTask(t *testing.T) {
	s := newServer(t)
	s.start()
	w := ledger.StartWorker(t, s.listen, "outside")
	proxy := startProxy(t, s.listen)
	c := ledger.Dial(t, proxy.addr, "acme")

	const callers, each = 8, 40
	ids := make([][]string, callers)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for j := range each {
				sub, err := c.Submit(ledger.Within(t, time.Minute), client.Task{Function: "work", Payload: fmt.Appendf(nil, "%d/%d", i, j)})
				if err != nil {
					t.Errorf("submit: %v", err)
					return
				}
				ids[i] = append(ids[i], sub.ID)
			}
		})
	}
	wg.Wait()
	batch, err := c.SubmitBatch(ledger.Within(t, time.Minute), []client.Task{{Function: "work", Payload: []byte("a")}, {Function: "work", Payload: []byte("b")}})
	if err != nil {
		t.Fatal(err)
	}
	all := []string{batch[0].ID, batch[1].ID}
	for _, list := range ids {
		all = append(all, list...)
	}
	direct := ledger.Dial(t, s.listen, "acme")
	states := ledger.Audit(t, direct, all, time.Minute)
	t.Logf("%d answers of %d lost; %s", proxy.lost.Load(), proxy.seen.Load(), ledger.Describe(states, ledger.Read(t, w)))
	if proxy.lost.Load() == 0 {
		t.Error("the proxy lost nothing: the test shows nothing")
	}
	stored := 0
	payloads := map[string]int{}
	for info, err := range direct.ListAll(ledger.Within(t, time.Minute), client.ListOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		stored++
		full, err := direct.Get(ledger.Within(t, time.Minute), client.ByID(info.ID))
		if err != nil {
			t.Fatal(err)
		}
		payloads[string(full.Result)]++ // "work" answers its payload
	}
	if stored != callers*each+2 {
		t.Errorf("%d tasks stored for %d submits", stored, callers*each+2)
	}
	for p, n := range payloads {
		if n != 1 {
			t.Errorf("payload %q ran as %d tasks", p, n)
		}
	}
	if states[task.Succeeded] != len(all) {
		t.Errorf("%d succeeded of %d", states[task.Succeeded], len(all))
	}
}

// proxy forwards TaskService and cuts the connection instead of giving every third answer to a submit.
type proxy struct {
	headracev1.UnimplementedTaskServiceServer
	addr       string
	up         headracev1.TaskServiceClient
	seen, lost atomic.Int64
	mu         sync.Mutex          // guards conns
	conns      map[string]net.Conn // by the client's address
}

func startProxy(t *testing.T, upstream string) *proxy {
	t.Helper()
	conn, err := grpc.NewClient(upstream, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{addr: l.Addr().String(), up: headracev1.NewTaskServiceClient(conn), conns: map[string]net.Conn{}}
	srv := grpc.NewServer()
	headracev1.RegisterTaskServiceServer(srv, p)
	go func() { _ = srv.Serve(listener{l, p}) }()
	t.Cleanup(func() { srv.Stop(); conn.Close() })
	return p
}

type listener struct {
	net.Listener
	p *proxy
}

func (l listener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.p.mu.Lock()
		l.p.conns[conn.RemoteAddr().String()] = conn
		l.p.mu.Unlock()
	}
	return conn, err
}

// swallow cuts the caller's connection at every third call, after the server has done its work.
func (p *proxy) swallow(ctx context.Context) {
	if p.seen.Add(1)%3 != 0 {
		return
	}
	p.lost.Add(1)
	from, _ := peer.FromContext(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	if conn := p.conns[from.Addr.String()]; conn != nil {
		conn.Close()
	}
}

func (p *proxy) Submit(ctx context.Context, r *headracev1.SubmitRequest) (*headracev1.SubmitResponse, error) {
	a, err := p.up.Submit(context.WithoutCancel(ctx), r)
	p.swallow(ctx)
	return a, err
}

func (p *proxy) SubmitBatch(ctx context.Context, r *headracev1.SubmitBatchRequest) (*headracev1.SubmitBatchResponse, error) {
	a, err := p.up.SubmitBatch(context.WithoutCancel(ctx), r)
	p.swallow(ctx)
	return a, err
}

func (p *proxy) Wait(r *headracev1.WaitRequest, out grpc.ServerStreamingServer[headracev1.WaitResponse]) error {
	in, err := p.up.Wait(out.Context(), r)
	if err != nil {
		return err
	}
	for {
		m, err := in.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := out.Send(m); err != nil {
			return err
		}
	}
}
