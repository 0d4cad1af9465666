package executor

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"time"

	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

// Logger returns a logger for a handler. Its lines reach the task, where people see them with its
// attempts, and go on to Config.Logger with the task's id, function and attempt. Of an attempt 64 KiB
// are kept, the newest. Outside of handlers it is slog.Default().
func Logger(ctx context.Context) *slog.Logger {
	c := current(ctx)
	if c == nil {
		return slog.Default()
	}
	cfg := &c.loop.x.cfg
	next := cfg.Logger.Handler().WithAttrs([]slog.Attr{
		slog.String("task", c.ID.String()), slog.String("tenant", c.Tenant),
		slog.String("function", c.Function), slog.Int("attempt", c.Task.Attempt),
	})
	buf := new(lineBuffer)
	return slog.New(&taskHandler{c: c, next: next, level: cfg.TaskLogLevel, buf: buf, text: slog.NewTextHandler(buf, &slog.HandlerOptions{
		Level: slog.Level(-100),
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey || a.Key == slog.MessageKey) {
				return slog.Attr{} // sent apart
			}
			return a
		},
	})})
}

// taskHandler sends lines to the task and on to the next handler.
type taskHandler struct {
	c     *call
	next  slog.Handler
	level slog.Leveler
	text  slog.Handler // writes the attributes into buf
	buf   *lineBuffer
}

// lineBuffer holds the attributes of one line.
type lineBuffer struct {
	bytes.Buffer
}

func (h *taskHandler) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= h.level.Level() || h.next.Enabled(ctx, l)
}

func (h *taskHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= h.level.Level() {
		h.send(ctx, r)
	}
	if h.next.Enabled(ctx, r.Level) {
		return h.next.Handle(ctx, r)
	}
	return nil
}

func (h *taskHandler) send(ctx context.Context, r slog.Record) {
	if r.Time.IsZero() {
		r.Time = time.Now()
	}
	resolved := slog.NewRecord(r.Time, r.Level, r.Message, r.PC)
	r.Attrs(func(a slog.Attr) bool { // a LogValuer may log itself: not while we hold the lock
		resolved.AddAttrs(slog.Attr{Key: a.Key, Value: a.Value.Resolve()})
		return true
	})
	h.c.report(func(s *said) { // its lock also guards buf
		h.buf.Reset()
		h.text.Handle(ctx, resolved)
		message := r.Message
		if attrs := strings.TrimSpace(h.buf.String()); attrs != "" {
			message += " " + attrs
		}
		line := &headracev1.LogEntry{UnixMicros: r.Time.UnixMicro(), Level: strings.ToLower(r.Level.String()), Message: cut(message, task.MaxErrorText)}
		for len(s.lines) > 0 && s.lineBytes+len(line.Message) > task.MaxLogBytes {
			s.lineBytes -= len(s.lines[0].Message)
			s.lines = s.lines[1:]
		}
		s.lines = append(s.lines, line)
		s.lineBytes += len(line.Message)
	})
}

func (h *taskHandler) WithAttrs(as []slog.Attr) slog.Handler {
	n := *h
	n.next, n.text = h.next.WithAttrs(as), h.text.WithAttrs(as)
	return &n
}

func (h *taskHandler) WithGroup(name string) slog.Handler {
	n := *h
	n.next, n.text = h.next.WithGroup(name), h.text.WithGroup(name)
	return &n
}

// validUTF8 is s without what protobuf refuses in strings.
func validUTF8(s string) string { return strings.ToValidUTF8(s, "\ufffd") }
