package loop

import (
	"context"
	"slices"
	"time"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// Submit hands tasks to the core and waits until they are on disk. The core owns s.Tasks from now on. An
// error of its own (the context's, ErrStopped) means that nobody knows whether they were stored.
func (l *Loop) Submit(ctx context.Context, s *core.Submit) (core.SubmitAnswer, error) {
	s.Reply = core.ReplyID(l.nextID())
	answer := make(chan core.SubmitAnswer, 1) // Run writes once and never waits
	if err := l.postFor(ctx, "submit", func(now time.Time) {
		l.submits[s.Reply] = answer
		l.enterAt("submit", s.Partition, func(c *core.Core) { c.Submit(now, s) })
	}); err != nil {
		return core.SubmitAnswer{}, err
	}
	return await(ctx, l, answer)
}

// Look asks what became of a submit here (see core.Look).
func (l *Loop) Look(ctx context.Context, look core.Look) (core.SubmitAnswer, error) {
	look.Reply = core.ReplyID(l.nextID())
	answer := make(chan core.SubmitAnswer, 1)
	if err := l.postFor(ctx, "look", func(now time.Time) {
		l.submits[look.Reply] = answer
		l.enterAt("look", look.Partition, func(c *core.Core) { c.Look(now, look) })
	}); err != nil {
		return core.SubmitAnswer{}, err
	}
	return await(ctx, l, answer)
}

// Cancel asks the core to stop a task and waits until its answer holds.
func (l *Loop) Cancel(ctx context.Context, req core.Cancel) (core.CancelAnswer, error) {
	req.Reply = core.ReplyID(l.nextID())
	answer := make(chan core.CancelAnswer, 1)
	if err := l.postFor(ctx, "cancel", func(now time.Time) {
		l.cancels[req.Reply] = answer
		l.enterAt("cancel", req.ID.Partition(), func(c *core.Core) { c.Cancel(now, req) })
	}); err != nil {
		return core.CancelAnswer{}, err
	}
	return await(ctx, l, answer)
}

func await[T any](ctx context.Context, l *Loop, answer <-chan T) (T, error) {
	var none T
	select {
	case a := <-answer:
		return a, nil
	case <-ctx.Done():
		return none, context.Cause(ctx)
	case <-l.stopped:
		select {
		case a := <-answer: // it came just before
			return a, nil
		default:
			return none, ErrStopped
		}
	}
}

// watch is one open wait.
type watch struct {
	id     task.ID
	events chan core.Event // written and closed by Run
}

// Watch follows a task. The channel holds the newest event only: a reader that is late misses what is
// no longer true. It is closed after a terminal state, when the partition is lost or released, when there is no such
// task, and when the loop stops. Stop must be called once, always.
//
// Watch first, then read the task: what changes between the two comes as an event.
func (l *Loop) Watch(ctx context.Context, id task.ID) (events <-chan core.Event, stop func(), err error) {
	w := &watch{id: id, events: make(chan core.Event, 1)}
	number := core.WatchID(l.nextID())
	known := make(chan struct{})
	err = l.postFor(ctx, "watch", func(now time.Time) {
		defer close(known)
		if !l.owned[id.Partition()] {
			close(w.events)
			return
		}
		l.watches[number] = w
		l.enterAt("watch", id.Partition(), func(c *core.Core) { c.Watch(now, number, id) })
	})
	if err != nil {
		return nil, nil, err
	}
	stop = func() {
		l.post("unwatch", func(time.Time) {
			if _, open := l.watches[number]; open {
				delete(l.watches, number)
				l.enterAt("unwatch", id.Partition(), func(c *core.Core) { c.Unwatch(number) })
			}
		})
	}
	select {
	case <-known:
		return w.events, stop, nil
	case <-l.stopped:
		return nil, nil, ErrStopped
	}
}

// notify gives a watch its newest event and closes it after the last one. An event without a task is the last one, too:
// the partition was released, or there is no such task.
func (l *Loop) notify(ev core.Event) {
	w := l.watches[ev.Watch]
	if w == nil {
		return
	}
	if ev.Task == nil {
		close(w.events)
		delete(l.watches, ev.Watch)
		return
	}
	for {
		select {
		case w.events <- ev:
		default:
			select {
			case <-w.events: // an older one that nobody has read
			default:
			}
			continue
		}
		break
	}
	if ev.Task.State.Terminal() {
		close(w.events)
		delete(l.watches, ev.Watch)
	}
}

// viewSlice bounds how many tasks one look at the core takes.
const viewSlice = 256

// Views looks up tasks in the core's memory, in slices; each slice is consistent. The answers have the ids' order.
func (l *Loop) Views(ctx context.Context, ids []task.ID) ([]core.Live, error) {
	out := make([]core.Live, len(ids))
	for from := 0; from < len(ids); from += viewSlice {
		part := out[from:min(from+viewSlice, len(ids))]
		// A caller that gives up leaves part to the look that may still run: out is not used then.
		if err := l.Do(ctx, func(c *core.Core) {
			for i := range part {
				if t, v, ok := c.View(ids[from+i]); ok {
					part[i] = core.Live{Task: t, View: v}
				}
			}
		}); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Explain says why a task does not run. T is its row as the store has it. Errors: core.ErrNotOwner.
func (l *Loop) Explain(ctx context.Context, t *store.Task) (core.Explanation, error) {
	type answer struct {
		e     core.Explanation
		owner bool
	}
	got := make(chan answer, 1) // not a variable: after an error the look may still run
	if err := l.Do(ctx, func(c *core.Core) {
		var a answer
		a.e, a.owner = c.Explain(l.cfg.Now(), t)
		got <- a
	}); err != nil {
		return core.Explanation{}, err
	}
	a := <-got
	if !a.owner {
		return a.e, core.ErrNotOwner
	}
	return a.e, nil
}

// Running returns at most most running tasks of a tenant, the newest starts first; "" is any function.
func (l *Loop) Running(ctx context.Context, tenant, function string, most int) ([]core.Live, error) {
	var ids []task.ID
	if err := l.Do(ctx, func(c *core.Core) { ids = c.Running(tenant, function, most) }); err != nil {
		return nil, err
	}
	all, err := l.Views(ctx, ids)
	return slices.DeleteFunc(all, func(v core.Live) bool { return v.Task == nil || !v.View.Running }), err
}
