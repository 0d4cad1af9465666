package loop

import (
	"context"
	"fmt"
	"time"

	"github.com/headrace/headrace/dispatcher/core"
)

// An event is one thing that happened, to be done on Run's goroutine. There is one for each request or
// message, however many tasks it holds.
type event struct {
	name string
	do   func(now time.Time)
}

func (l *Loop) handle(ev event) {
	l.meter.events++
	ev.do(l.cfg.Now())
}

// post waits for room in the mailbox and reports whether the loop will see the event.
func (l *Loop) post(name string, do func(now time.Time)) bool {
	select {
	case l.mail <- event{name, do}:
		return true
	case <-l.stopped:
		return false
	}
}

// postFor is post that gives up with its caller.
func (l *Loop) postFor(ctx context.Context, name string, do func(now time.Time)) error {
	select {
	case l.mail <- event{name, do}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-l.stopped:
		return ErrStopped
	}
}

// Do runs f on the loop's goroutine and waits for it: a consistent look at the core. F must be quick
// (1 ms; more in several calls) and must keep nothing of what it sees but snapshots. If ctx ends first,
// f may still run later.
func (l *Loop) Do(ctx context.Context, f func(*core.Core)) error {
	done := make(chan error, 1)
	err := l.postFor(ctx, "do", func(time.Time) {
		if l.look("do", f) {
			done <- nil
		} else {
			done <- fmt.Errorf("look at the core: %w", ErrPanic)
		}
	})
	if err != nil {
		return err
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-l.stopped:
		return ErrStopped
	}
}
