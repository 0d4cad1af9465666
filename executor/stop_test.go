package executor_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headrace/headrace/executor"
	"github.com/headrace/headrace/fn"
	"github.com/headrace/headrace/internal/faketime"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

// ways are how a handler may react when it is stopped.
var ways = []string{"ctx.Err", "nil", "custom", "panic", "wrapped non-retryable", "definite"}

// stubborn waits for its context and then reacts as its payload says; the result is the cause.
func stubborn(ctx context.Context, t *executor.Task) (executor.Result, error) {
	<-ctx.Done()
	cause := context.Cause(ctx)
	switch string(t.Payload) {
	case "ctx.Err":
		return executor.Result{}, ctx.Err()
	case "custom":
		return executor.Result{}, errors.New("gave up")
	case "panic":
		panic("stopped")
	case "wrapped non-retryable":
		return executor.Result{}, executor.NonRetryable(fmt.Errorf("call: %w", ctx.Err()))
	case "definite":
		return executor.Result{}, executor.NonRetryable(errors.New("bad input"))
	}
	return executor.Result{Body: []byte(cause.Error())}, nil
}

// A cancelled task ends as cancelled, whatever its handler returns, but for success (B068).
func TestCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, s := run(t, executor.Config{}, func(x *executor.Executor) { x.HandleRaw("f", fn.Options{}, stubborn) })
		defer r.close()
		for i, way := range ways {
			p := s.push(uint64(i), func(p *headracev1.Push) { p.Payload = []byte(way) })
			synctest.Wait()
			if len(r.n.outcomes) != 0 {
				t.Fatalf("%s ended before it was cancelled", way)
			}
			s.cancel(p, headracev1.CancelCause_CANCEL_CAUSE_CANCELLED, "ann said so")
			o := r.outcome()
			want := task.CancelledClass
			if way == "nil" {
				want = task.ClassNone
				if string(o.Result) != "the task was cancelled: ann said so" {
					t.Errorf("cause: %s", o.Result)
				}
			}
			if task.Class(o.ErrorClass) != want {
				t.Errorf("%s became %v", way, text(o))
			}
		}
	})
}

// An attempt's time runs out on the executor itself: the context says so in both ways, and it is a
// timeout unless the handler knows better.
func TestTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, s := run(t, executor.Config{}, func(x *executor.Executor) {
			x.HandleRaw("f", fn.Options{}, stubborn)
			x.HandleRaw("look", fn.Options{}, func(ctx context.Context, _ *executor.Task) (executor.Result, error) {
				child, cancel := context.WithCancel(ctx)
				defer cancel()
				d, ok := child.Deadline()
				<-child.Done()
				return executor.Result{Body: fmt.Append(nil, ok, time.Until(d), ctx.Err() == context.DeadlineExceeded, child.Err(), context.Cause(child) == executor.ErrTimeout)}, nil
			})
		})
		defer r.close()
		for i, way := range ways {
			began := time.Now()
			s.push(uint64(i), func(p *headracev1.Push) { p.Payload, p.TimeoutMicros = []byte(way), 2_000_000 })
			o := r.outcome()
			want := map[string]task.Class{"nil": task.ClassNone, "definite": task.NonRetryable}[way]
			if way != "nil" && want == 0 {
				want = task.Timeout
			}
			if d := time.Since(began); task.Class(o.ErrorClass) != want || d != 2*time.Second {
				t.Errorf("%s became %v after %v", way, text(o), d)
			}
		}
		s.push(99, func(p *headracev1.Push) { p.Function, p.TimeoutMicros = "look", 1_000_000 })
		if got := string(r.outcome().Result); got != "true 0s true context deadline exceeded true" {
			t.Error(got)
		}
	})
}

// Timeouts of any length behave (B071).
func TestLongTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, s := run(t, executor.Config{}, func(x *executor.Executor) {
			x.HandleRaw("f", fn.Options{}, func(ctx context.Context, _ *executor.Task) (executor.Result, error) {
				select {
				case <-time.After(200 * time.Millisecond):
					return executor.Result{}, nil
				case <-ctx.Done():
					return executor.Result{}, context.Cause(ctx)
				}
			})
		})
		defer r.close()
		day := 24 * time.Hour.Microseconds()
		for i, us := range []int64{24 * day, 25 * day, 365 * day, 292 * 365 * day, 1<<63 - 1, 0, -1} {
			s.push(uint64(i), func(p *headracev1.Push) { p.TimeoutMicros = us })
			if o := r.outcome(); o.ErrorClass != 0 || o.RunMicros != 200_000 {
				t.Errorf("timeout of %d µs: %v after %d µs", us, text(o), o.RunMicros)
			}
		}
		s.push(99, func(p *headracev1.Push) { p.TimeoutMicros = 1 })
		if o := r.outcome(); task.Class(o.ErrorClass) != task.Timeout || o.RunMicros > 1000 {
			t.Errorf("timeout of 1 µs: %v after %d µs", text(o), o.RunMicros)
		}
	})
}

// Shutdown gives running tasks back without counting anything, and Run returns in time (B007).
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, s := run(t, executor.Config{Slots: 50, DrainTimeout: 2 * time.Second}, func(x *executor.Executor) {
			x.HandleRaw("f", fn.Options{}, stubborn)
			x.HandleRaw("short", fn.Options{}, func(ctx context.Context, _ *executor.Task) (executor.Result, error) {
				faketime.Pass(time.Second) // of the bubble
				return executor.Result{}, ctx.Err()
			})
		})
		for i := range uint64(48) {
			s.push(i, func(p *headracev1.Push) { p.Payload = []byte("ctx.Err") })
		}
		s.push(48, func(p *headracev1.Push) { p.Payload = []byte("definite") })
		s.push(49, func(p *headracev1.Push) { p.Function = "short" })
		synctest.Wait()
		began := time.Now()
		r.end()
		synctest.Wait()
		if s.mu.Lock(); !s.draining {
			t.Error("the node was not told")
		}
		s.mu.Unlock()
		if err := <-r.ran; err != nil {
			t.Errorf("Run = %v", err)
		}
		if d := time.Since(began); d > 2*time.Second+closing {
			t.Errorf("took %v", d)
		}
		got := map[task.Class]int{}
		for range 50 {
			o := r.outcome()
			got[task.Class(o.ErrorClass)]++
			if o.ErrorClass == headracev1.ErrorClass_ERROR_CLASS_DRAINED && o.Message != "given back by its executor, which shut down" {
				t.Errorf("message %q", o.Message)
			}
		}
		if got[task.Drained] != 48 || got[task.NonRetryable] != 1 || got[task.ClassNone] != 1 {
			t.Errorf("%v", got)
		}
		r.n.stop()
	})
}

const closing = 250 * time.Millisecond // what the end of streams may take

// A drain is bounded: with a store that is away, and with handlers that do not stop (B074, B128).
func TestDrainIsBounded(t *testing.T) {
	for _, c := range []string{"unconfirmed", "stuck", "hurry"} {
		synctest.Test(t, func(t *testing.T) {
			let := make(chan struct{})
			r, s := run(t, executor.Config{DrainTimeout: 5 * time.Second}, func(x *executor.Executor) {
				x.HandleRaw("f", fn.Options{}, func(ctx context.Context, _ *executor.Task) (executor.Result, error) {
					if c == "unconfirmed" {
						panic("x")
					}
					<-let
					return executor.Result{}, nil
				})
			})
			r.n.set(func(n *node) { n.hold = c == "unconfirmed" })
			s.push(1, nil)
			synctest.Wait()
			began, limit := time.Now(), 7*time.Second
			if c == "hurry" {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if err := r.x.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("Shutdown = %v", err)
				}
				limit = 3 * time.Second
			} else if err := r.x.Shutdown(t.Context()); err != nil {
				t.Errorf("Shutdown = %v", err)
			}
			if err := <-r.ran; !errors.Is(err, executor.ErrUnfinished) {
				t.Errorf("%s: Run = %v", c, err)
			}
			if d := time.Since(began); d > limit {
				t.Errorf("%s: took %v", c, d)
			}
			close(let)
			r.n.stop()
		})
	}
}

// Run before anything else, twice, and Shutdown before Run.
func TestShutdownOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := run(t, executor.Config{}, func(x *executor.Executor) { x.HandleRaw("f", fn.Options{}, stubborn) })
		if err := r.x.Run(t.Context()); !errors.Is(err, executor.ErrClosed) {
			t.Errorf("second Run = %v", err)
		}
		began := time.Now()
		if err := r.x.Shutdown(t.Context()); err != nil || time.Since(began) > closing {
			t.Errorf("Shutdown of an idle one = %v after %v", err, time.Since(began))
		}
		r.close()
		x, _ := executor.New(executor.Config{})
		if err := x.Shutdown(t.Context()); err != nil {
			t.Errorf("Shutdown before Run = %v", err)
		}
	})
}
