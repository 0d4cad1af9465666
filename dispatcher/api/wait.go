package api

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/headrace/headrace/dispatcher/core"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// Wait sends a task now, again at each change, and ends after its terminal state. Payloads are left out; the
// result is there once the task has ended. A caller that reads slowly misses states in between.
func (s *Tasks) Wait(req *headracev1.WaitRequest, stream grpc.ServerStreamingServer[headracev1.WaitResponse]) error {
	if err := s.admit(); err != nil {
		return err
	}
	ctx := stream.Context()
	id, err := s.resolve(ctx, req.Tenant, req.Task)
	if err != nil {
		return err
	}
	leave, err := s.enterWait(req.Tenant)
	if err != nil {
		return err
	}
	defer leave()

	// Watch first, read then: no change is missed. A partition that nobody owns has no changes, but a
	// finished task of it can be read.
	events, stop, err := s.engine.Watch(ctx, id)
	if err != nil {
		return fmt.Errorf("watch task %s: %w", id, err)
	}
	defer stop()
	t, v, err := s.read(ctx, req.Tenant, id)
	if err != nil {
		return err
	}
	var last *headracev1.Task
	send := func(t *store.Task, v *core.View) (ended bool, err error) {
		ended = t.State.Terminal()
		if req.OnlyTerminal && !ended {
			return false, nil
		}
		m := s.describe(t, v)
		if m.Result = t.Result; proto.Equal(m, last) { // an event from before the read, or of what is not shown
			return false, nil
		}
		last = m
		return ended, stream.Send(&headracev1.WaitResponse{Task: m})
	}
	if ended, err := send(t, v); ended || err != nil {
		return err
	}
	for {
		select {
		case ev, open := <-events:
			if !open {
				return errWatchEnded
			}
			if ended, err := send(ev.Task, &ev.View); ended || err != nil {
				return err
			}
		case <-s.draining:
			return errDraining
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// enterWait counts a wait of the tenant until leave is called.
func (s *Services) enterWait(tenant string) (leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waits[tenant] >= s.cfg.MaxWatches {
		return nil, errTooManyWaits
	}
	s.waits[tenant]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.waits[tenant]--; s.waits[tenant] == 0 {
			delete(s.waits, tenant)
		}
	}, nil
}

// Executors is the ExecutorService but for its Session, which package push serves.
type Executors struct{ *Services }

// Directory sends the nodes and what they own, now and at each change.
func (s *Executors) Directory(_ *headracev1.DirectoryRequest, stream grpc.ServerStreamingServer[headracev1.DirectoryResponse]) error {
	ctx := stream.Context()
	shed := s.directoryShed()
	for {
		changed := s.directoryChange() // before the look, so that no change is missed
		if err := s.admit(); err != nil {
			return err
		}
		if err := stream.Send(directory(s.cluster.Directory())); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-shed:
			return errCutOff
		case <-s.draining:
			return errDraining
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// FetchPayload returns the payload of a running try.
func (s *Executors) FetchPayload(ctx context.Context, req *headracev1.FetchPayloadRequest) (*headracev1.FetchPayloadResponse, error) {
	if err := task.Name("tenant", req.Tenant); err != nil {
		return nil, err
	}
	id, err := task.IDFromBytes(req.TaskId)
	if err != nil {
		return nil, &task.FieldError{Field: "task_id", Value: fmt.Sprintf("%d bytes", len(req.TaskId)), Want: "16 bytes"}
	}
	t, v, err := s.read(ctx, req.Tenant, id)
	switch {
	case err != nil:
		return nil, err
	case v == nil || v.Token != (task.Token{Epoch: req.Token.GetEpoch(), Push: req.Token.GetPush()}):
		return nil, errStaleToken
	}
	return &headracev1.FetchPayloadResponse{Payload: t.Payload}, nil
}
