package loop

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"

	"go.uber.org/zap"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/internal/failpoint"
	"github.com/headrace/headrace/internal/telemetry"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// maxSuspects bounds the memory of tasks that were in hand at a panic.
const maxSuspects = 1024

// PanicError is why a partition was dropped over which the core panicked. It is an ErrPanic.
type PanicError struct {
	Task task.ID // in hand; zero: none, or nobody knows
}

// Error implements error.
func (e *PanicError) Error() string {
	if e.Task.IsZero() {
		return ErrPanic.Error()
	}
	return fmt.Sprintf("%v with task %v in hand", ErrPanic, e.Task)
}

// Unwrap makes it an ErrPanic.
func (e *PanicError) Unwrap() error { return ErrPanic }

// nowhere is no partition: what an event concerns is for the core to say.
const nowhere = ^uint32(0)

// Guard looks at what was read of a partition before the core gets it.
type Guard interface {
	// Admit returns how many of the rows, from the first on, the core may have now: one at least; it asks for the
	// rest again. An error makes it ask for all of them again, later. Called by any goroutine; it may wait, until
	// ctx ends.
	Admit(ctx context.Context, rows []*store.Task) (int, error)
}

// Guard has g asked before the core gets anything that was read of a partition from now on; nil: nobody. Set it
// before Acquired.
func (l *Loop) Guard(partition uint32, g Guard) {
	if g == nil {
		l.guards.Delete(partition)
		return
	}
	l.guards.Store(partition, g)
}

// enter is the one door to the core. It reports false after a panic, when the damage is contained.
func (l *Loop) enter(what string, f func(*core.Core)) bool { return l.enterAt(what, nowhere, f) }

// enterAt is enter for an event that concerns one partition, should the core not know what it had in hand.
func (l *Loop) enterAt(what string, partition uint32, f func(*core.Core)) bool {
	failed, stack := l.try(f)
	if failed == nil {
		return true
	}
	var inHand struct {
		partition uint32
		known     bool
	}
	reason := &PanicError{}
	fields := []zap.Field{zap.String("event", what), zap.String("panic", telemetry.Escape(fmt.Sprint(failed))), zap.ByteString("stack", stack)}
	broken, _ := l.try(func(c *core.Core) {
		p, id, ok := c.InHand()
		inHand.partition, inHand.known = p, ok
		if ok && !id.IsZero() {
			if len(l.suspects) >= maxSuspects {
				clear(l.suspects)
			}
			l.suspects[id]++
			reason.Task = id
			fields = append(fields, telemetry.Task(id))
		}
	})
	if !inHand.known && partition != nowhere {
		inHand.partition, inHand.known = partition, true
	}
	if broken == nil && inHand.known {
		fields = append(fields, telemetry.Partition(inHand.partition))
		dropped, _ := l.try(func(c *core.Core) { c.Drop(l.cfg.Now(), inHand.partition, reason) })
		if dropped == nil {
			l.log.Error("the core panicked: its partition is dropped and acquired again", fields...)
			return false
		}
	}
	l.log.Error("the core panicked: a new one begins with nothing", fields...)
	l.rebuild()
	return false
}

// look is for reads: a panic there has changed nothing, and what the core last had in hand has nothing to do
// with it. It is logged and costs the call.
func (l *Loop) look(what string, f func(*core.Core)) bool {
	failed, stack := l.try(f)
	if failed != nil {
		l.log.Error("a look at the core panicked", zap.String("event", what),
			zap.String("panic", telemetry.Escape(fmt.Sprint(failed))), zap.ByteString("stack", stack))
	}
	return failed == nil
}

// try calls f and returns what it panicked with.
func (l *Loop) try(f func(*core.Core)) (failed any, stack []byte) {
	defer func() {
		if r := recover(); r != nil {
			failed, stack = r, debug.Stack()
		}
		if l.cfg.Hand != nil {
			l.cfg.Hand.Clear()
		}
	}()
	l.entered++
	failpoint.Hit("loop.core.enter")
	f(l.core)
	return nil, nil
}

// rebuild starts a new core. What the old one had promised to answer is answered as unknown; commits
// and loads that are under way belong to an older generation and are dropped when they return, and
// the epochs that the partitions get now fence what of them is not on disk yet.
func (l *Loop) rebuild() {
	l.gen++
	l.core = core.New(l.cfg.Core)
	if l.cfg.Roster != nil {
		l.cfg.Roster(l.gen, nil)
	}
	l.pauseAnew()
	l.limitsAnew()
	l.abandon(core.ErrUnknownOutcome)
	if l.draining {
		l.core.Drain(l.cfg.Now())
	}
	l.held = "" // and again with the next turn
	if !l.trusted.IsZero() {
		l.core.Trust(l.trusted)
	}
	lost := make([]uint32, 0, len(l.owned))
	for p := range l.owned {
		lost = append(lost, p)
	}
	slices.Sort(lost)
	l.core.Forgot(l.cfg.Now(), lost)
	for _, p := range lost {
		l.lost(core.LostPartition{Partition: p, Reason: &PanicError{}})
	}
}
