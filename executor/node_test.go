package executor_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/headrace/headrace/executor"
	"github.com/headrace/headrace/internal/grpcx"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

// node is a real gRPC server of ExecutorService that does what the test says. By itself it welcomes,
// answers beats, adopts claims and commits outcomes at once; fields switch that off.
type node struct {
	headracev1.UnimplementedExecutorServiceServer
	t   testing.TB
	id  string
	lis *bufconn.Listener

	mu        sync.Mutex // guards following
	server    *grpc.Server
	epoch     uint64
	partition uint32
	deaf      bool // answers no beats
	mute      bool // says nothing at all
	hold      bool // commits nothing
	payloads  map[task.ID][]byte
	fetchErr  error
	nodes     []*headracev1.DirectoryNode // of the directory; nil: this one
	changed   chan struct{}
	pushes    uint64

	sessions chan *session // each new one
	acks     chan *headracev1.Ack
	outcomes chan *headracev1.Outcome // as reported, claims included
	claims   chan *headracev1.Claim
	reports  chan *headracev1.SessionRequest // messages with progress or logs
}

// session is one executor's stream, from the node's side.
type session struct {
	n      *node
	stream grpc.BidiStreamingServer[headracev1.SessionRequest, headracev1.SessionResponse]
	hello  *headracev1.Hello
	cut    chan struct{} // close it to end the stream

	mu       sync.Mutex // guards following, and sending
	beat     uint64     // newest answered
	credit   uint64
	sent     uint64
	draining bool
}

func newNode(t testing.TB) *node {
	n := &node{
		t: t, id: "n1", epoch: 5, partition: 1, payloads: map[task.ID][]byte{}, changed: make(chan struct{}),
		sessions: make(chan *session, 64), acks: make(chan *headracev1.Ack, 4096), outcomes: make(chan *headracev1.Outcome, 4096),
		claims: make(chan *headracev1.Claim, 4096), reports: make(chan *headracev1.SessionRequest, 4096),
	}
	n.start()
	return n
}

func (n *node) start() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lis = bufconn.Listen(1 << 20)
	n.server = grpc.NewServer(grpcx.ServerOptions(0, 0)...)
	headracev1.RegisterExecutorServiceServer(n.server, n)
	go n.server.Serve(n.lis)
}

// stop kills the server: all streams break.
func (n *node) stop() {
	n.mu.Lock()
	s := n.server
	n.mu.Unlock()
	s.Stop()
}

func (n *node) dial(ctx context.Context, _ string) (net.Conn, error) {
	n.mu.Lock()
	lis := n.lis
	n.mu.Unlock()
	return lis.DialContext(ctx)
}

func (n *node) set(f func(*node)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f(n)
}

func (n *node) Directory(_ *headracev1.DirectoryRequest, st grpc.ServerStreamingServer[headracev1.DirectoryResponse]) error {
	for {
		n.mu.Lock()
		nodes, changed := n.nodes, n.changed
		if nodes == nil {
			nodes = []*headracev1.DirectoryNode{{Id: n.id, Partitions: []uint32{n.partition}}}
		}
		n.mu.Unlock()
		if err := st.Send(&headracev1.DirectoryResponse{Nodes: nodes}); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-st.Context().Done():
			return nil
		}
	}
}

func (n *node) FetchPayload(_ context.Context, r *headracev1.FetchPayloadRequest) (*headracev1.FetchPayloadResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fetchErr != nil {
		return nil, n.fetchErr
	}
	p, ok := n.payloads[task.ID(r.TaskId)]
	if !ok {
		return nil, status.Error(codes.NotFound, "no payload")
	}
	return &headracev1.FetchPayloadResponse{Payload: p}, nil
}

func (n *node) Session(st grpc.BidiStreamingServer[headracev1.SessionRequest, headracev1.SessionResponse]) error {
	m, err := st.Recv()
	if err != nil {
		return err
	}
	s := &session{n: n, stream: st, hello: m.Hello, cut: make(chan struct{})}
	n.mu.Lock()
	welcome := &headracev1.Welcome{NodeId: n.id, Epochs: []*headracev1.PartitionEpoch{{Partition: n.partition, Epoch: n.epoch}}}
	n.mu.Unlock()
	s.send(&headracev1.SessionResponse{Welcome: welcome})
	ended := make(chan error, 1)
	go func() {
		s.handle(m)
		n.sessions <- s
		for {
			m, err := st.Recv()
			if err != nil {
				ended <- err
				return
			}
			s.handle(m)
		}
	}()
	select {
	case err := <-ended:
		if err == io.EOF {
			return nil
		}
		return err
	case <-s.cut:
		return status.Error(codes.Unavailable, "cut")
	}
}

func (s *session) send(m *headracev1.SessionResponse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stream.Send(m)
}

func (s *session) handle(m *headracev1.SessionRequest) {
	n := s.n
	n.mu.Lock()
	epoch, deaf, hold, mute := n.epoch, n.deaf, n.hold, n.mute
	n.mu.Unlock()
	r := &headracev1.SessionResponse{}
	if m.Hello != nil {
		for _, c := range m.Hello.Claims {
			n.claims <- c
			r.Claims = append(r.Claims, &headracev1.ClaimAnswer{TaskId: c.TaskId, Token: c.Token, Adopted: true, Epoch: epoch})
			if c.Outcome != nil {
				m.Outcomes = append(m.Outcomes, c.Outcome)
			}
		}
	}
	for _, a := range m.Acks {
		n.acks <- a
	}
	if len(m.Progress)+len(m.Logs) > 0 {
		n.reports <- m
	}
	if m.Beat != nil && !deaf {
		r.BeatAnswer = &headracev1.BeatAnswer{Number: m.Beat.Number, Partitions: []*headracev1.PartitionEpoch{{Partition: n.partition, Epoch: epoch}}}
	}
	for _, o := range m.Outcomes {
		n.outcomes <- o
		if !hold {
			r.Committed = append(r.Committed, &headracev1.Committed{TaskId: o.TaskId, Token: o.Token})
		}
	}
	s.mu.Lock()
	if m.Beat != nil {
		s.beat = m.Beat.Number
	}
	s.credit = max(s.credit, m.Credit)
	s.draining = s.draining || m.Draining
	s.mu.Unlock()
	if !mute {
		s.send(r)
	}
}

// push sends a task, with its id from seq, and checks that there is credit for it.
func (s *session) push(seq uint64, change func(*headracev1.Push)) *headracev1.Push {
	n := s.n
	n.mu.Lock()
	n.pushes++
	p := &headracev1.Push{
		Token: &headracev1.Token{Epoch: n.epoch, Push: n.pushes}, Tenant: "default", Function: "f", Attempt: 1,
	}
	id := task.NewID(n.partition, seq, seq*977)
	n.mu.Unlock()
	p.TaskId = id[:]
	s.mu.Lock()
	p.Beat = s.beat
	s.sent++
	if s.sent > s.credit {
		n.t.Errorf("push %d with a credit of %d", s.sent, s.credit)
	}
	s.mu.Unlock()
	if change != nil {
		change(p)
	}
	s.send(&headracev1.SessionResponse{Pushes: []*headracev1.Push{p}})
	return p
}

func (s *session) cancel(p *headracev1.Push, cause headracev1.CancelCause, reason string) {
	s.send(&headracev1.SessionResponse{Cancels: []*headracev1.CancelTry{{TaskId: p.TaskId, Token: p.Token, Cause: cause, Reason: reason, Epoch: s.n.epoch}}})
}

// rig is one executor on one node.
type rig struct {
	t   testing.TB
	n   *node
	x   *executor.Executor
	ran chan error
	end context.CancelFunc
}

// run starts an executor with what register gives it, and waits for its session. Everything ends with the test.
func run(t testing.TB, cfg executor.Config, register func(*executor.Executor)) (*rig, *session) {
	t.Helper()
	n := newNode(t)
	cfg.Addr, cfg.Dialer = "passthrough:///node", n.dial
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	x, err := executor.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	register(x)
	ctx, cancel := context.WithCancel(context.Background())
	r := &rig{t: t, n: n, x: x, ran: make(chan error, 1), end: cancel}
	go func() { r.ran <- x.Run(ctx) }()
	return r, <-n.sessions
}

// close ends the executor, which must leave nothing behind, and the node.
func (r *rig) close() {
	r.t.Helper()
	r.end()
	if err := <-r.ran; err != nil {
		r.t.Errorf("Run = %v", err)
	}
	r.n.stop()
}

func (r *rig) outcome() *headracev1.Outcome {
	r.t.Helper()
	select {
	case o := <-r.n.outcomes:
		return o
	case <-time.After(time.Hour): // of the bubble
		r.t.Fatal("no outcome within an hour")
		return nil
	}
}

func text(o *headracev1.Outcome) string {
	return fmt.Sprintf("%v %s%s", task.Class(o.ErrorClass), o.Result, o.Message)
}
