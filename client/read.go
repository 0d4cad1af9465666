package client

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"

	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

// A Ref names a task by one of its ids.
type Ref struct{ id, clientID string }

// ByID names a task by the server's id.
func ByID(id string) Ref { return Ref{id: id} }

// ByClientID names a task by the id that its submitter gave (Options.ID).
func ByClientID(id string) Ref { return Ref{clientID: id} }

func (r Ref) String() string {
	if r.clientID != "" {
		return task.Shorten(r.clientID)
	}
	return r.id
}

func (r Ref) proto() *headracev1.TaskRef {
	if r.clientID != "" {
		return &headracev1.TaskRef{Ref: &headracev1.TaskRef_ClientId{ClientId: r.clientID}}
	}
	return &headracev1.TaskRef{Ref: &headracev1.TaskRef_Id{Id: r.id}}
}

// Get returns a task with payload and result. Like all calls below it repeats what got no answer until
// ctx ends. Its error wraps ErrNotFound where the tenant has no such task.
func (c *Client) Get(ctx context.Context, ref Ref) (*TaskInfo, error) {
	req := &headracev1.GetRequest{Tenant: c.cfg.Tenant, Task: ref.proto()}
	res, err := repeat(ctx, c, func(ctx context.Context) (*headracev1.GetResponse, error) { return c.tasks.Get(ctx, req) })
	if err != nil {
		return nil, fmt.Errorf("get task %v: %w", ref, err)
	}
	return infoOf(res.Task), nil
}

// CancelResult says what a cancel did.
type CancelResult string

// The results of a cancel.
const (
	Cancelled       CancelResult = "cancelled"        // it is cancelled
	CancelRequested CancelResult = "cancel_requested" // it runs; the handler is told to stop
	AlreadyFinished CancelResult = "already_finished" // it had ended before, and nothing changed
)

// Cancel stops a task and returns when that is on disk. The reason is for people, at most 255 bytes. Its
// error wraps ErrNotFound where the tenant has no such task.
func (c *Client) Cancel(ctx context.Context, ref Ref, reason string) (CancelResult, *TaskInfo, error) {
	req := &headracev1.CancelRequest{Tenant: c.cfg.Tenant, Task: ref.proto(), Reason: reason}
	res, err := repeat(ctx, c, func(ctx context.Context) (*headracev1.CancelResponse, error) { return c.tasks.Cancel(ctx, req) })
	if err != nil {
		return "", nil, fmt.Errorf("cancel task %v: %w", ref, err)
	}
	result := Cancelled
	switch res.Outcome {
	case headracev1.CancelOutcome_CANCEL_OUTCOME_REQUESTED:
		result = CancelRequested
	case headracev1.CancelOutcome_CANCEL_OUTCOME_ALREADY_FINISHED:
		result = AlreadyFinished
	}
	return result, infoOf(res.Task), nil
}

// Attempts returns the kept tries of a task, oldest first, and how many there were in all.
func (c *Client) Attempts(ctx context.Context, ref Ref) (kept []Attempt, total int, err error) {
	req := &headracev1.ListAttemptsRequest{Tenant: c.cfg.Tenant, Task: ref.proto()}
	res, err := repeat(ctx, c, func(ctx context.Context) (*headracev1.ListAttemptsResponse, error) {
		return c.tasks.ListAttempts(ctx, req)
	})
	if err != nil {
		return nil, 0, fmt.Errorf("attempts of task %v: %w", ref, err)
	}
	for _, a := range res.Attempts {
		kept = append(kept, attemptOf(a))
	}
	return kept, int(res.Total), nil
}

// Logs returns the kept log lines of a task's tries, oldest first. Truncated says that lines were
// dropped, since an attempt logged more than 64 KiB.
func (c *Client) Logs(ctx context.Context, ref Ref) (lines []LogLine, truncated bool, err error) {
	req := &headracev1.ListLogsRequest{Tenant: c.cfg.Tenant, Task: ref.proto()}
	res, err := repeat(ctx, c, func(ctx context.Context) (*headracev1.ListLogsResponse, error) {
		return c.tasks.ListLogs(ctx, req)
	})
	if err != nil {
		return nil, false, fmt.Errorf("logs of task %v: %w", ref, err)
	}
	for _, l := range res.Lines {
		lines = append(lines, LogLine{int(l.Attempt), timeOf(l.LogTime), l.Level, l.Message})
	}
	return lines, res.Truncated, nil
}

// ListOptions filter a list. The zero value lists everything. Label can be combined with Function only.
type ListOptions struct {
	Function  string
	State     task.State // StateUnspecified: all
	Label     string     // "key=value"
	PageSize  int        // 1-1000; 0: 100
	PageToken string     // Page.Next of the page before, with the same filter
}

// A Page is a part of a list.
type Page struct {
	Tasks []*TaskInfo
	Next  string // PageToken of the next page; empty: this was the last
	// Unreachable names databases, nodes or partitions that did not answer: tasks there are missing, or are shown as
	// they are stored. Empty: the page is complete.
	Unreachable []string
}

// An IncompleteError says that a list lacks what could not be reached.
type IncompleteError struct{ Unreachable []string } // as in Page

func (e *IncompleteError) Error() string {
	return "the list is not complete, no answer from " + strings.Join(e.Unreachable, ", ")
}

// List returns a page of tasks, newest first, without payloads and results.
func (c *Client) List(ctx context.Context, o ListOptions) (Page, error) {
	if o.PageSize < 0 || o.PageSize > 1000 {
		return Page{}, fmt.Errorf("list tasks: %w", &task.FieldError{Field: "page_size", Value: fmt.Sprint(o.PageSize), Want: "1 to 1000, or 0 for 100"})
	}
	req := &headracev1.ListRequest{
		Tenant: c.cfg.Tenant, Function: o.Function, State: headracev1.TaskState(o.State), Label: o.Label,
		PageSize: int32(o.PageSize), PageToken: o.PageToken,
	}
	res, err := repeat(ctx, c, func(ctx context.Context) (*headracev1.ListResponse, error) { return c.tasks.List(ctx, req) })
	if err != nil {
		return Page{}, fmt.Errorf("list tasks: %w", err)
	}
	p := Page{Next: res.NextPageToken, Unreachable: res.Unreachable}
	for _, t := range res.Tasks {
		p.Tasks = append(p.Tasks, infoOf(t))
	}
	return p, nil
}

// ListAll returns all tasks that pass the filter, newest first, page by page. A task that changes its
// state meanwhile may be missed or come twice. An error ends the sequence, as its last pair: *IncompleteError after all
// tasks that could be read.
func (c *Client) ListAll(ctx context.Context, o ListOptions) iter.Seq2[*TaskInfo, error] {
	return func(yield func(*TaskInfo, error) bool) {
		var missing []string
		for {
			p, err := c.List(ctx, o)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, t := range p.Tasks {
				if !yield(t, nil) {
					return
				}
			}
			for _, m := range p.Unreachable {
				if !slices.Contains(missing, m) {
					missing = append(missing, m)
				}
			}
			if p.Next == "" {
				if len(missing) > 0 {
					yield(nil, &IncompleteError{missing})
				}
				return
			}
			o.PageToken = p.Next
		}
	}
}

// repeat makes a call that may be made many times over, until it is answered or ctx ends.
func repeat[T any](ctx context.Context, c *Client, call func(context.Context) (T, error)) (T, error) {
	ctx, cancel := c.during(ctx)
	defer cancel()
	var none T
	var r repeater
	for {
		if err := c.usable(ctx); err != nil {
			return none, r.ended(err)
		}
		once, cancel := context.WithTimeout(ctx, c.cfg.CallTimeout)
		res, err := call(once)
		cancel()
		if err == nil {
			return res, nil
		}
		if err := r.failed(ctx, c, err); err != nil {
			return none, err
		}
	}
}

// A repeater counts failed calls in a row and remembers the last cause.
type repeater struct {
	failures int
	last     error
}

// failed pauses before the call is made again, or returns the error that ends it all.
func (r *repeater) failed(ctx context.Context, c *Client, err error) error {
	if ctx.Err() != nil {
		return r.ended(ended(ctx))
	}
	v, after, public := judge(err)
	if v == refused {
		return public
	}
	r.failures++
	r.last = public
	c.noteFailure(ctx, v, public)
	if v == ambiguous || v == again {
		after = max(after, backoff(r.failures))
	}
	if err := pause(ctx, after); err != nil {
		return r.ended(err)
	}
	return nil
}

// ended adds the last cause to why we stopped.
func (r *repeater) ended(end error) error {
	if r.last == nil {
		return end
	}
	return fmt.Errorf("%w; last: %w", end, r.last)
}
