package client

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/headrace/headrace/fn"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

// Options are what a submitter may ask for one task. The zero value asks for nothing special.
type Options struct {
	// ID is the caller's own id of the task, 1-256 bytes of UTF-8 without control characters, unique in
	// the tenant. The same id with the same function and payload again gives the task that is there;
	// with another one, *DuplicateError. Empty: the server's id only.
	ID string
	// Delay from acceptance until the task is due, 0-10 years. Not together with At.
	Delay time.Duration
	// At is when the task is due. Zero or past: at once.
	At time.Time
	// Priority 0-9, 0 first, orders tasks of one function and band: new(uint8(0)). Nil: 5.
	Priority *uint8
	// Band is the standing of the task inside its tenant. Empty: BandNormal.
	Band Band
	// StartTTL expires the task if its first attempt has not started this long after it was due.
	StartTTL time.Duration
	// Deadline expires the task at this time, whatever it does. Zero: none.
	Deadline time.Time
	// MaxAttempts before the task is a dead letter, 1-1,000. 0: as the function says.
	MaxAttempts int
	// Timeout of one attempt, 1 ms-1 year. 0: as the function says.
	Timeout time.Duration
	// Labels to find the task by: at most 16, keys of 1-63 bytes, values of at most 255.
	Labels map[string]string
}

// Band is the standing of a task inside its tenant. A flood in one band leaves the others their share:
// high 16 : normal 4 : low 1.
type Band string

// The bands.
const (
	BandHigh   Band = "high"
	BandNormal Band = "normal"
	BandLow    Band = "low"
)

// A Task is one request to run a function, in its encoded form.
type Task struct {
	Function    string
	Payload     []byte // opaque; at most 1 MiB unless the server allows more; nil and empty are the same
	ContentType string // MIME type of the payload, for the handler; at most 255 bytes
	Options
}

// NewTask encodes in for f, for use with SubmitBatch.
func NewTask[In, Out any](f fn.Function[In, Out], in In, opts Options) (Task, error) {
	if err := f.Validate(); err != nil {
		return Task{}, err
	}
	payload, contentType, err := f.EncodeInput(in)
	if err != nil {
		return Task{}, err
	}
	return Task{Function: f.Name(), Payload: payload, ContentType: contentType, Options: opts}, nil
}

// maxTaskBytes bounds a task on the wire: the largest payload that any server takes, and room for the
// rest. A larger one can't be sent at all.
const maxTaskBytes = task.MaxPayloadConfig + 1<<20

// spec returns t as it is sent. It refuses what has no form on the wire; the rest is the server's to
// judge, whose limits are configurable. Its error is a *task.FieldError.
func (c *Client) spec(ctx context.Context, t Task) (*headracev1.TaskSpec, error) {
	s := &headracev1.TaskSpec{
		Function:    t.Function,
		Payload:     t.Payload,
		ContentType: t.ContentType,
		ClientId:    t.ID,
		Labels:      t.Labels,
	}
	if t.Delay < 0 || t.Delay != 0 && !t.At.IsZero() {
		return nil, &task.FieldError{Field: "delay", Value: t.Delay.String(), Want: "0 to 10 years, and no At beside it"}
	}
	if t.Delay != 0 {
		s.Delay = durationpb.New(t.Delay)
	}
	if !t.At.IsZero() {
		s.DueTime = timestamppb.New(t.At)
	}
	if !t.Deadline.IsZero() {
		s.DeadlineTime = timestamppb.New(t.Deadline)
	}
	if t.StartTTL != 0 {
		s.StartTtl = durationpb.New(t.StartTTL)
	}
	if t.Timeout != 0 {
		s.Timeout = durationpb.New(t.Timeout)
	}
	if t.MaxAttempts < 0 || t.MaxAttempts > task.MaxAttemptsLimit {
		return nil, &task.FieldError{Field: "max_attempts", Value: fmt.Sprint(t.MaxAttempts), Want: "1 to 1000, or 0 for the function's"}
	}
	s.MaxAttempts = uint32(t.MaxAttempts)
	if t.Priority != nil {
		s.Priority = new(uint32(*t.Priority))
	}
	switch t.Band {
	case "":
	case BandHigh:
		s.Band = headracev1.Band_BAND_HIGH
	case BandNormal:
		s.Band = headracev1.Band_BAND_NORMAL
	case BandLow:
		s.Band = headracev1.Band_BAND_LOW
	default:
		return nil, &task.FieldError{Field: "band", Value: string(t.Band), Want: "high, normal or low"}
	}
	s.TraceParent, s.TraceState = wellFormed(c.cfg.TraceContext(ctx))
	if n := s.SizeVT(); n > maxTaskBytes {
		return nil, &task.FieldError{Field: "task", Value: fmt.Sprintf("%d bytes", n), Want: "at most 17 MiB, all fields together"}
	}
	return s, nil
}
