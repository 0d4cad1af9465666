package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/headrace/headrace/internal/grpcx"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

// Errors to be asked for with errors.Is.
var (
	// ErrNotFound says that the tenant has no such task.
	ErrNotFound = errors.New("task not found")
	// ErrClosed says that the client was closed.
	ErrClosed = errors.New("client is closed")
	// ErrNotSent says that the context or the client ended before the task was sent, or after it was
	// refused for now: it is not stored.
	ErrNotSent = errors.New("submit not sent")
	// ErrOutcomeUnknown says that the task was sent and no answer came: it may be stored or not.
	ErrOutcomeUnknown = errors.New("outcome unknown")
)

// An Error is a server's refusal of a call.
type Error struct {
	Code     codes.Code
	Reason   string            // machine-readable, such as "permission_denied"; may be empty
	Message  string            // for people
	Metadata map[string]string // what the server tells besides: "error_id" of an internal error, …
	is       error             // ErrNotFound, a *task.FieldError, or nil
}

func (e *Error) Error() string {
	if e.Reason == "" {
		return fmt.Sprintf("%s (%v)", e.Message, e.Code)
	}
	return fmt.Sprintf("%s (%s)", e.Message, e.Reason)
}

// Unwrap returns ErrNotFound or a *task.FieldError where e is one.
func (e *Error) Unwrap() error { return e.is }

// GRPCStatus lets status.FromError read the code.
func (e *Error) GRPCStatus() *status.Status { return status.New(e.Code, e.Message) }

// A DuplicateError says that another task, of other function or payload, has the client's id.
type DuplicateError struct {
	ExistingID string // the server's id of the task that is there
	Message    string
}

func (e *DuplicateError) Error() string {
	return fmt.Sprintf("the id belongs to task %s: %s", e.ExistingID, e.Message)
}

// A BackpressureError says that the platform takes no submits of this tenant for now.
type BackpressureError struct {
	RetryAfter time.Duration // 0 when the server did not say
	Reason     string        // machine-readable, such as "tenant_rate"
	Message    string
}

func (e *BackpressureError) Error() string {
	return fmt.Sprintf("refused for now (%s), retry after %v: %s", e.Reason, e.RetryAfter, e.Message)
}

// An OutcomeError says that a task that was waited for has ended otherwise than by success.
type OutcomeError struct{ Task *TaskInfo }

func (e *OutcomeError) Error() string {
	if e.Task.Error == nil {
		return fmt.Sprintf("task %s %v", e.Task.ID, e.Task.State)
	}
	return fmt.Sprintf("task %s %v in attempt %d: %v", e.Task.ID, e.Task.State, e.Task.Attempt, e.Task.Error)
}

// unanswered is a submit that was given up.
type unanswered struct {
	kind error // ErrNotSent or ErrOutcomeUnknown
	last error // what was seen last of server or network; may be nil
	end  error // why we stopped: the context's error or ErrClosed
}

func (e *unanswered) Error() string {
	if e.last == nil {
		return fmt.Sprintf("%v: %v", e.kind, e.end)
	}
	return fmt.Sprintf("%v: %v; last: %v", e.kind, e.end, e.last)
}

func (e *unanswered) Unwrap() []error {
	if e.last == nil {
		return []error{e.kind, e.end}
	}
	return []error{e.kind, e.end, e.last}
}

// ended returns why ctx is over; a cause that was given is kept beside the plain error.
func ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// verdict says what a failed call means for what was sent with it.
type verdict int

const (
	refused   verdict = iota // for good; nothing is stored
	ambiguous                // it may have been carried out; send it again under the same id
	later                    // refused for now; nothing is stored
	again                    // the same for no fault of the tenant's, which is no backpressure: send it anew
)

// judge reads the error of a call, which is not nil. After says how long to pause at least.
func judge(err error) (v verdict, after time.Duration, public error) {
	if h := heldBack(err); h != nil {
		return ambiguous, 0, h // as one that was not sent
	}
	return judgeInfo(grpcx.Read(err))
}

// judgeItem does so for one item of a batch.
func judgeItem(e *headracev1.SubmitError) (verdict, time.Duration, error) {
	i := grpcx.Info{Code: codes.Code(e.Code), Reason: e.Reason, Message: e.Message, Metadata: e.Metadata}
	if e.RetryAfter != nil {
		i.RetryAfter = max(e.RetryAfter.AsDuration(), 0)
	}
	if e.ExistingId != "" {
		if i.Metadata == nil {
			i.Metadata = map[string]string{}
		}
		i.Metadata[grpcx.MetaExistingID] = e.ExistingId
	}
	return judgeInfo(i)
}

func judgeInfo(i grpcx.Info) (verdict, time.Duration, error) {
	e := &Error{Code: i.Code, Reason: i.Reason, Message: i.Message, Metadata: i.Metadata}
	if i.Code == codes.Unavailable && i.Metadata[grpcx.MetaStored] == grpcx.StoredNo {
		return again, i.RetryAfter, e
	}
	switch i.Code {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Aborted:
		return ambiguous, i.RetryAfter, e
	case codes.ResourceExhausted:
		if i.RetryAfter > 0 {
			return later, i.RetryAfter, &BackpressureError{RetryAfter: i.RetryAfter, Reason: i.Reason, Message: i.Message}
		}
	case codes.AlreadyExists:
		return refused, 0, &DuplicateError{ExistingID: i.Metadata[grpcx.MetaExistingID], Message: i.Message}
	case codes.NotFound:
		e.is = ErrNotFound
	case codes.InvalidArgument:
		if f := i.Metadata[grpcx.MetaField]; f != "" {
			e.is = &task.FieldError{Field: f, Want: i.Metadata[grpcx.MetaWant]}
		}
	case codes.Internal, codes.Unknown, codes.DataLoss:
		e.is = ErrOutcomeUnknown // it failed in the middle; not retried, or bugs would hide behind time-outs
	}
	return refused, 0, e
}

// errWatchEnded is a watch that the server ended before the task did: to be repeated.
var errWatchEnded = status.Error(codes.Unavailable, "the server ended the watch")
