package executor

import (
	"context"
	"sync"

	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

// The functions of this file take the context of a handler, or one derived from it. With any other they
// return zero values and do nothing, so that code can be shared and tested without an executor.

// TaskID returns the id of the task.
func TaskID(ctx context.Context) task.ID {
	if c := current(ctx); c != nil {
		return c.ID
	}
	return task.ID{}
}

// TaskKey returns a text that is the same for all tries of the task and for no other task: an idempotency
// key for downstreams that remove duplicates.
func TaskKey(ctx context.Context) string {
	if c := current(ctx); c != nil {
		return c.ID.String()
	}
	return ""
}

// Token returns the fencing token of this try. As text it sorts behind the tokens of all earlier tries of
// the task: a downstream that remembers the largest can refuse what an older try still does.
func Token(ctx context.Context) string {
	if c := current(ctx); c != nil {
		return c.Task.Token.String()
	}
	return ""
}

// Attempt returns the number of this attempt, from 1. It does not grow with tries that spend none.
func Attempt(ctx context.Context) int {
	if c := current(ctx); c != nil {
		return c.Task.Attempt
	}
	return 0
}

// Labels returns the labels of the task. Do not change them.
func Labels(ctx context.Context) map[string]string {
	if c := current(ctx); c != nil {
		return c.Task.Labels
	}
	return nil
}

// TraceParent returns the W3C trace context that the task was submitted with; link your spans to it.
func TraceParent(ctx context.Context) (traceParent, traceState string) {
	if c := current(ctx); c != nil {
		return c.Task.TraceParent, c.Task.TraceState
	}
	return "", ""
}

// LastCheckpoint returns what an earlier try of the task left by Checkpoint, nil if there is none. Do not
// change it.
func LastCheckpoint(ctx context.Context) []byte {
	if c := current(ctx); c != nil {
		return c.Task.Checkpoint
	}
	return nil
}

// Progress tells how far the handler is: a fraction of 0 to 1 and a text, cut after 255 bytes. The newest
// is sent, at most once a second; calls are cheap.
func Progress(ctx context.Context, fraction float64, message string) {
	if c := current(ctx); c != nil {
		c.report(func(s *said) { s.progress, s.fraction, s.message = true, min(max(fraction, 0), 1), cut(message, 255) })
	}
}

// Checkpoint leaves data for the next try, should this one not succeed. The newest counts; it travels with
// progress, at most once a second, and with the outcome. Its error is a *task.FieldError above 64 KiB.
func Checkpoint(ctx context.Context, data []byte) error {
	if len(data) > task.MaxCheckpoint {
		return &task.FieldError{Field: "checkpoint", Want: "at most 64 KiB"}
	}
	if c := current(ctx); c != nil {
		data = append(make([]byte, 0, len(data)), data...)
		c.report(func(s *said) { s.checkpointed, s.checkpoint = true, data })
	}
	return nil
}

// said is what a handler has reported and the loop has not seen.
type said struct {
	mu     sync.Mutex // guards following
	posted bool       // the loop knows that there is something

	progress     bool
	fraction     float64
	message      string
	checkpointed bool
	checkpoint   []byte
	lines        []*headracev1.LogEntry
	lineBytes    int
}

// report notes what set does, and tells the loop unless it was told already: a handler that reports in a
// tight loop costs one event a round.
func (c *call) report(set func(*said)) {
	c.said.mu.Lock()
	set(&c.said)
	tell := !c.said.posted
	c.said.posted = true
	c.said.mu.Unlock()
	if tell {
		c.loop.box.reported(c)
	}
}

// reported moves what c has said into the engine. The loop's goroutine only.
func (l *loop) reported(c *call) {
	s := &c.said
	s.mu.Lock()
	defer s.mu.Unlock()
	s.posted = false
	if s.progress {
		l.engine.Progress(l.now, c.try, s.fraction, s.message)
	}
	if s.checkpointed {
		l.engine.Checkpoint(l.now, c.try, s.checkpoint)
	}
	for _, line := range s.lines {
		l.engine.Log(l.now, c.try, line)
	}
	s.progress, s.checkpointed, s.checkpoint, s.lines, s.lineBytes = false, false, nil, nil, 0
}

// cut returns at most n bytes of valid UTF-8 of s.
func cut(s string, n int) string {
	if len(s) > n {
		s = s[:n]
	}
	return validUTF8(s)
}
