package client

import (
	"context"
	"fmt"
	"slices"

	"github.com/headrace/headrace/fn"
)

// Submitted says what was stored.
type Submitted struct {
	ID           string  // the server's id of the task, 26 characters
	Deduplicated bool    // the task was there already
	Pressure     float64 // 0: idle; 1: the tenant's submits are about to be refused
}

// An Outcome is the end of one task of a batch: stored, or Err says why not.
type Outcome struct {
	Submitted
	Err error
}

// A Handle is a submitted task whose result has the type Out.
type Handle[Out any] struct {
	Submitted
	c      *Client
	decode func([]byte) (Out, error)
}

// Submit encodes in, submits a task that runs f, and returns when the task is on disk. Concurrent submits
// share calls. Its errors are those of Client.Submit, or of a definition or value that can't be encoded.
func Submit[In, Out any](ctx context.Context, c *Client, f fn.Function[In, Out], in In, opts Options) (*Handle[Out], error) {
	t, err := NewTask(f, in, opts)
	if err != nil {
		return nil, fmt.Errorf("submit: %w", err)
	}
	s, err := c.Submit(ctx, t)
	if err != nil {
		return nil, err
	}
	return &Handle[Out]{s, c, f.DecodeOutput}, nil
}

// Attach returns a handle of a task of f that was submitted before, by its server's id.
func Attach[In, Out any](c *Client, f fn.Function[In, Out], id string) *Handle[Out] {
	return &Handle[Out]{Submitted{ID: id}, c, f.DecodeOutput}
}

// Wait returns the task's result once it has succeeded, or *OutcomeError once it has ended otherwise. It
// survives lost connections and ends with ctx.
func (h *Handle[Out]) Wait(ctx context.Context) (Out, error) {
	var none Out
	info, err := h.c.Wait(ctx, ByID(h.ID))
	if err != nil {
		return none, err
	}
	if !info.Succeeded() {
		return none, &OutcomeError{Task: info}
	}
	return h.decode(info.Result)
}

// Submit submits one task in its encoded form and returns when it is on disk. Concurrent submits share
// calls. What its errors mean is told at the top of the package.
func (c *Client) Submit(ctx context.Context, t Task) (Submitted, error) {
	if len(c.cfg.Middleware) == 0 {
		s, err := c.submitOne(ctx, t)
		if err != nil {
			return s, fmt.Errorf("submit %s: %w", t.Function, err)
		}
		return s, nil
	}
	out, err := c.submit(ctx, []Task{t})
	switch {
	case err == nil && len(out) != 1:
		err = fmt.Errorf("middleware returned %d outcomes for one task", len(out))
	case len(out) == 1 && out[0].Err != nil:
		err = out[0].Err
	}
	if err != nil {
		return Submitted{}, fmt.Errorf("submit %s: %w", t.Function, err)
	}
	return out[0].Submitted, nil
}

// SubmitBatch submits any number of tasks, in several calls if need be, and returns one outcome for each,
// in order. Its error is nil once every task is either stored or refused for good: look at each
// outcome. If ctx or the client ends before, the error says so, and so do the outcomes of those tasks
// that have no answer. Tasks that are refused for now (backpressure) are waited for, as by Submit.
func (c *Client) SubmitBatch(ctx context.Context, tasks []Task) ([]Outcome, error) {
	if len(tasks) == 0 {
		return nil, nil
	}
	if len(c.cfg.Middleware) > 0 {
		tasks = slices.Clone(tasks)
	}
	out, err := c.submit(ctx, tasks)
	if err != nil {
		return out, fmt.Errorf("submit %d tasks: %w", len(tasks), err)
	}
	return out, nil
}

// submitTasks is the inside of all middleware.
func (c *Client) submitTasks(ctx context.Context, tasks []Task) ([]Outcome, error) {
	if len(tasks) != 1 {
		return c.submitMany(ctx, tasks)
	}
	s, err := c.submitOne(ctx, tasks[0])
	out := []Outcome{{s, err}}
	if isUnanswered(err) {
		return out, err
	}
	return out, nil
}
