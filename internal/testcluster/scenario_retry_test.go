package testcluster_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
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

var errBoom = errors.New("boom")

// The pause grows to its maximum and stays there, however many attempts: it never overflows into no pause
// at all, nor into a longer one (B003).
func TestScenarioBackoffNeverOverflows(t *testing.T) {
	for name, x := range map[string]struct {
		backoff  fn.Backoff
		attempts int
	}{
		"base 1 s, factor 2":   {fn.Backoff{Base: time.Second, Factor: 2, Max: time.Minute}, 100},
		"factor 10":            {fn.Backoff{Base: time.Second, Factor: 10, Max: time.Minute}, 70},
		"a thousand":           {fn.Backoff{Base: time.Second, Factor: 2, Max: time.Second}, 1000},
		"factor 100":           {fn.Backoff{Base: time.Second, Factor: 100, Max: 10 * time.Second}, 40},
		"the smallest base":    {fn.Backoff{Base: time.Millisecond, Factor: 2, Max: 10 * time.Second}, 100},
		"factor 1 never grows": {fn.Backoff{Base: time.Second, Factor: 1, Max: time.Hour}, 50},
		"base is the maximum":  {fn.Backoff{Base: time.Minute, Factor: 100, Max: time.Minute}, 20},
	} {
		t.Run(name, func(t *testing.T) {
			testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
				var starts journal
				c.Executor(1, "acme", func(x2 *executor.Executor) {
					raw(x2, "f", fn.Options{Backoff: x.backoff}, func(context.Context, *executor.Task) ([]byte, error) {
						starts.add("start")
						return nil, errBoom
					})
				})
				cl := c.Client("acme")
				id := submit(t, cl, client.Task{Function: "f", Options: client.Options{MaxAttempts: x.attempts}})
				info := wait(t, cl, id)
				if info.State != task.Failed || info.Attempt != x.attempts || info.MaxAttempts != x.attempts {
					t.Errorf("%v at attempt %d of %d", info.State, info.Attempt, info.MaxAttempts)
				}
				ns := starts.notes()
				if len(ns) != x.attempts {
					t.Fatalf("%d starts", len(ns))
				}
				for i := 1; i < len(ns); i++ {
					gap := ns[i].at.Sub(ns[i-1].at)
					full := x.backoff.Delay(i, 0)
					if gap < full*8/10 || gap > full+100*time.Millisecond {
						t.Fatalf("pause %d is %v, want 80 to 100 %% of %v", i, gap, full)
					}
				}
			})
		})
	}
}

// The pause counts from the failure, not from the start, also for a handler that runs longer than it (B048).
func TestScenarioBackoffCountsFromTheFailure(t *testing.T) {
	testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
		var starts, ends journal
		c.Executor(1, "acme", func(x *executor.Executor) {
			raw(x, "f", fn.Options{Backoff: fn.Backoff{Base: 10 * time.Second, Factor: 1, Max: time.Minute}}, func(context.Context, *executor.Task) ([]byte, error) {
				starts.add("")
				defer ends.add("")
				faketime.Pass(20 * time.Second) // of the bubble
				return nil, errBoom
			})
		})
		cl := c.Client("acme")
		wait(t, cl, submit(t, cl, client.Task{Function: "f", Options: client.Options{MaxAttempts: 4}}))
		s, e := starts.notes(), ends.notes()
		if len(s) != 4 || len(e) != 4 {
			t.Fatalf("%d starts, %d ends", len(s), len(e))
		}
		for i := range 3 {
			if gap := s[i+1].at.Sub(e[i].at); gap < 8*time.Second || gap > 12*time.Second {
				t.Errorf("start %d came %v after the failure before it", i+1, gap)
			}
		}
	})
}

// Policies that make no sense are refused when they are declared, with the field (B050). A base of zero is
// the default, as documented, at every attempt.
func TestScenarioSenselessPolicies(t *testing.T) {
	for _, p := range []fn.Options{
		{Backoff: fn.Backoff{Factor: 0.5}}, {Backoff: fn.Backoff{Factor: -1}}, {Backoff: fn.Backoff{Factor: math.NaN()}},
		{Backoff: fn.Backoff{Factor: math.Inf(1)}}, {Backoff: fn.Backoff{Factor: 101}}, {Backoff: fn.Backoff{Base: -1}}, {Backoff: fn.Backoff{Base: 1}}, {Backoff: fn.Backoff{Max: -1}},
		{Backoff: fn.Backoff{Base: time.Minute, Max: time.Second}}, {Backoff: fn.Backoff{Base: math.MaxInt64}},
		{MaxAttempts: -1}, {MaxAttempts: 1001}, {Timeout: -1}, {Timeout: time.Nanosecond}, {Timeout: math.MaxInt64},
		{OrphanTimeout: time.Second}, {CancelGrace: time.Millisecond}, {Downstream: "A b"},
	} {
		x, err := executor.New(executor.Config{Tenant: "acme"})
		if err != nil {
			t.Fatal(err)
		}
		raw(x, "f", p, nil)
		var field *task.FieldError
		if err := x.Run(t.Context()); !errors.As(err, &field) || field.Field == "" || field.Want == "" {
			t.Errorf("%+v: %v", p, err)
		}
	}
	for n := 1; n < 2000; n++ {
		if d := (fn.Backoff{}).Delay(n, 0); d < 30*time.Second || d > time.Hour {
			t.Fatalf("pause %d of the zero value is %v", n, d)
		}
	}
}

// A task is put off 2,000 times, then fails until it is exhausted: no snooze has spent an attempt (B051).
func TestScenarioSnoozesSpendNothing(t *testing.T) {
	testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
		const snoozes = 2000
		var calls, wrong atomic.Int32
		c.Executor(1, "acme", func(x *executor.Executor) {
			raw(x, "f", fn.Options{Backoff: fn.Backoff{Base: time.Second, Max: time.Second}}, func(ctx context.Context, _ *executor.Task) ([]byte, error) {
				if calls.Add(1) <= snoozes {
					if executor.Attempt(ctx) != 1 {
						wrong.Add(1)
					}
					return nil, executor.Snooze(time.Millisecond)
				}
				return nil, errBoom
			})
		})
		cl := c.Client("acme")
		info := wait(t, cl, submit(t, cl, client.Task{Function: "f", Options: client.Options{MaxAttempts: 3}}))
		if info.State != task.Failed || info.Attempt != 3 || info.MaxAttempts != 3 || info.Snoozes != snoozes || info.Losses != 0 || info.Throttles != 0 {
			t.Errorf("%+v", info)
		}
		if calls.Load() != snoozes+3 || wrong.Load() != 0 {
			t.Errorf("%d starts, %d snoozed ones were not attempt 1", calls.Load(), wrong.Load())
		}
	})
}

// The executor dies with the task each time. The task allows one attempt, and none is spent: the third run
// succeeds; a task that kills every executor ends as executor_lost, not as exhausted (B052).
func TestScenarioLossesAreCappedApart(t *testing.T) {
	for _, kills := range []int{2, 4} {
		t.Run(fmt.Sprint(kills, " kills"), func(t *testing.T) {
			testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
				cl := c.Client("acme")
				id := submit(t, cl, client.Task{Function: "f", Options: client.Options{MaxAttempts: 1}})
				for i := range kills {
					started := make(chan struct{}, 1)
					lose := losable(t, c, "acme", fmt.Sprint("x", i), func(x *executor.Executor) {
						raw(x, "f", fn.Options{OrphanTimeout: 5 * time.Second}, func(ctx context.Context, _ *executor.Task) ([]byte, error) {
							started <- struct{}{}
							<-ctx.Done()
							return nil, ctx.Err()
						})
					})
					select {
					case <-started:
						faketime.Pass(100 * time.Millisecond) // of the bubble: an unconfirmed start is no loss
					case <-time.After(time.Minute): // it ended before
					}
					lose()
				}
				c.Executor(1, "acme", func(x *executor.Executor) {
					raw(x, "f", fn.Options{OrphanTimeout: 5 * time.Second}, func(context.Context, *executor.Task) ([]byte, error) { return []byte("ok"), nil })
				})
				info := wait(t, cl, id)
				if kills == 2 && (info.State != task.Succeeded || info.Losses != 2 || info.Attempt != 1) {
					t.Errorf("after 2 losses: %+v", info)
				}
				if kills == 4 && (info.State != task.Failed || info.Error == nil || info.Error.Class != task.ExecutorLost || info.Attempt != 1 || info.Losses != task.MaxLosses) {
					t.Errorf("after 4 kills: %+v, %v", info, info.Error)
				}
				nothingRuns(t, c, "acme")
			})
		})
	}
}

// What kind of error it is decides, however it is wrapped (B129).
func TestScenarioErrorClasses(t *testing.T) {
	permanent := executor.NonRetryable(errors.New("bad input"))
	for name, x := range map[string]struct {
		err    error
		starts int
		class  task.Class
		least  time.Duration // of the first pause
		most   time.Duration
	}{
		"plain":                 {errBoom, 3, task.Retryable, 8 * time.Second, 11 * time.Second},
		"permanent":             {permanent, 1, task.NonRetryable, 0, 0},
		"permanent, %w":         {fmt.Errorf("charge: %w", fmt.Errorf("again: %w", permanent)), 1, task.NonRetryable, 0, 0},
		"permanent, joined":     {errors.Join(errBoom, permanent), 1, task.NonRetryable, 0, 0},
		"permanent, own type":   {wrapper{permanent}, 1, task.NonRetryable, 0, 0},
		"after 7 s":             {executor.RetryAfter(errBoom, 7*time.Second), 3, task.Retryable, 7 * time.Second, 8 * time.Second},
		"after 7 s, wrapped":    {wrapper{executor.RetryAfter(errBoom, 7*time.Second)}, 3, task.Retryable, 7 * time.Second, 8 * time.Second},
		"after -1 s":            {executor.RetryAfter(errBoom, -time.Second), 3, task.Retryable, 8 * time.Second, 11 * time.Second},
		"after 100 years":       {executor.RetryAfter(errBoom, math.MaxInt64), 3, task.Retryable, task.MaxRetryAfter, task.MaxRetryAfter + time.Second},
		"an error with no text": {errors.New(""), 3, task.Retryable, 8 * time.Second, 11 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
				var starts journal
				c.Executor(1, "acme", func(e *executor.Executor) {
					raw(e, "f", fn.Options{Backoff: fn.Backoff{Base: 10 * time.Second, Max: time.Hour}}, func(context.Context, *executor.Task) ([]byte, error) {
						starts.add("")
						return nil, x.err
					})
				})
				cl := c.Client("acme")
				id := submit(t, cl, client.Task{Function: "f", Options: client.Options{MaxAttempts: 3}})
				if x.least > time.Hour { // its beats would take real time
					faketime.Pass(time.Second) // of the bubble
					if info := get(t, cl, id); info.State != task.Retrying || time.Until(info.DueAt) > x.most || time.Until(info.DueAt) < x.least-2*time.Second {
						t.Errorf("%v, again in %v", info.State, time.Until(info.DueAt))
					}
					return
				}
				info := wait(t, cl, id)
				ns := starts.notes()
				if info.State != task.Failed || info.Error == nil || info.Error.Class != x.class || info.Attempt != x.starts || len(ns) != x.starts {
					t.Errorf("%v, %v, attempt %d, %d starts", info.State, info.Error, info.Attempt, len(ns))
				}
				if len(ns) > 1 {
					if gap := ns[1].at.Sub(ns[0].at); gap < x.least || gap > x.most {
						t.Errorf("tried again after %v, want %v to %v", gap, x.least, x.most)
					}
				}
			})
		})
	}
}

type wrapper struct{ error }

func (w wrapper) Unwrap() error { return w.error }

// However a task dies, it is kept with its payload, its tries and a reason of its own (B135). An expired and
// a cancelled one say so.
func TestScenarioDeadLettersSayWhy(t *testing.T) {
	testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
		quick := fn.Options{Backoff: fn.Backoff{Base: time.Second, Max: time.Second}, OrphanTimeout: 5 * time.Second}
		number := fn.Define[int, int]("decode", quick)
		c.Executor(10, "acme", func(x *executor.Executor) {
			raw(x, "exhausted", quick, func(context.Context, *executor.Task) ([]byte, error) { return nil, errBoom })
			raw(x, "permanent", quick, func(context.Context, *executor.Task) ([]byte, error) { return nil, executor.NonRetryable(errBoom) })
			raw(x, "timeout", quick, func(ctx context.Context, _ *executor.Task) ([]byte, error) { <-ctx.Done(); return nil, ctx.Err() })
			raw(x, "cancel", quick, func(ctx context.Context, _ *executor.Task) ([]byte, error) { <-ctx.Done(); return nil, ctx.Err() })
			executor.Handle(x, number, func(_ context.Context, n int) (int, error) { return n, nil })
		})
		cl := c.Client("acme")
		two := client.Options{MaxAttempts: 2}
		short := client.Options{MaxAttempts: 2, Timeout: 3 * time.Second}
		ids := map[string]string{}
		for name, o := range map[string]client.Options{"exhausted": two, "permanent": two, "timeout": short, "decode": two, "cancel": two,
			"lost": two, "ttl": {StartTTL: 3 * time.Second}, "deadline": {Deadline: time.Now().Add(5 * time.Second)}} {
			ids[name] = submit(t, cl, client.Task{Function: name, Payload: []byte("payload of " + name), Options: o})
		}
		for i := range 3 {
			started := make(chan struct{}, 1)
			lose := losable(t, c, "acme", fmt.Sprint("mortal", i), func(x *executor.Executor) {
				raw(x, "lost", quick, func(ctx context.Context, _ *executor.Task) ([]byte, error) {
					started <- struct{}{}
					<-ctx.Done()
					return nil, ctx.Err()
				})
			})
			<-started
			faketime.Pass(100 * time.Millisecond) // of the bubble: an unconfirmed start is no loss
			lose()
		}
		if _, _, err := cl.Cancel(t.Context(), client.ByID(ids["cancel"]), "no longer needed"); err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]struct {
			state    task.State
			class    task.Class
			text     string
			attempts int
		}{
			"exhausted": {task.Failed, task.Retryable, "boom", 2},
			"permanent": {task.Failed, task.NonRetryable, "boom", 1},
			"timeout":   {task.Failed, task.Timeout, "", 2},
			"decode":    {task.Failed, task.NonRetryable, "decode error", 1},
			"lost":      {task.Failed, task.ExecutorLost, "", 1},
			"ttl":       {task.Expired, task.ExpiredClass, "", 1},
			"deadline":  {task.Expired, task.ExpiredClass, "", 1},
			"cancel":    {task.Cancelled, task.CancelledClass, "", 1},
		} {
			wait(t, cl, ids[name])
			info := get(t, cl, ids[name])
			payload := ""
			if want.state == task.Failed {
				payload = "payload of " + name
			}
			if info.State != want.state || info.Attempt != want.attempts || string(info.Payload) != payload || info.PayloadSize != len("payload of "+name) {
				t.Errorf("%s: %v at attempt %d with payload %q", name, info.State, info.Attempt, info.Payload)
			}
			if info.Error == nil || info.Error.Class != want.class || !strings.Contains(info.Error.Message, want.text) {
				t.Errorf("%s: the reason is %v, want %v", name, info.Error, want.class)
			}
			if n := len(attempts(t, cl, ids[name])); want.state == task.Failed && n < want.attempts {
				t.Errorf("%s: %d tries kept", name, n)
			}
		}
		p, err := cl.List(t.Context(), client.ListOptions{State: task.Failed})
		if err != nil || len(p.Tasks) != 5 {
			t.Errorf("%d dead letters, %v", len(p.Tasks), err)
		}
		nothingRuns(t, c, "acme")
	})
}
