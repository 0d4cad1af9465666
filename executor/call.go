package executor

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/headrace/headrace/executor/engine"
	"github.com/headrace/headrace/task"
)

// call is one try on its way through the pool, and its handler's context. A real cancellable context is
// made only when somebody asks for it: a handler that neither waits nor passes its context on costs none.
type call struct {
	Task
	loop     *loop
	reg      *registration
	try      *engine.Try
	node     *node     // to fetch the payload from; nil: it is here
	deadline time.Time // by Go's clock; zero: none

	said said // what the handler reports

	mu     sync.Mutex      // guards following
	inner  context.Context // nil until it is asked for
	cancel context.CancelCauseFunc
	stop   context.CancelFunc // of the deadline's timer
	cause  error              // why it ended; nil: it has not
}

type callKey struct{}

// current returns the call that ctx belongs to, nil outside of handlers.
func current(ctx context.Context) *call {
	c, _ := ctx.Value(callKey{}).(*call)
	return c
}

// context returns the real one.
func (c *call) context() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inner == nil {
		c.inner, c.cancel = context.WithCancelCause(c.loop.base)
		if !c.deadline.IsZero() {
			c.inner, c.stop = context.WithDeadlineCause(c.inner, c.deadline, ErrTimeout)
		}
		if c.cause != nil {
			c.cancel(c.cause)
		}
	}
	return c.inner
}

// end cancels the context; only the first cause counts.
func (c *call) end(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause != nil {
		return
	}
	c.cause = cause
	if c.inner != nil {
		c.cancel(cause)
	}
}

// returned releases what the context holds.
func (c *call) returned() {
	c.end(errReturned)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inner != nil {
		c.cancel(errReturned) // it may have ended by its deadline alone
	}
	if c.stop != nil {
		c.stop()
	}
}

// Deadline is part of context.Context.
func (c *call) Deadline() (time.Time, bool) { return c.deadline, !c.deadline.IsZero() }

// Done is part of context.Context.
func (c *call) Done() <-chan struct{} { return c.context().Done() }

// Err is part of context.Context.
func (c *call) Err() error {
	c.mu.Lock()
	lively := c.inner == nil && c.cause == nil && c.deadline.IsZero()
	c.mu.Unlock()
	if lively {
		return nil
	}
	return c.context().Err()
}

// Value is part of context.Context.
func (c *call) Value(key any) any {
	if _, ok := key.(callKey); ok {
		return c
	}
	return c.context().Value(key)
}

func (c *call) String() string { return "headrace task " + c.ID.String() }

// run calls the handler and says how it ended. It never panics.
func (c *call) run() (r engine.Result) {
	x := c.loop.x
	if c.node != nil {
		if err := c.fetch(); err != nil {
			return engine.Result{Class: task.Drained, Explicit: true, Message: task.CutError(err.Error())}
		}
	}
	defer func() {
		if v := recover(); v != nil { // of an error's own methods: handlers are guarded
			r = engine.Result{Class: task.Retryable, Message: task.CutError((&PanicError{v, stack()}).Error())}
		}
	}()
	x.started.Add(1)
	out, err := c.reg.handle(c, &c.Task)
	switch {
	case err != nil:
		return classify(err)
	case len(out.Body) > x.cfg.ResultBytes:
		return refuseResult("a result of %d bytes, at most %d are possible", len(out.Body), x.cfg.ResultBytes)
	case len(out.ContentType) > task.MaxContentTypeLen:
		return refuseResult("a content type of %d bytes for the result, at most %d are possible", len(out.ContentType), task.MaxContentTypeLen)
	}
	return engine.Result{Body: out.Body, ContentType: out.ContentType}
}

func refuseResult(format string, args ...any) engine.Result {
	return engine.Result{Class: task.NonRetryable, Explicit: true, Message: "the handler returned " + fmt.Sprintf(format, args...)}
}
