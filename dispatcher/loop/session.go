package loop

import (
	"context"
	"fmt"
	"time"

	"github.com/headrace/headrace/dispatcher/core"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
)

// Outbox is where messages to a session go. Put never waits: it reports false when the peer is too far
// behind, and the session is cut off. Close ends the stream once what was put before is sent, or at
// once where that takes too long.
type Outbox = interface {
	Put(*headracev1.SessionResponse) bool
	Close(reason error)
}

// OpenSession starts an executor's session. Its error refuses the stream: a *task.FieldError, ErrStopped
// or the context's.
func (l *Loop) OpenSession(ctx context.Context, h *headracev1.Hello, out Outbox) (core.SessionID, error) {
	id := core.SessionID(l.nextID())
	opened := make(chan error, 1)
	if err := l.postFor(ctx, "open session", func(now time.Time) {
		l.sessions[id] = out
		var err error
		if !l.enter("open session", func(c *core.Core) { err = c.OpenSession(now, id, h) }) {
			err = fmt.Errorf("open a session: %w", ErrPanic)
		}
		if err != nil {
			delete(l.sessions, id)
		}
		opened <- err
	}); err != nil {
		return 0, err
	}
	select {
	case err := <-opened:
		return id, err
	case <-l.stopped:
		return 0, ErrStopped
	}
}

// Message hands over what a session's peer sent. One goroutine a session calls it, in order. It waits
// for room in the mailbox. A message that breaks the protocol closes the session.
func (l *Loop) Message(ctx context.Context, s core.SessionID, m *headracev1.SessionRequest) error {
	return l.postFor(ctx, "message", func(now time.Time) {
		if _, open := l.sessions[s]; !open {
			return
		}
		var err error
		l.enter("message", func(c *core.Core) { err = c.Message(now, s, m) })
		if err != nil {
			l.closeSession(s, err)
		}
	})
}

// CloseSession says that the stream has ended. It must follow every OpenSession that succeeded.
func (l *Loop) CloseSession(s core.SessionID) {
	l.post("close session", func(now time.Time) {
		delete(l.sessions, s)
		l.enter("close session", func(c *core.Core) { c.CloseSession(now, s) })
	})
}

// closeSession ends the stream from our side; the core hears of it by CloseSession, when it has ended.
func (l *Loop) closeSession(s core.SessionID, reason error) {
	if out := l.sessions[s]; out != nil {
		delete(l.sessions, s)
		out.Close(reason)
	}
}
