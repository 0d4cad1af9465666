package testcluster_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/executor"
	"github.com/headrace/headrace/fn"
	"github.com/headrace/headrace/internal/faketime"
	"github.com/headrace/headrace/internal/testcluster"
	"github.com/headrace/headrace/task"
)

// A running task is cancelled. However its handler then ends, it is not tried again; only a success is still
// a success (B068). The reason is told.
func TestScenarioCancelOfRunning(t *testing.T) {
	testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
		quick := fn.Options{Backoff: fn.Backoff{Base: time.Second, Max: time.Second}, CancelGrace: 5 * time.Second}
		var starts, wrongCause atomic.Int32
		handler := func(end func(context.Context) error) func(context.Context, *executor.Task) ([]byte, error) {
			return func(ctx context.Context, _ *executor.Task) ([]byte, error) {
				starts.Add(1)
				<-ctx.Done()
				if !errors.Is(context.Cause(ctx), executor.ErrCancelled) {
					wrongCause.Add(1)
				}
				return []byte("done"), end(ctx)
			}
		}
		var deaf = make(chan struct{})
		defer close(deaf)
		ends := map[string]func(context.Context) error{
			"ctx.err": func(ctx context.Context) error { return ctx.Err() },
			"cause":   context.Cause,
			"custom":  func(context.Context) error { return errCustom },
			"final":   func(context.Context) error { return executor.NonRetryable(errCustom) },
			"snooze":  func(context.Context) error { return executor.Snooze(time.Second) },
			"again":   func(context.Context) error { return executor.RetryAfter(errCustom, time.Second) },
			"panic":   func(context.Context) error { panic("at the end") },
			"deaf":    func(context.Context) error { <-deaf; return nil },
			"nil":     func(context.Context) error { return nil },
		}
		c.Executor(len(ends), "acme", func(x *executor.Executor) {
			for name, end := range ends {
				raw(x, name, quick, handler(end))
			}
		})
		cl := c.Client("acme")
		ids := map[string]string{}
		for name := range ends {
			ids[name] = submit(t, cl, client.Task{Function: name, Options: client.Options{MaxAttempts: 5}})
		}
		faketime.Pass(time.Second) // of the bubble
		for name, id := range ids {
			res, _, err := cl.Cancel(t.Context(), client.ByID(id), "out of stock")
			if err != nil || res == client.AlreadyFinished {
				t.Errorf("cancel of %s: %v, %v", name, res, err)
			}
		}
		faketime.Pass(20 * time.Second) // of the bubble: far more than the pauses
		for name, id := range ids {
			info := get(t, cl, id)
			want := task.Cancelled
			if name == "nil" {
				want = task.Succeeded
			}
			if info.State != want || info.Attempt != 1 || !info.CancelRequested && want == task.Cancelled {
				t.Errorf("%s: %v, attempt %d, %v", name, info.State, info.Attempt, info.Error)
			}
			if want == task.Cancelled && (info.Error == nil || info.Error.Class != task.CancelledClass || !strings.Contains(info.Error.Message, "out of stock")) {
				t.Errorf("%s: the reason is %v", name, info.Error)
			}
			if res, _, err := cl.Cancel(t.Context(), client.ByID(id), "twice"); err != nil || res == client.CancelRequested {
				t.Errorf("a second cancel of %s: %v, %v", name, res, err)
			}
		}
		if n := starts.Load(); int(n) != len(ends) || wrongCause.Load() != 0 {
			t.Errorf("%d starts, %d with another cause", n, wrongCause.Load())
		}
		if p, err := cl.List(t.Context(), client.ListOptions{State: task.Failed}); err != nil || len(p.Tasks) != 0 {
			t.Errorf("%d dead letters, %v", len(p.Tasks), err)
		}
		nothingRuns(t, c, "acme")
	})
}

// Cancels meet tasks that end at that very time. Each task has one end, and the answers to both sides fit
// it; none starts again (B069).
func TestScenarioCancelMeetsTheEnd(t *testing.T) {
	testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
		const n = 600
		var mu sync.Mutex // guards starts
		starts := map[string]int{}
		c.Executor(n, "acme", func(x *executor.Executor) {
			raw(x, "f", fn.Options{Backoff: fn.Backoff{Base: time.Second, Max: time.Second}}, func(ctx context.Context, tk *executor.Task) ([]byte, error) {
				mu.Lock()
				starts[tk.ID.String()]++
				mu.Unlock()
				select {
				case <-time.After(50 * time.Millisecond):
				case <-ctx.Done():
					return nil, ctx.Err()
				}
				if string(tk.Payload) == "fails" {
					return nil, errCustom
				}
				return []byte("done"), nil
			})
		})
		cl := c.Client("acme")
		tasks := make([]client.Task, n)
		for i := range tasks {
			tasks[i] = client.Task{Function: "f", Payload: []byte([]string{"fails", "succeeds"}[i%2]), Options: client.Options{MaxAttempts: 5}}
		}
		ids := submitBatch(t, cl, tasks)
		began := time.Now()
		results := make([]client.CancelResult, n)
		var wg sync.WaitGroup
		for i, id := range ids {
			wg.Go(func() {
				faketime.Pass(time.Duration(45_000+i*10_000/n) * time.Microsecond) // of the bubble
				res, _, err := cl.Cancel(t.Context(), client.ByID(id), "")
				if err != nil {
					t.Errorf("cancel: %v", err)
				}
				results[i] = res
			})
		}
		wg.Wait()
		count := map[string]int{}
		for i, id := range ids {
			info := wait(t, cl, id)
			count[fmt.Sprint(results[i], " ", info.State)]++
			switch {
			case info.State != task.Succeeded && info.State != task.Cancelled:
				t.Errorf("%s: %v", id, info.State)
			case results[i] == client.Cancelled && info.State != task.Cancelled:
				t.Errorf("%s: answered cancelled, is %v", id, info.State)
			case results[i] == client.AlreadyFinished && info.State != task.Succeeded:
				t.Errorf("%s: answered finished, is %v", id, info.State)
			}
		}
		faketime.Pass(10 * time.Second) // of the bubble
		for id, k := range starts {
			if k != 1 {
				t.Errorf("%s started %d times", id, k)
			}
		}
		for i, id := range ids {
			if first, second := wait(t, cl, id).State, get(t, cl, id).State; first != second || results[i] == client.Cancelled && second != task.Cancelled {
				t.Errorf("%s was %v and is %v", id, first, second)
			}
		}
		t.Logf("%v, all within %v", count, time.Since(began))
		if len(count) < 2 {
			t.Error("no race: the test shows nothing")
		}
		nothingRuns(t, c, "acme")
	})
}

// Time-outs of every length: the long ones don't overflow into none, the shortest fails cleanly, and what is
// out of range is refused (B071).
func TestScenarioTimeouts(t *testing.T) {
	testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
		c.Executor(20, "acme", func(x *executor.Executor) {
			raw(x, "f", fn.Options{}, func(ctx context.Context, _ *executor.Task) ([]byte, error) {
				select {
				case <-time.After(200 * time.Millisecond):
					return nil, nil
				case <-ctx.Done():
					return nil, context.Cause(ctx)
				}
			})
		})
		cl := c.Client("acme")
		const day = 24 * time.Hour
		for _, d := range []time.Duration{0, time.Second, 24 * day, 25 * day, 49*day + 18*time.Hour, 365 * day} {
			id := submit(t, cl, client.Task{Function: "f", Options: client.Options{Timeout: d, MaxAttempts: 1}})
			if info := wait(t, cl, id); info.State != task.Succeeded || len(attempts(t, cl, id)) != 1 {
				t.Errorf("timeout %v: %v, %v", d, info.State, info.Error)
			}
		}
		for _, d := range []time.Duration{-1, -time.Hour, 1, time.Microsecond, 365*day + time.Microsecond, 292 * 365 * day, math.MaxInt64, math.MinInt64} {
			var field *task.FieldError
			if s, err := cl.Submit(t.Context(), client.Task{Function: "f", Options: client.Options{Timeout: d}}); !errors.As(err, &field) {
				t.Errorf("timeout %v: %+v, %v", d, s, err)
			}
			if s, err := cl.Submit(t.Context(), client.Task{Function: "f", Options: client.Options{StartTTL: d}}); d < 0 && !errors.As(err, &field) {
				t.Errorf("start TTL %v: %+v, %v", d, s, err)
			}
			if s, err := cl.Submit(t.Context(), client.Task{Function: "f", Options: client.Options{Delay: d}}); (d < 0 || d > task.MaxDelay) && !errors.As(err, &field) {
				t.Errorf("delay %v: %+v, %v", d, s, err)
			}
		}
		id := submit(t, cl, client.Task{Function: "f", Options: client.Options{Timeout: time.Millisecond, MaxAttempts: 1}})
		if info := wait(t, cl, id); info.State != task.Failed || info.Error.Class != task.Timeout || info.Attempt != 1 {
			t.Errorf("the shortest: %v, %v", info.State, info.Error)
		}
		faketime.Pass(time.Minute) // of the bubble
		if n := len(attempts(t, cl, id)); n != 1 || get(t, cl, id).Attempt != 1 {
			t.Errorf("%d tries", n)
		}
	})
}
