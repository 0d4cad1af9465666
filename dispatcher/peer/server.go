package peer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/dispatcher/door"
	"github.com/headrace/headrace/dispatcher/loop"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// Local is the node's own loop. The methods are described there.
type Local interface {
	Submit(ctx context.Context, s *core.Submit) (core.SubmitAnswer, error)
	Look(ctx context.Context, l core.Look) (core.SubmitAnswer, error)
	Cancel(ctx context.Context, c core.Cancel) (core.CancelAnswer, error)
	Watch(ctx context.Context, id task.ID) (events <-chan core.Event, stop func(), err error)
	Views(ctx context.Context, ids []task.ID) ([]core.Live, error)
	Explain(ctx context.Context, t *store.Task) (core.Explanation, error)
	Running(ctx context.Context, tenant, function string, most int) ([]core.Live, error)
	AwaitPause(ctx context.Context, w core.PauseWait) ([]uint32, error)
	Limits(ctx context.Context, q loop.LimitQuery) ([]core.LimitState, error)
	Bounds(ctx context.Context, tenant, afterTenant, afterFunction string, most int) ([]core.BoundState, error)
	Partitions() []core.PartitionStat
	Backlog(partition uint32) (int64, bool)
	Sending(partition uint32, n int)
	Load() (pressure, rate float64)
}

// errGoing ends the streams of a node that stops.
var errGoing = errors.New("this node is going away")

const (
	statsEvery = 250 * time.Millisecond
	nodeEvery  = 4       // of these, what is known of the node
	maxViews   = 1000    // of one call
	viewBytes  = 8 << 20 // of one answer
	maxRunning = 10_000
)

// Service is what a node answers to its peers.
type Service struct {
	headracev1.UnimplementedPeerServiceServer
	local  Local
	self   func(*headracev1.Node)           // fills in what only this node knows; nil: nothing
	roster *Roster                          // nil: nobody takes over from here
	report func() *door.Report              // what the door knows; nil: nothing
	pools  func() *headracev1.PeerPoolStats // what is known of pools; nil: nothing
	pauses BringPauses
	shares *Shares // nil: no limit is shared

	stop     chan struct{} // closed by Stop
	stopOnce sync.Once
	wg       sync.WaitGroup // goroutines of streams
}

// BringPauses takes in a tenant's pause rules (pause.Registry.Bring).
type BringPauses func(ctx context.Context, tenant string, record []byte, revision int64) error

// NewService returns the service. Register it at the gRPC server.
func NewService(local Local, self func(*headracev1.Node), roster *Roster, pauses BringPauses, report func() *door.Report, sh *Shares, pools func() *headracev1.PeerPoolStats) *Service {
	return &Service{local: local, self: self, roster: roster, pauses: pauses, report: report, shares: sh, pools: pools, stop: make(chan struct{})}
}

// Stop ends the streams. Calls under way go on.
func (s *Service) Stop() { s.stopOnce.Do(func() { close(s.stop) }) }

// Wait returns when every goroutine of a stream has ended. Stop the gRPC server first.
func (s *Service) Wait() { s.wg.Wait() }

// ForwardSubmit stores tasks in a partition of this node.
func (s *Service) ForwardSubmit(ctx context.Context, req *headracev1.ForwardSubmitRequest) (*headracev1.ForwardSubmitResponse, error) {
	if n := len(req.Tasks); n < 1 || n > task.MaxBatchItems {
		return nil, &task.FieldError{Field: "tasks", Value: fmt.Sprintf("%d items", n), Want: "1 to 1000 items"}
	}
	sub := &core.Submit{Tenant: req.Tenant, Partition: req.Partition, RequestID: string(req.RequestId), Retry: req.Retry,
		Candidates: req.Candidates, Tasks: make([]*store.Task, len(req.Tasks))}
	for i, row := range req.Tasks {
		t, err := store.Decode(row)
		if err != nil || t.Tenant != req.Tenant {
			return nil, &task.FieldError{Field: fmt.Sprintf("tasks[%d]", i), Want: "a row of the tenant"}
		}
		if i > 0 && t.Function == sub.Tasks[i-1].Function {
			t.Function = sub.Tasks[i-1].Function // one string for the whole batch
		}
		sub.Tasks[i] = t
	}
	a, err := s.local.Submit(ctx, sub)
	if err = unknown(ctx, err, a.Err); err != nil {
		return &headracev1.ForwardSubmitResponse{Error: writeError(err)}, nil
	}
	return &headracev1.ForwardSubmitResponse{Items: writeItems(a.Items)}, nil
}

// unknown joins the two errors of a call that writes: what broke it off leaves its outcome open.
func unknown(ctx context.Context, broken, answer error) error {
	switch {
	case broken != nil && ctx.Err() != nil, errors.Is(broken, loop.ErrStopped), errors.Is(answer, loop.ErrStopped):
		return core.ErrUnknownOutcome
	case broken != nil:
		return broken
	}
	return answer
}

// LookSubmit tells what became of a submit here.
func (s *Service) LookSubmit(ctx context.Context, req *headracev1.LookSubmitRequest) (*headracev1.LookSubmitResponse, error) {
	a, err := s.local.Look(ctx, core.Look{Partition: req.Partition, Tenant: req.Tenant, RequestID: string(req.RequestId)})
	if err = unknown(ctx, err, a.Err); err != nil {
		return &headracev1.LookSubmitResponse{Error: writeError(err)}, nil
	}
	return &headracev1.LookSubmitResponse{Items: writeItems(a.Items)}, nil
}

// ForwardCancel stops a task of this node.
func (s *Service) ForwardCancel(ctx context.Context, req *headracev1.ForwardCancelRequest) (*headracev1.ForwardCancelResponse, error) {
	id, err := task.IDFromBytes(req.TaskId)
	if err != nil {
		return nil, &task.FieldError{Field: "task_id", Want: "16 bytes"}
	}
	a, err := s.local.Cancel(ctx, core.Cancel{Tenant: req.Tenant, ID: id, Reason: req.Reason})
	if err = unknown(ctx, err, a.Err); err != nil {
		return &headracev1.ForwardCancelResponse{Error: writeError(err)}, nil
	}
	res := &headracev1.ForwardCancelResponse{Outcome: a.Outcome}
	if a.Task != nil {
		res.Task = store.EncodeBare(nil, a.Task)
	}
	return res, nil
}

// ReadViews returns what this node's memory has of tasks.
func (s *Service) ReadViews(ctx context.Context, req *headracev1.ReadViewsRequest) (*headracev1.ReadViewsResponse, error) {
	if len(req.TaskIds) > maxViews {
		return nil, &task.FieldError{Field: "task_ids", Value: fmt.Sprintf("%d ids", len(req.TaskIds)), Want: "at most 1000"}
	}
	ids := make([]task.ID, len(req.TaskIds))
	for i, b := range req.TaskIds {
		id, err := task.IDFromBytes(b)
		if err != nil {
			return nil, &task.FieldError{Field: fmt.Sprintf("task_ids[%d]", i), Want: "16 bytes"}
		}
		ids[i] = id
	}
	live, err := s.local.Views(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("read views: %w", err)
	}
	res, size := &headracev1.ReadViewsResponse{}, 0
	for _, l := range live {
		m := writeLive(l, true)
		if size += m.SizeVT(); size > viewBytes && len(res.Tasks) > 0 {
			break
		}
		res.Tasks = append(res.Tasks, m)
	}
	return res, nil
}

// ReadRunning returns the ids of a tenant's running tasks here.
func (s *Service) ReadRunning(ctx context.Context, req *headracev1.ReadRunningRequest) (*headracev1.ReadRunningResponse, error) {
	live, err := s.local.Running(ctx, req.Tenant, req.Function, int(min(req.Most, maxRunning)))
	if err != nil {
		return nil, fmt.Errorf("read what runs: %w", err)
	}
	res := &headracev1.ReadRunningResponse{}
	for _, l := range live {
		res.TaskIds = append(res.TaskIds, l.Task.ID[:])
	}
	return res, nil
}

// StreamStats tells four times a second how much waits here.
func (s *Service) StreamStats(_ *headracev1.StreamStatsRequest, stream grpc.ServerStreamingServer[headracev1.StreamStatsResponse]) error {
	ctx := stream.Context()
	tick := time.NewTicker(statsEvery)
	defer tick.Stop()
	for n := 0; ; n++ {
		res := &headracev1.StreamStatsResponse{}
		res.Pressure, res.StartRate = s.local.Load()
		for _, p := range s.local.Partitions() {
			res.Partitions = append(res.Partitions, &headracev1.PeerPartitionStats{Partition: p.Partition, Epoch: p.Epoch, Open: p.Open,
				Backlog: p.Backlog, Scheduled: p.Scheduled, Running: p.Running, Bytes: p.Bytes})
		}
		writeReport(res, s.report)
		if n%nodeEvery == 0 && s.self != nil {
			res.Node = &headracev1.Node{}
			s.self(res.Node)
		}
		if n%nodeEvery == 0 && s.pools != nil {
			res.Pools = s.pools()
		}
		if err := stream.Send(res); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-s.stop:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// WatchTasks follows tasks. Each watch has a goroutine, which waits for the loop's events.
func (s *Service) WatchTasks(stream grpc.BidiStreamingServer[headracev1.WatchTasksRequest, headracev1.WatchTasksResponse]) error {
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	out := make(chan *headracev1.WatchTasksResponse)
	s.wg.Go(func() { cancel(s.readWatches(ctx, stream, out)) })
	s.wg.Go(func() {
		for {
			select {
			case m := <-out:
				if err := stream.Send(m); err != nil {
					cancel(err)
					return
				}
			case <-ctx.Done():
				return
			}
		}
	})
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-s.stop:
		return errGoing
	}
}

// readWatches starts and ends watches until the stream ends.
func (s *Service) readWatches(ctx context.Context, stream grpc.BidiStreamingServer[headracev1.WatchTasksRequest, headracev1.WatchTasksResponse], out chan<- *headracev1.WatchTasksResponse) error {
	open := map[uint64]context.CancelFunc{} // those that ended by themselves stay until they are ended by name: a few words each
	defer func() {
		for _, end := range open {
			end()
		}
	}()
	for {
		req, err := stream.Recv()
		if err != nil {
			return err
		}
		if len(req.TaskId) == 0 {
			if end := open[req.Watch]; end != nil {
				end()
				delete(open, req.Watch)
			}
			continue
		}
		id, err := task.IDFromBytes(req.TaskId)
		if err != nil || open[req.Watch] != nil {
			return &task.FieldError{Field: "watch", Want: "a new number and an id of 16 bytes"}
		}
		one, end := context.WithCancel(ctx)
		open[req.Watch] = end
		s.wg.Go(func() { s.watchOne(one, req.Watch, id, out) })
	}
}

func (s *Service) watchOne(ctx context.Context, number uint64, id task.ID, out chan<- *headracev1.WatchTasksResponse) {
	send := func(m *headracev1.WatchTasksResponse) bool {
		m.Watch = number
		select {
		case out <- m:
			return true
		case <-ctx.Done():
			return false
		}
	}
	events, stop, err := s.local.Watch(ctx, id)
	if err != nil {
		send(&headracev1.WatchTasksResponse{Closed: true})
		return
	}
	defer stop()
	if !send(&headracev1.WatchTasksResponse{Opened: true}) {
		return
	}
	for {
		select {
		case ev, ok := <-events:
			if !ok {
				send(&headracev1.WatchTasksResponse{Closed: true})
				return
			}
			if !send(&headracev1.WatchTasksResponse{Task: writeLive(core.Live{Task: ev.Task, View: ev.View}, false)}) {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}
