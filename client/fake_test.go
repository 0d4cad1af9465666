package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/internal/grpcx"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

// A fakeServer is a small working TaskService: it keeps tasks in a map, knows client ids and request
// ids as the real one does, and runs tasks at once where it has a function for them. Its network can be
// cut, and a script can stand between a submit and its storing.
type fakeServer struct {
	headracev1.UnimplementedTaskServiceServer
	srv    *grpc.Server
	dialer // of its network
	served chan struct{}

	// submit, if set, handles the n-th SubmitBatch, n from 1. commit stores and answers it.
	submit func(n int, req *headracev1.SubmitBatchRequest, commit func() *headracev1.SubmitBatchResponse) (*headracev1.SubmitBatchResponse, error)
	// run has the functions that tasks are run with when they are submitted; others stay queued.
	run map[string]func(payload []byte) ([]byte, error)

	mu       sync.Mutex // guards following
	tasks    []*headracev1.Task
	requests map[string]*headracev1.SubmitOutcome // by request id and position
	calls    []*headracev1.SubmitBatchRequest
	conns    []net.Conn
	refusing bool // dials
	dials    int
	waits    int // streams opened
	polite   int // of the next waits, how many end at once without an error
	meta     metadata.MD
	changed  chan struct{} // closed and replaced at each change of a task
}

type dialer interface {
	DialContext(context.Context) (net.Conn, error)
}

func newFake() *fakeServer {
	lis := bufconn.Listen(1 << 20)
	s := &fakeServer{
		requests: map[string]*headracev1.SubmitOutcome{},
		changed:  make(chan struct{}),
		served:   make(chan struct{}),
		dialer:   lis,
	}
	s.srv = grpc.NewServer(append(grpcx.ServerOptions(0, 0), grpc.WaitForHandlers(true))...)
	headracev1.RegisterTaskServiceServer(s.srv, s)
	go func() { defer close(s.served); s.srv.Serve(lis) }()
	return s
}

// dial returns a client of s that ends with the test, before the server does.
func (s *fakeServer) dial(t testing.TB, cfg client.Config) *client.Client {
	t.Helper()
	cfg.Dialer = s.connect
	c, err := client.Dial(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); s.stop() })
	return c
}

func (s *fakeServer) stop() { s.srv.Stop(); <-s.served }

func (s *fakeServer) connect(ctx context.Context, _ string) (net.Conn, error) {
	s.mu.Lock()
	s.dials++
	refusing := s.refusing
	s.mu.Unlock()
	if refusing {
		return nil, errors.New("connection refused")
	}
	conn, err := s.DialContext(ctx)
	if err == nil {
		s.mu.Lock()
		s.conns = append(s.conns, conn)
		s.mu.Unlock()
	}
	return conn, err
}

// cut breaks all connections; with refusing, no new ones come about.
func (s *fakeServer) cut(refusing bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refusing = refusing
	for _, c := range s.conns {
		c.Close()
	}
	s.conns = nil
}

func (s *fakeServer) SubmitBatch(ctx context.Context, req *headracev1.SubmitBatchRequest) (*headracev1.SubmitBatchResponse, error) {
	s.mu.Lock()
	s.calls = append(s.calls, req)
	n := len(s.calls)
	s.meta, _ = metadata.FromIncomingContext(ctx)
	s.mu.Unlock()
	commit := func() *headracev1.SubmitBatchResponse { return s.store(req, nil) }
	if s.submit != nil {
		return s.submit(n, req, commit)
	}
	return commit(), nil
}

// store stores the items of req for which refuse gives no error.
func (s *fakeServer) store(req *headracev1.SubmitBatchRequest, refuse func(i int, t *headracev1.TaskSpec) *headracev1.SubmitError) *headracev1.SubmitBatchResponse {
	s.mu.Lock()
	defer s.mu.Unlock()
	res := &headracev1.SubmitBatchResponse{Pressure: 0.25}
	for i, spec := range req.Tasks {
		key := fmt.Sprintf("%x/%d", req.RequestId, i)
		if o := s.requests[key]; o != nil { // a retry: what is stored is stored
			res.Outcomes = append(res.Outcomes, o)
			continue
		}
		if refuse != nil {
			if e := refuse(i, spec); e != nil {
				res.Outcomes = append(res.Outcomes, &headracev1.SubmitOutcome{Error: e})
				continue
			}
		}
		o := s.storeOne(req.Tenant, spec)
		if o.Error == nil {
			s.requests[key] = o
		}
		res.Outcomes = append(res.Outcomes, o)
	}
	return res
}

func (s *fakeServer) storeOne(tenant string, spec *headracev1.TaskSpec) *headracev1.SubmitOutcome {
	if err := task.Name("function", spec.Function); err != nil {
		return &headracev1.SubmitOutcome{Error: &headracev1.SubmitError{Code: int32(codes.InvalidArgument), Reason: "invalid_argument", Message: err.Error()}}
	}
	if spec.ClientId != "" {
		for _, t := range s.tasks {
			if t.Tenant != tenant || t.ClientId != spec.ClientId {
				continue
			}
			if t.Function == spec.Function && bytes.Equal(t.Payload, spec.Payload) {
				return &headracev1.SubmitOutcome{Id: t.Id, Deduplicated: true}
			}
			return &headracev1.SubmitOutcome{Error: &headracev1.SubmitError{
				Code: int32(codes.AlreadyExists), Reason: "already_exists", Message: "other payload", ExistingId: t.Id}}
		}
	}
	t := &headracev1.Task{
		Id: task.NewID(1, uint64(len(s.tasks)+1), 42).String(), Tenant: tenant, Function: spec.Function, ClientId: spec.ClientId,
		Payload: spec.Payload, PayloadSize: uint32(len(spec.Payload)), ContentType: spec.ContentType, Labels: spec.Labels,
		Priority: task.DefaultPriority, Band: max(spec.Band, headracev1.Band_BAND_HIGH), State: headracev1.TaskState_TASK_STATE_QUEUED,
		Attempt: 1, MaxAttempts: 4, CreateTime: timestamppb.Now(), DueTime: timestamppb.Now(),
		TraceParent: spec.TraceParent, StartTtl: spec.StartTtl, DeadlineTime: spec.DeadlineTime,
	}
	if spec.Priority != nil {
		t.Priority = *spec.Priority
	}
	if spec.Delay != nil {
		t.DueTime = timestamppb.New(time.Now().Add(spec.Delay.AsDuration()))
	}
	s.tasks = append(s.tasks, t)
	if run := s.run[spec.Function]; run != nil {
		result, err := run(spec.Payload)
		t.State, t.Result, t.FinishTime = headracev1.TaskState_TASK_STATE_SUCCEEDED, result, timestamppb.Now()
		if err != nil {
			t.State = headracev1.TaskState_TASK_STATE_FAILED
			t.Error = &headracev1.TaskError{ErrorClass: headracev1.ErrorClass_ERROR_CLASS_NON_RETRYABLE, Message: err.Error()}
		}
	}
	return &headracev1.SubmitOutcome{Id: t.Id}
}

// change changes a task and wakes those who wait.
func (s *fakeServer) change(id string, f func(t *headracev1.Task)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s.find(id))
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *fakeServer) find(id string) *headracev1.Task {
	for _, t := range s.tasks {
		if t.Id == id {
			return t
		}
	}
	return nil
}

// lookup returns a copy of the task, and a channel that is closed when something changes.
func (s *fakeServer) lookup(tenant string, ref *headracev1.TaskRef) (*headracev1.Task, chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tasks {
		if t.Tenant == tenant && (t.Id == ref.GetId() || t.ClientId != "" && t.ClientId == ref.GetClientId()) {
			b, _ := t.MarshalVT()
			c := &headracev1.Task{}
			c.UnmarshalVT(b)
			return c, s.changed, nil
		}
	}
	return nil, nil, grpcx.Info{Code: codes.NotFound, Reason: "not_found", Message: "no such task"}.Err()
}

func (s *fakeServer) Get(_ context.Context, req *headracev1.GetRequest) (*headracev1.GetResponse, error) {
	t, _, err := s.lookup(req.Tenant, req.Task)
	return &headracev1.GetResponse{Task: t}, err
}

func (s *fakeServer) Wait(req *headracev1.WaitRequest, stream grpc.ServerStreamingServer[headracev1.WaitResponse]) error {
	s.mu.Lock()
	s.waits++
	polite := s.polite > 0
	s.polite--
	s.mu.Unlock()
	if polite {
		return nil
	}
	for {
		t, changed, err := s.lookup(req.Tenant, req.Task)
		if err != nil {
			return err
		}
		ended := task.State(t.State).Terminal()
		if ended || !req.OnlyTerminal {
			if err := stream.Send(&headracev1.WaitResponse{Task: t}); err != nil {
				return err
			}
		}
		if ended {
			return nil
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

func (s *fakeServer) Cancel(_ context.Context, req *headracev1.CancelRequest) (*headracev1.CancelResponse, error) {
	t, _, err := s.lookup(req.Tenant, req.Task)
	if err != nil {
		return nil, err
	}
	outcome := headracev1.CancelOutcome_CANCEL_OUTCOME_CANCELLED
	if task.State(t.State).Terminal() {
		outcome = headracev1.CancelOutcome_CANCEL_OUTCOME_ALREADY_FINISHED
	} else {
		s.change(t.Id, func(t *headracev1.Task) { t.State = headracev1.TaskState_TASK_STATE_CANCELLED })
		t.State = headracev1.TaskState_TASK_STATE_CANCELLED
	}
	return &headracev1.CancelResponse{Outcome: outcome, Task: t}, nil
}

func (s *fakeServer) List(_ context.Context, req *headracev1.ListRequest) (*headracev1.ListResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	res := &headracev1.ListResponse{}
	from, most := req.PageToken, int(req.PageSize)
	if most == 0 {
		most = 100
	}
	for _, t := range slices.Backward(s.tasks) {
		switch {
		case t.Tenant != req.Tenant, req.Function != "" && t.Function != req.Function, req.State != 0 && t.State != req.State,
			from != "" && t.Id >= from, req.Label != "" && !hasLabel(t, req.Label):
			continue
		}
		if len(res.Tasks) == most {
			res.NextPageToken = res.Tasks[len(res.Tasks)-1].Id
			break
		}
		res.Tasks = append(res.Tasks, &headracev1.Task{Id: t.Id, Function: t.Function, State: t.State})
	}
	return res, nil
}

func hasLabel(t *headracev1.Task, label string) bool {
	k, v, _ := strings.Cut(label, "=")
	got, ok := t.Labels[k]
	return ok && got == v
}

func (s *fakeServer) ListAttempts(_ context.Context, req *headracev1.ListAttemptsRequest) (*headracev1.ListAttemptsResponse, error) {
	_, _, err := s.lookup(req.Tenant, req.Task)
	return &headracev1.ListAttemptsResponse{Total: 7, Attempts: []*headracev1.Attempt{{
		Attempt: 2, Token: "t", Executor: "e", PushTime: timestamppb.New(time.Unix(5, 0)),
		Error: &headracev1.TaskError{ErrorClass: headracev1.ErrorClass_ERROR_CLASS_TIMEOUT, Message: "slow"}}}}, err
}

func (s *fakeServer) ListLogs(_ context.Context, req *headracev1.ListLogsRequest) (*headracev1.ListLogsResponse, error) {
	_, _, err := s.lookup(req.Tenant, req.Task)
	return &headracev1.ListLogsResponse{Truncated: true, Lines: []*headracev1.LogLine{{
		Attempt: 1, LogTime: timestamppb.New(time.Unix(6, 0)), Level: "info", Message: "hello"}}}, err
}

// payloads counts how often each payload is stored.
func (s *fakeServer) payloads() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := map[string]int{}
	for _, t := range s.tasks {
		m[string(t.Payload)]++
	}
	return m
}

func (s *fakeServer) callCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.calls)
}

// refusal is an item's error.
func refusal(code codes.Code, reason string, after time.Duration) *headracev1.SubmitError {
	e := &headracev1.SubmitError{Code: int32(code), Reason: reason, Message: reason}
	if after > 0 {
		e.RetryAfter = durationpb.New(after)
	}
	return e
}
