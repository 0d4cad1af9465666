package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"

	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
)

// Wait returns the task once it has ended, however it did. It survives lost connections, restarts of
// nodes and changes of owner, and ends with ctx. Its error wraps ErrNotFound where the tenant has no such
// task.
func (c *Client) Wait(ctx context.Context, ref Ref) (*TaskInfo, error) {
	for t, err := range c.watch(ctx, ref, true) {
		if err != nil {
			return nil, fmt.Errorf("wait for task %v: %w", ref, err)
		}
		if t.State.Terminal() {
			return t, nil
		}
	}
	panic("unreachable: a watch ends with a terminal state or an error")
}

// Watch returns the task as it is now and after each change, as far as the changes are seen one by one,
// up to its end. An error ends the sequence, as its last pair. It survives what Wait survives; then the
// same state may come twice.
func (c *Client) Watch(ctx context.Context, ref Ref) iter.Seq2[*TaskInfo, error] {
	return func(yield func(*TaskInfo, error) bool) {
		for t, err := range c.watch(ctx, ref, false) {
			if err != nil {
				err = fmt.Errorf("watch task %v: %w", ref, err)
			}
			if !yield(t, err) {
				return
			}
		}
	}
}

// watch opens streams until one has brought the terminal state.
func (c *Client) watch(ctx context.Context, ref Ref, onlyTerminal bool) iter.Seq2[*TaskInfo, error] {
	req := &headracev1.WaitRequest{Tenant: c.cfg.Tenant, Task: ref.proto(), OnlyTerminal: onlyTerminal}
	return func(yield func(*TaskInfo, error) bool) {
		ctx, cancel := c.during(ctx) // ends the stream, too, when the consumer breaks off
		defer cancel()
		var r repeater
		for {
			if err := c.usable(ctx); err != nil {
				yield(nil, r.ended(err))
				return
			}
			stream, err := c.tasks.Wait(ctx, req)
			for err == nil {
				var res *headracev1.WaitResponse
				if res, err = stream.Recv(); err != nil {
					break
				}
				r = repeater{}
				t := infoOf(res.Task)
				if !yield(t, nil) || t.State.Terminal() {
					return
				}
			}
			if errors.Is(err, io.EOF) { // a server that goes away politely
				err = errWatchEnded
			}
			if err := r.failed(ctx, c, err); err != nil {
				yield(nil, err)
				return
			}
		}
	}
}
