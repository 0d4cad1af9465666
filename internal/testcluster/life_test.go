package testcluster_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/executor"
	"github.com/headrace/headrace/fn"
	"github.com/headrace/headrace/internal/faketime"
	"github.com/headrace/headrace/internal/testcluster"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

var upper = fn.DefineCodec("upper", fn.Text(), fn.Text(), fn.Options{})

// submit stores one task that must be accepted.
func submit(t *testing.T, c *client.Client, tk client.Task) string {
	t.Helper()
	s, err := c.Submit(t.Context(), tk)
	if err != nil {
		t.Fatalf("submit: %v", err)
	}
	return s.ID
}

// wait returns the task once it has ended.
func wait(t *testing.T, c *client.Client, id string) *client.TaskInfo {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 48*time.Hour)
	defer cancel()
	info, err := c.Wait(ctx, client.ByID(id))
	if err != nil {
		t.Fatalf("wait: %v", err)
	}
	return info
}

// A task goes through every part and comes back as its result.
func TestSubmitRunSucceed(t *testing.T) {
	testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
		c.Executor(4, "acme", func(x *executor.Executor) {
			executor.Handle(x, upper, func(_ context.Context, in string) (string, error) { return in + "!", nil })
		})
		cl := c.Client("acme")
		h, err := client.Submit(t.Context(), cl, upper, "hello", client.Options{})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if out, err := h.Wait(t.Context()); err != nil || out != "hello!" {
			t.Errorf("result %q, %v", out, err)
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// A failure is retried after its back-off, an hour later if so said; the attempts tell the story.
func TestRetryTakesNoRealTime(t *testing.T) {
	testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
		slow := fn.Raw("slow", fn.Options{Backoff: fn.Backoff{Base: time.Hour, Max: 24 * time.Hour}})
		var calls atomic.Int32
		c.Executor(1, "acme", func(x *executor.Executor) {
			executor.Handle(x, slow, func(context.Context, []byte) ([]byte, error) {
				if calls.Add(1) == 1 {
					return nil, errors.New("not today")
				}
				return []byte("done"), nil
			})
		})
		cl := c.Client("acme")
		began := time.Now()
		id := submit(t, cl, client.Task{Function: "slow"})
		info := wait(t, cl, id)
		if took := time.Since(began); info.State != task.Succeeded || took < 48*time.Minute || took > 61*time.Minute {
			t.Errorf("%v after %v", info.State, took)
		}
		tries, total, err := cl.Attempts(t.Context(), client.ByID(id))
		if err != nil || total != 2 || len(tries) != 2 {
			t.Errorf("attempts %v, %d, %v", tries, total, err)
		}
	})
}

// The node is restarted, and then killed and started again, while a handler runs: it runs on, once, and its
// outcome counts (P4). Tasks that wait are served by the next owner.
func TestRestartIsTakeover(t *testing.T) {
	for name, end := range map[string]func(*testcluster.Cluster){
		"drain": func(c *testcluster.Cluster) { c.Stop() },
		"kill":  func(c *testcluster.Cluster) { c.Kill() },
	} {
		t.Run(name, func(t *testing.T) {
			testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
				hold := fn.Raw("hold", fn.Options{})
				release := make(chan struct{})
				var starts, stopped atomic.Int32
				c.Executor(4, "acme", func(x *executor.Executor) {
					executor.Handle(x, hold, func(ctx context.Context, _ []byte) ([]byte, error) {
						starts.Add(1)
						select {
						case <-release:
							return []byte("kept"), nil
						case <-ctx.Done():
							stopped.Add(1)
							return nil, context.Cause(ctx)
						}
					})
					executor.Handle(x, upper, func(_ context.Context, in string) (string, error) { return in, nil })
				})
				cl := c.Client("acme")
				held := submit(t, cl, client.Task{Function: "hold"})
				faketime.Pass(3 * time.Second) // of the bubble: long enough to be recorded
				waiting := submit(t, cl, client.Task{Function: "upper", Options: client.Options{Delay: 2 * time.Second}})
				for range 2 {
					end(c)
					c.Start()
				}
				began := time.Now()
				fresh := submit(t, cl, client.Task{Function: "upper"})
				if info := wait(t, cl, fresh); info.State != task.Succeeded || time.Since(began) > 8*time.Second {
					t.Errorf("a new task: %v after %v", info.State, time.Since(began))
				}
				if info := wait(t, cl, waiting); info.State != task.Succeeded || time.Since(began) > 12*time.Second {
					t.Errorf("the waiting task: %v after %v", info.State, time.Since(began))
				}
				close(release)
				info := wait(t, cl, held)
				if info.State != task.Succeeded || string(info.Result) != "kept" || info.Attempt != 1 || info.Losses != 0 {
					t.Errorf("the held task: %+v", info)
				}
				if starts.Load() != 1 || stopped.Load() != 0 {
					t.Errorf("%d starts, %d stopped", starts.Load(), stopped.Load())
				}
			})
		})
	}
}

// A stop with open sessions, waits and a caller that reads nothing ends in time (B074); waits are told to go elsewhere.
func TestStopEndsInTime(t *testing.T) {
	testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
		for i := range 5 {
			c.Executor(1, fmt.Sprint("t", i), func(x *executor.Executor) {
				executor.Handle(x, upper, func(ctx context.Context, in string) (string, error) {
					<-ctx.Done()
					return in, nil
				})
			})
		}
		cl := c.Client("t0")
		id := submit(t, cl, client.Task{Function: "upper"})
		far := submit(t, cl, client.Task{Function: "upper", Options: client.Options{Delay: time.Hour}})
		ctx, cancel := context.WithCancel(t.Context())
		var waits sync.WaitGroup
		for range 20 {
			waits.Go(func() { _, _ = cl.Wait(ctx, client.ByID(far)) })
		}
		synctest.Wait()
		_ = id
		if took := c.Stop(); took > 7*time.Second {
			t.Errorf("the stop took %v", took)
		}
		cancel()
		waits.Wait()
	})
}

// A cancel of a queued task ends it at once, of a running one by its handler, of a finished one not at all.
func TestCancel(t *testing.T) {
	testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
		c.Executor(1, "acme", func(x *executor.Executor) {
			executor.Handle(x, upper, func(ctx context.Context, in string) (string, error) {
				<-ctx.Done()
				return "", context.Cause(ctx)
			})
		})
		cl := c.Client("acme")
		running := submit(t, cl, client.Task{Function: "upper"})
		faketime.Pass(time.Second) // of the bubble
		queued := submit(t, cl, client.Task{Function: "upper"})
		if info, err := cl.Get(t.Context(), client.ByID(running)); err != nil || info.State != task.Running || info.WaitReason != "" {
			t.Errorf("the running task: %+v, %v", info, err)
		}
		if info, err := cl.Get(t.Context(), client.ByID(queued)); err != nil || info.State != task.Queued || info.WaitReason == "" {
			t.Errorf("the queued task: %+v, %v", info, err)
		}
		for state, want := range map[task.State]string{task.Running: running, task.Queued: queued} {
			p, err := cl.List(t.Context(), client.ListOptions{State: state})
			if err != nil || len(p.Tasks) != 1 || p.Tasks[0].ID != want {
				t.Errorf("list of %v: %v, %v", state, p.Tasks, err)
			}
		}
		for _, id := range []string{queued, running, running} {
			if _, _, err := cl.Cancel(t.Context(), client.ByID(id), "enough"); err != nil {
				t.Errorf("cancel: %v", err)
			}
			if info := wait(t, cl, id); info.State != task.Cancelled {
				t.Errorf("cancelled: %v", info.State)
			}
		}
	})
}

// A node that is configured for more partitions adds them, and keeps what is there.
func TestPartitionsGrow(t *testing.T) {
	testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
		cl := c.Client("acme")
		id := submit(t, cl, client.Task{Function: "upper"})
		c.Stop()
		c.Config.Partitions = 12
		c.Start()
		cluster := headracev1.NewClusterServiceClient(c.Raw())
		deadline := time.Now().Add(time.Minute)
		for {
			res, err := cluster.ListPartitions(t.Context(), &headracev1.ListPartitionsRequest{})
			if err != nil {
				t.Fatal(err)
			}
			open := 0
			for _, p := range res.Partitions {
				if p.State == "open" {
					open++
				}
			}
			if open == 12 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d of 12 are open after a minute", open)
			}
			faketime.Pass(100 * time.Millisecond) // of the bubble
		}
		if info, err := cl.Get(t.Context(), client.ByID(id)); err != nil || info.State != task.Queued {
			t.Errorf("the old task: %+v, %v", info, err)
		}
	})
}

// One executor reads nothing. Tasks offered to it come back, the others go on, and the node stops in time (B110, B074).
func TestExecutorThatReadsNothing(t *testing.T) {
	testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		dead, err := headracev1.NewExecutorServiceClient(c.Raw()).Session(ctx)
		if err != nil {
			t.Fatal(err)
		}
		hello := &headracev1.Hello{ExecutorId: make([]byte, 16), Name: "dead", Slots: 100, Functions: []*headracev1.FunctionDeclaration{{Tenant: "acme", Name: "upper"}}}
		if err := dead.Send(&headracev1.SessionRequest{Hello: hello, Credit: 100, Beat: &headracev1.Beat{Number: 1}}); err != nil {
			t.Fatal(err)
		}
		c.Executor(4, "acme", func(x *executor.Executor) {
			executor.Handle(x, upper, func(_ context.Context, in string) (string, error) { return "", nil })
		})
		cl := c.Client("acme")
		var ids []string
		for range 50 {
			ids = append(ids, submit(t, cl, client.Task{Function: "upper", Payload: make([]byte, 60<<10)}))
		}
		began := time.Now()
		for _, id := range ids {
			if info := wait(t, cl, id); info.State != task.Succeeded || info.Attempt != 1 || info.Losses != 0 {
				t.Errorf("%+v", info)
			}
		}
		if took := time.Since(began); took > 40*time.Second {
			t.Errorf("it took %v", took)
		}
		if took := c.Stop(); took > 7*time.Second {
			t.Errorf("the stop took %v", took)
		}
	})
}
