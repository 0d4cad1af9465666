package push_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/dispatcher/push"
	"github.com/headrace/headrace/internal/faketime"
	"github.com/headrace/headrace/internal/grpcx"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
)

type outbox = interface {
	Put(*headracev1.SessionResponse) bool
	Close(reason error)
}

// engine stands for the loop: it keeps what it gets and sends what the test says.
type engine struct {
	opened chan outbox

	mu       sync.Mutex // guards following
	messages []*headracev1.SessionRequest
	closed   int
}

func (e *engine) OpenSession(_ context.Context, _ *headracev1.Hello, out interface {
	Put(*headracev1.SessionResponse) bool
	Close(reason error)
}) (core.SessionID, error) {
	out.Put(&headracev1.SessionResponse{Welcome: &headracev1.Welcome{}})
	e.opened <- out
	return 1, nil
}

func (e *engine) Message(_ context.Context, _ core.SessionID, m *headracev1.SessionRequest) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.messages = append(e.messages, m)
	return nil
}

func (e *engine) CloseSession(core.SessionID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed++
}

type service struct {
	headracev1.UnimplementedExecutorServiceServer
	*push.Server
}

func (s service) Session(stream grpc.BidiStreamingServer[headracev1.SessionRequest, headracev1.SessionResponse]) error {
	return s.Server.Session(stream)
}

// connect serves a push server over memory and opens a stream to it.
func connect(t *testing.T, e *engine) headracev1.ExecutorService_SessionClient {
	t.Helper()
	lis := bufconn.Listen(1 << 20)
	p := push.New(push.Config{NodeID: "n1"}, e)
	s := grpc.NewServer(grpcx.ServerOptions(0, 0)...)
	headracev1.RegisterExecutorServiceServer(s, service{Server: p})
	served := make(chan error, 1)
	go func() { served <- s.Serve(lis) }()
	cc, err := grpc.NewClient("passthrough:///buf", append(grpcx.DialOptions(0),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))...)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() {
		cancel()
		cc.Close()
		s.Stop()
		<-served
		p.Wait()
		if n := p.Open(); n != 0 {
			t.Errorf("%d sessions are left", n)
		}
	})
	stream, err := headracev1.NewExecutorServiceClient(cc).Session(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

func hello() *headracev1.Hello {
	return &headracev1.Hello{ExecutorId: make([]byte, 16), Name: "x", Slots: 1,
		Functions: []*headracev1.FunctionDeclaration{{Tenant: "t", Name: "f"}}}
}

// An executor whose stream is never read: what is meant for it never holds up the one who puts, and the
// session is cut off once a message has been stuck for the send timeout (B110).
func TestPeerThatDoesNotReadIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{opened: make(chan outbox, 1)}
		stream := connect(t, e)
		if err := stream.Send(&headracev1.SessionRequest{Hello: hello()}); err != nil {
			t.Fatal(err)
		}
		out := <-e.opened
		began := time.Now()
		put := 0
		for out.Put(&headracev1.SessionResponse{Pushes: []*headracev1.Push{{TaskId: make([]byte, 16), Payload: make([]byte, 256<<10)}}}) {
			if put++; put > 1000 {
				t.Fatal("the outbox has no bound")
			}
		}
		if time.Since(began) != 0 {
			t.Errorf("Put waited %v", time.Since(began))
		}
		faketime.Pass(11 * time.Second) // of the bubble's time
		synctest.Wait()
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.closed != 1 {
			t.Errorf("closed %d times after 11 s", e.closed)
		}
	})
}

// Who sends no hello is not kept; who sends a wrong one is told the field.
func TestHello(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stream := connect(t, &engine{opened: make(chan outbox, 1)})
		began := time.Now()
		_, err := stream.Recv()
		if grpcx.Read(err).Code != codes.Unavailable || time.Since(began) != 10*time.Second {
			t.Errorf("without a hello: %v after %v", err, time.Since(began))
		}
	})
}

// The peer closes its side in an orderly way: what it sent before is handed over, then the session ends with OK.
func TestOrderlyEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{opened: make(chan outbox, 1)}
		stream := connect(t, e)
		outcomes := make([]*headracev1.Outcome, 600)
		for i := range outcomes {
			outcomes[i] = &headracev1.Outcome{TaskId: []byte{byte(i), byte(i >> 8)}}
		}
		for _, m := range []*headracev1.SessionRequest{{Hello: hello(), Credit: 5}, {Outcomes: outcomes, Beat: &headracev1.Beat{Number: 1}}} {
			if err := stream.Send(m); err != nil {
				t.Fatal(err)
			}
		}
		if m, err := stream.Recv(); err != nil || m.Welcome.GetNodeId() != "n1" {
			t.Fatalf("first message %v, %v", m, err)
		}
		if err := stream.CloseSend(); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err == nil || grpcx.Read(err).Code != codes.Unknown { // io.EOF
			t.Errorf("end: %v", err)
		}
		synctest.Wait()
		e.mu.Lock()
		defer e.mu.Unlock()
		n, beatAt := 0, 0
		for i, m := range e.messages {
			if len(m.Outcomes) > 256 {
				t.Errorf("message %d has %d outcomes", i, len(m.Outcomes))
			}
			for _, o := range m.Outcomes {
				if int(o.TaskId[0])+int(o.TaskId[1])<<8 != n {
					t.Fatalf("outcome %d is out of order", n)
				}
				n++
			}
			if m.Beat != nil {
				beatAt = n
			}
		}
		if n != 600 || beatAt != 600 || e.messages[0].Credit != 5 || e.closed != 1 {
			t.Errorf("%d outcomes, beat after %d, first %v, closed %d", n, beatAt, e.messages[0], e.closed)
		}
	})
}
