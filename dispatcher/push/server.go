package push

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/internal/failpoint"
	"github.com/headrace/headrace/internal/grpcx"
	"github.com/headrace/headrace/internal/telemetry"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

// Engine is what sessions talk to: the loop.
type Engine interface {
	// OpenSession refuses the stream with its error.
	OpenSession(ctx context.Context, h *headracev1.Hello, out interface {
		Put(*headracev1.SessionResponse) bool
		Close(reason error)
	}) (core.SessionID, error)
	Message(ctx context.Context, s core.SessionID, m *headracev1.SessionRequest) error
	CloseSession(s core.SessionID)
}

// Config bounds sessions. The zero value of a field is its documented default.
type Config struct {
	NodeID       string        // told in the welcome
	MaxSessions  int           // open at once; 10,000
	MaxResult    int           // bytes of a result; task.MaxPayload
	HelloTimeout time.Duration // until the hello must be there; 10 s
	SendTimeout  time.Duration // a message that is stuck longer ends the session; 10 s
	OutboxBytes  int           // what may wait for a peer, roughly; 32 MiB: more than any credit brings
	Logger       *zap.Logger   // nil: silent
}

// Reasons why a session ends from our side.
var (
	errNoHello = errors.New("no hello in time")
	errStuck   = errors.New("the peer does not read: a message was stuck for too long")
	errEnded   = errors.New("the stream has ended")
)

// Server serves ExecutorService.Session.
type Server struct {
	cfg    Config
	engine Engine
	log    *zap.Logger
	open   atomic.Int64
	wg     sync.WaitGroup
}

// New returns a server.
func New(cfg Config, engine Engine) *Server {
	if cfg.MaxSessions == 0 {
		cfg.MaxSessions = 10_000
	}
	if cfg.MaxResult == 0 {
		cfg.MaxResult = task.MaxPayload
	}
	if cfg.HelloTimeout == 0 {
		cfg.HelloTimeout = 10 * time.Second
	}
	if cfg.SendTimeout == 0 {
		cfg.SendTimeout = 10 * time.Second
	}
	if cfg.OutboxBytes == 0 {
		cfg.OutboxBytes = 32 << 20
	}
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	return &Server{cfg: cfg, engine: engine, log: cfg.Logger.Named("push")}
}

// Open returns how many sessions are open.
func (s *Server) Open() int { return int(s.open.Load()) }

// Wait returns when every goroutine of a session has ended. Stop the gRPC server first.
func (s *Server) Wait() { s.wg.Wait() }

// Stream is the server's side of one session.
type Stream = grpc.BidiStreamingServer[headracev1.SessionRequest, headracev1.SessionResponse]

// Session runs one session until it ends. Its errors are statuses, or errors that the border of package
// api maps.
func (s *Server) Session(stream Stream) error {
	defer s.open.Add(-1)
	if s.open.Add(1) > int64(s.cfg.MaxSessions) {
		return grpcx.Info{Code: codes.ResourceExhausted, Reason: "too_many_sessions",
			Message: fmt.Sprintf("this node has %d sessions, its limit", s.cfg.MaxSessions), RetryAfter: 5 * time.Second}.Err()
	}
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	hello := make(chan *headracev1.Hello) // written by the reader, once
	opened := make(chan core.SessionID, 1)
	s.wg.Go(func() { cancel(s.read(ctx, stream, hello, opened)) })

	timeout := time.NewTimer(s.cfg.HelloTimeout)
	defer timeout.Stop()
	var h *headracev1.Hello
	select {
	case h = <-hello:
	case <-timeout.C:
		return ended(errNoHello)
	case <-ctx.Done():
		return ended(context.Cause(ctx))
	}
	out := newOutbox(s.cfg.OutboxBytes)
	id, err := s.engine.OpenSession(ctx, h, out)
	if err != nil {
		return fmt.Errorf("open a session: %w", err)
	}
	began := time.Now()
	s.log.Info("session opened", telemetry.Session(uint64(id)), telemetry.Executor(h.Name),
		zap.Uint32("slots", h.Slots), zap.Int("functions", len(h.Functions)), zap.Int("claims", len(h.Claims)))
	defer s.engine.CloseSession(id)
	opened <- id
	s.wg.Go(func() { cancel(s.write(ctx, cancel, stream, out, h.Protocol)) })
	<-ctx.Done()
	err = context.Cause(ctx)
	s.log.Info("session closed", telemetry.Session(uint64(id)), telemetry.Executor(h.Name),
		telemetry.Took(time.Since(began)), telemetry.Err(err))
	return ended(err)
}

// read hands over what the peer sends, until the stream or ctx ends. It returns why.
func (s *Server) read(ctx context.Context, stream Stream, hello chan<- *headracev1.Hello, opened <-chan core.SessionID) error {
	first, err := stream.Recv()
	if err != nil {
		return recvError(err)
	}
	if err := checkFirst(first); err != nil {
		return err
	}
	clean(first, s.cfg.MaxResult)
	select {
	case hello <- first.Hello:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	var id core.SessionID
	select {
	case id = <-opened:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	// What rides with the hello counts as a message of its own.
	rest := first
	rest.Hello = nil
	for {
		for part := range split(rest) {
			if err := s.engine.Message(ctx, id, part); err != nil {
				return err
			}
		}
		if rest, err = stream.Recv(); err != nil {
			return recvError(err)
		}
		if rest.Hello != nil {
			if err := checkHello(rest.Hello); err != nil {
				return err
			}
		}
		clean(rest, s.cfg.MaxResult)
	}
}

// write sends what gathers, until the outbox is closed and empty or ctx ends. It returns why. A send that
// is stuck ends ctx, and with it the handler, which ends the send.
func (s *Server) write(ctx context.Context, cancel context.CancelCauseFunc, stream Stream, out *outbox, protocol uint32) error {
	alarm := time.AfterFunc(s.cfg.SendTimeout, func() { cancel(errStuck) })
	alarm.Stop()
	defer alarm.Stop()
	var batch []*headracev1.SessionResponse
	for {
		select {
		case <-out.ready:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		var closed error
		batch, closed = out.take(batch[:0])
		for m := range merge(batch) {
			if m.Welcome != nil {
				m.Welcome.NodeId = s.cfg.NodeID
				m.Welcome.Protocol, _ = headracev1.Speak(protocol) // the hello was checked
			}
			failpoint.Hit("push.send.before")
			alarm.Reset(s.cfg.SendTimeout)
			err := stream.Send(m)
			alarm.Stop()
			if err != nil {
				return fmt.Errorf("send to the executor: %w", err)
			}
		}
		clear(batch)
		if closed != nil {
			return closed
		}
	}
}

// ended maps the end of a session to what the peer is told.
func ended(err error) error {
	var field *task.FieldError
	switch {
	case err == nil || errors.Is(err, errEnded):
		return nil
	case errors.As(err, &field):
		return err
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	}
	return grpcx.Info{Code: codes.Unavailable, Reason: "session_closed", Message: err.Error(), RetryAfter: 200 * time.Millisecond}.Err()
}

func recvError(err error) error {
	if errors.Is(err, io.EOF) {
		return errEnded
	}
	return fmt.Errorf("read from the executor: %w", err)
}
