package api

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/headrace/headrace/dispatcher/core"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

const (
	defaultPage = 100
	maxPage     = 1000
	// maxRounds bounds the reads of one page whose rows are mostly in another state than the store says.
	maxRounds = 8
	// maxRunning bounds the running tasks that a list looks at.
	maxRunning = 10_000
)

// List returns a page of tasks, newest first.
func (s *Tasks) List(ctx context.Context, req *headracev1.ListRequest) (*headracev1.ListResponse, error) {
	f, size, err := listFilter(req)
	if err != nil {
		return nil, err
	}
	after, err := s.readPageToken(f, req.PageToken)
	if err != nil {
		return nil, err
	}
	r := s.reachOf(req.Tenant)
	var tasks []*headracev1.Task
	var last store.Cursor
	var more bool
	if f.State == task.Running {
		tasks, last, more, err = s.listRunning(ctx, r, f, after, size)
	} else {
		tasks, last, more, err = s.listStored(ctx, r, f, after, size)
	}
	if err != nil {
		return nil, err
	}
	res := &headracev1.ListResponse{Tasks: tasks, Unreachable: r.unreachable()}
	if more {
		res.NextPageToken = s.pageToken(f, last)
	}
	return res, nil
}

func listFilter(req *headracev1.ListRequest) (f store.Filter, size int, err error) {
	f = store.Filter{Tenant: req.Tenant, Function: req.Function, State: task.State(req.State), Label: req.Label}
	if err := task.Name("tenant", req.Tenant); err != nil {
		return f, 0, err
	}
	if req.Function != "" {
		if err := task.Name("function", req.Function); err != nil {
			return f, 0, err
		}
	}
	if req.State < 0 || req.State > headracev1.TaskState_TASK_STATE_EXPIRED {
		return f, 0, &task.FieldError{Field: "state", Value: fmt.Sprint(int32(req.State)), Want: "a task state, or none for all"}
	}
	if req.Label != "" {
		key, value, ok := strings.Cut(req.Label, "=")
		if !ok {
			return f, 0, &task.FieldError{Field: "label", Value: req.Label, Want: "key=value"}
		}
		if err := task.Labels(map[string]string{key: value}); err != nil {
			return f, 0, &task.FieldError{Field: "label", Value: req.Label, Want: "key=value with a key of 1-63 and a value of at most 255 bytes"}
		}
		if f.State != task.StateUnspecified {
			return f, 0, &task.FieldError{Field: "label", Value: req.Label, Want: "a label alone or with a function, not with a state"}
		}
	}
	if req.PageSize < 0 || req.PageSize > maxPage {
		return f, 0, &task.FieldError{Field: "page_size", Value: fmt.Sprint(req.PageSize), Want: "1 to 1000, or 0 for 100"}
	}
	if req.PageSize == 0 {
		return f, defaultPage, nil
	}
	return f, int(req.PageSize), nil
}

// listStored reads rows and lays the owner's view over them. Rows that the owner knows to be in another
// state than the one asked for are left out, and more are read in their place.
func (s *Tasks) listStored(ctx context.Context, r *reach, f store.Filter, after store.Cursor, size int) (out []*headracev1.Task, last store.Cursor, more bool, err error) {
	last = after
	for range maxRounds {
		var rows []*store.Task
		if rows, more, err = s.page(ctx, r, f, last, size-len(out)); err != nil {
			return nil, last, false, err
		}
		ids := make([]task.ID, 0, len(rows))
		for _, t := range rows {
			if !t.State.Terminal() {
				ids = append(ids, t.ID)
			}
		}
		views, err := s.engine.Views(ctx, ids)
		if err = r.lacks(err); err != nil {
			return nil, last, false, fmt.Errorf("look at the owners: %w", err)
		}
		for _, t := range rows {
			last = store.Cursor{CreatedAt: t.CreatedAt, ID: t.ID}
			m := s.describe(t, nil)
			if !t.State.Terminal() {
				if live := views[0]; live.Task != nil {
					m = s.describe(live.Task, &live.View)
				}
				views = views[1:]
			}
			if f.State == task.StateUnspecified || m.State == headracev1.TaskState(f.State) {
				out = append(out, m)
			}
		}
		if !more || len(out) >= size {
			break
		}
	}
	return out, last, more, nil
}

func newestFirst(a, b *store.Task) int {
	return cmp.Or(b.CreatedAt.Compare(a.CreatedAt), b.ID.Compare(a.ID))
}

// listRunning asks the owners: no store knows what runs.
func (s *Tasks) listRunning(ctx context.Context, r *reach, f store.Filter, after store.Cursor, size int) (out []*headracev1.Task, last store.Cursor, more bool, err error) {
	views, err := s.engine.Running(ctx, f.Tenant, f.Function, r.partitions, maxRunning)
	if err = r.lacks(err); err != nil {
		return nil, last, false, fmt.Errorf("ask the owners what runs: %w", err)
	}
	views = slices.DeleteFunc(views, func(l core.Live) bool {
		return l.Task == nil || !l.View.Running ||
			!after.ID.IsZero() && newestFirst(l.Task, &store.Task{ID: after.ID, CreatedAt: after.CreatedAt}) <= 0
	})
	slices.SortFunc(views, func(a, b core.Live) int { return newestFirst(a.Task, b.Task) })
	for i, l := range views {
		if i == size {
			return out, last, true, nil
		}
		last = store.Cursor{CreatedAt: l.Task.CreatedAt, ID: l.Task.ID}
		out = append(out, s.describe(l.Task, &l.View))
	}
	return out, last, false, nil
}
