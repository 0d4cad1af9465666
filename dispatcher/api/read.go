package api

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/dispatcher/peer"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// resolve finds the id that a reference names. Errors: *task.FieldError, store.ErrNotFound.
func (s *Services) resolve(ctx context.Context, tenant string, ref *headracev1.TaskRef) (task.ID, error) {
	if err := task.Name("tenant", tenant); err != nil {
		return task.ID{}, err
	}
	switch r := ref.GetRef().(type) {
	case *headracev1.TaskRef_Id:
		id, err := task.ParseID(r.Id)
		if err != nil {
			return task.ID{}, &task.FieldError{Field: "task.id", Value: r.Id, Want: "26 characters of a-z and 2-7"}
		}
		return id, nil
	case *headracev1.TaskRef_ClientId:
		if err := task.ClientID("task.client_id", r.ClientId); err != nil {
			return task.ID{}, err
		}
		return s.byClientID(ctx, tenant, r.ClientId)
	}
	return task.ID{}, &task.FieldError{Field: "task", Want: "an id or a client_id"}
}

// byClientID looks in the tenant's directory database: another one that is down or stalls does not matter. If it is
// not there, the others are asked as far as they answer, in case the placement was lost with a registry and drawn
// anew. Of a tenant whose directory database is not known all have to answer.
func (s *Services) byClientID(ctx context.Context, tenant, clientID string) (task.ID, error) {
	home := s.homeOf(tenant)
	if home >= 0 {
		id, err := func() (task.ID, error) {
			call, cancel := context.WithTimeout(ctx, readMax)
			defer cancel()
			return s.cfg.Databases[home].ByClientID(call, tenant, clientID)
		}()
		if !errors.Is(err, store.ErrNotFound) {
			return id, s.lacking(ctx, home, err)
		}
	}
	ids, errs := make([]task.ID, len(s.cfg.Databases)), make([]error, len(s.cfg.Databases))
	patience := readMax
	if home >= 0 {
		patience = otherMax
	}
	var wg sync.WaitGroup
	for i, db := range s.cfg.Databases {
		if i == home {
			errs[i] = store.ErrNotFound
			continue
		}
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			ids[i], errs[i] = db.ByClientID(ctx, tenant, clientID)
		})
	}
	wg.Wait()
	failed := error(store.ErrNotFound)
	for i, err := range errs {
		switch {
		case err == nil:
			return ids[i], nil
		case home < 0 && !errors.Is(err, store.ErrNotFound):
			failed = s.lacking(ctx, i, err)
		}
	}
	if ctx.Err() != nil {
		failed = context.Cause(ctx)
	}
	return task.ID{}, failed
}

// otherMax is how long a look-up waits for databases that are not the tenant's.
const otherMax = 500 * time.Millisecond

// read returns a task with its payload and what the owner knows of it (nil: nothing). A task of another
// tenant is not found, by the same path as one that never was.
func (s *Services) read(ctx context.Context, tenant string, id task.ID) (*store.Task, *core.View, error) {
	t, err := s.get(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	if t.Tenant != tenant {
		return nil, nil, store.ErrNotFound
	}
	if t.State.Terminal() {
		return t, nil, nil
	}
	views, err := s.engine.Views(ctx, []task.ID{id})
	if _, err = peer.Missing(err); err != nil { // an owner that can't be asked: what is stored is true, if less
		return nil, nil, fmt.Errorf("look at the owner: %w", err)
	}
	live := views[0]
	if live.Task == nil {
		return t, nil, nil
	}
	// The memory's row is what was committed last, maybe later than our read; large fields stay on disk.
	if live.Task.State.Terminal() {
		if t, err = s.get(ctx, id); err != nil {
			return nil, nil, err
		}
		return t, nil, nil
	}
	merged := *live.Task
	merged.Payload = t.Payload
	return &merged, &live.View, nil
}

// Get returns one task, with payload and result.
func (s *Tasks) Get(ctx context.Context, req *headracev1.GetRequest) (*headracev1.GetResponse, error) {
	id, err := s.resolve(ctx, req.Tenant, req.Task)
	if err != nil {
		return nil, err
	}
	t, v, err := s.read(ctx, req.Tenant, id)
	if err != nil {
		return nil, err
	}
	m := s.describe(t, v)
	m.Payload, m.Result = t.Payload, t.Result
	return &headracev1.GetResponse{Task: m}, nil
}

// ListAttempts returns a task's tries.
func (s *Tasks) ListAttempts(ctx context.Context, req *headracev1.ListAttemptsRequest) (*headracev1.ListAttemptsResponse, error) {
	id, err := s.resolve(ctx, req.Tenant, req.Task)
	if err != nil {
		return nil, err
	}
	t, v, err := s.read(ctx, req.Tenant, id)
	if err != nil {
		return nil, err
	}
	return &headracev1.ListAttemptsResponse{Attempts: attempts(t, v), Total: uint32(t.TriesTotal)}, nil
}

// maxReason bounds the reason of a cancel, in bytes.
const maxReason = 255

// Cancel stops a task.
func (s *Tasks) Cancel(ctx context.Context, req *headracev1.CancelRequest) (*headracev1.CancelResponse, error) {
	if err := s.admit(); err != nil {
		return nil, err
	}
	id, err := s.resolve(ctx, req.Tenant, req.Task)
	if err != nil {
		return nil, err
	}
	if len(req.Reason) > maxReason || !plain(req.Reason) {
		return nil, &task.FieldError{Field: "reason", Value: req.Reason, Want: "at most 255 bytes of UTF-8 without control characters"}
	}
	answer, err := s.engine.Cancel(ctx, core.Cancel{Tenant: req.Tenant, ID: id, Reason: req.Reason})
	if err == nil {
		err = answer.Err
	}
	if errors.Is(err, core.ErrNotOwner) {
		// An id of a partition that never was has no owner to wait for.
		var missing *missingError
		switch t, known := s.get(ctx, id); {
		case errors.Is(known, store.ErrNotFound), known == nil && t.Tenant != req.Tenant:
			err = store.ErrNotFound
		case errors.As(known, &missing): // that is why it has no owner
			err = missing
		}
	}
	if err != nil {
		return nil, fmt.Errorf("cancel task %s: %w", id, err)
	}
	res := &headracev1.CancelResponse{Outcome: answer.Outcome}
	if answer.Task != nil && answer.Task.Tenant == req.Tenant {
		views, err := s.engine.Views(ctx, []task.ID{id})
		if _, err = peer.Missing(err); err != nil {
			return nil, fmt.Errorf("look at the owner: %w", err)
		}
		res.Task = s.describe(answer.Task, nil)
		if live := views[0]; live.Task != nil && !answer.Task.State.Terminal() {
			res.Task = s.describe(live.Task, &live.View)
		}
	}
	return res, nil
}
