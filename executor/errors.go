package executor

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/headrace/headrace/executor/engine"
	"github.com/headrace/headrace/internal/grpcx"
	"github.com/headrace/headrace/task"
)

// Why a handler's context ended: context.Cause returns one of these, or wraps it.
var (
	ErrCancelled = errors.New("the task was cancelled")
	ErrTimeout   = errors.New("the attempt's time ran out")
	ErrStale     = errors.New("the try is not the current one any more: its outcome is not wanted")
	ErrOrphaned  = errors.New("the owner of the task could not be reached for too long")
	ErrDrained   = errors.New("the executor shuts down")
)

// errReturned is the cause after the handler has returned.
var errReturned = errors.New("the handler has returned")

var causes = [...]error{
	engine.CauseCancelled: ErrCancelled,
	engine.CauseStale:     ErrStale,
	engine.CauseOrphaned:  ErrOrphaned,
	engine.CauseTimeout:   ErrTimeout,
	engine.CauseDrained:   ErrDrained,
}

// classified is an error that says what shall come next.
type classified struct {
	err        error
	class      task.Class
	after      time.Duration
	downstream string
}

func (e *classified) Error() string { return e.err.Error() }
func (e *classified) Unwrap() error { return e.err }

// NonRetryable marks err as one that no retry will mend: the task becomes a dead letter at once.
// NonRetryable(nil) is nil.
func NonRetryable(err error) error {
	if err == nil {
		return nil
	}
	return &classified{err: err, class: task.NonRetryable}
}

// RetryAfter marks err as a failure after which the task shall be tried again in d, in place of the
// function's back-off. It is clamped to 0 … 24 h; 0 means the back-off. RetryAfter(nil, d) is nil.
func RetryAfter(err error, d time.Duration) error {
	if err == nil {
		return nil
	}
	return &classified{err: err, class: task.Retryable, after: d}
}

// Throttled marks err as "too much" said by a downstream: it is the thing's name, such as "stripe"; ""
// is the function's own. No attempt is spent; the task is tried again in d at the earliest, clamped to
// 0 … 24 h, 0 when it did not say. The adaptive limit of the function's downstream learns from it; with a second
// or more nothing at all is pushed to that downstream, or to a named one, for d. Throttled(nil, …) is nil.
func Throttled(err error, downstream string, d time.Duration) error {
	if err == nil {
		return nil
	}
	return &classified{err: err, class: task.Throttled, after: d, downstream: downstream}
}

// Snooze gives the task back to be run again in d, clamped to 0 … 24 h. No attempt is spent.
func Snooze(d time.Duration) error {
	return &classified{err: fmt.Errorf("snoozed for %v", d), class: task.Snoozed, after: d}
}

// PanicError is a panic of a handler or middleware as an error.
type PanicError struct {
	Value any
	Stack string // where it happened, innermost first
}

// maxPanicText is what of a panic's value is in its text, in bytes: the stack is worth more.
const maxPanicText = 1 << 10

func (e *PanicError) Error() string {
	text := fmt.Sprint(e.Value)
	if len(text) > maxPanicText {
		text = strings.ToValidUTF8(text[:maxPanicText], "") + "…"
	}
	return fmt.Sprintf("panic: %s\n\n%s", text, e.Stack)
}

// Unwrap returns the value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// guard returns h with its panics turned into errors.
func guard(h Handler) Handler {
	return func(ctx context.Context, t *Task) (r Result, err error) {
		defer func() {
			if v := recover(); v != nil {
				r, err = Result{}, &PanicError{v, stack()}
			}
		}()
		return h(ctx, t)
	}
}

// stack is the stack of a panic without what lies between the panic and us.
func stack() string {
	s := string(debug.Stack())
	if i := strings.LastIndex(s, "\npanic("); i >= 0 {
		s = s[i+1:]
		for range 2 { // panic itself: its name and its place
			if _, rest, ok := strings.Cut(s, "\n"); ok {
				s = rest
			}
		}
	}
	return s
}

// rank orders classes that are joined in one error: what can't be mended wins.
var rank = [task.ClassCount]int{task.Retryable: 1, task.Snoozed: 2, task.Throttled: 3, task.NonRetryable: 4}

// find returns the class that err carries: the outermost one, of joined errors the highest by rank.
func find(err error) *classified {
	for err != nil {
		if c, ok := err.(*classified); ok {
			return c
		}
		switch u := err.(type) {
		case *PanicError:
			return nil // whatever was thrown, a panic is a failure
		case interface{ Unwrap() error }:
			err = u.Unwrap()
		case interface{ Unwrap() []error }:
			var best *classified
			for _, e := range u.Unwrap() {
				if c := find(e); c != nil && (best == nil || rank[c.class] > rank[best.class]) {
					best = c
				}
			}
			return best
		default:
			return nil
		}
	}
	return nil
}

// classify says what an error of a handler means.
func classify(err error) engine.Result {
	r := engine.Result{Class: task.Retryable}
	if c := find(err); c != nil {
		r.Class, r.RetryAfter, r.Downstream, r.Explicit = c.class, c.after, c.downstream, true
		if c.downstream != "" && task.Name("downstream", c.downstream) != nil {
			r.Downstream = "" // no such name: the function's own is the best guess
		}
	} else if _, ok := errors.AsType[*PanicError](err); ok {
		// a failure, whatever was thrown
	} else if _, ok := status.FromError(err); ok {
		info := grpcx.Read(err)
		r.RetryAfter = info.RetryAfter
		switch info.Code {
		case codes.ResourceExhausted:
			r.Class, r.Explicit = task.Throttled, true
		case codes.Canceled, codes.DeadlineExceeded:
			r.Interrupted = true
		}
	}
	r.RetryAfter = min(max(r.RetryAfter, 0), task.MaxRetryAfter)
	r.Interrupted = r.Interrupted || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	for _, cause := range causes {
		r.Interrupted = r.Interrupted || cause != nil && errors.Is(err, cause)
	}
	r.Message = task.CutError(err.Error())
	return r
}
