package testcluster_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/executor"
	"github.com/headrace/headrace/fn"
	"github.com/headrace/headrace/internal/faketime"
	"github.com/headrace/headrace/internal/grpcx"
	"github.com/headrace/headrace/internal/testcluster"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

// Tasks of functions that nobody runs wait, with nothing spent and a reason, and are in nobody's way (B006).
func TestScenarioUnknownFunctionsWait(t *testing.T) {
	testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
		ok := func(context.Context, *executor.Task) ([]byte, error) { return nil, nil }
		c.Executor(4, "acme", func(x *executor.Executor) { raw(x, "a", fn.Options{}, ok) })
		cl := c.Client("acme")
		many := func(function string) []string {
			tasks := make([]client.Task, 50)
			for i := range tasks {
				tasks[i] = client.Task{Function: function}
			}
			return submitBatch(t, cl, tasks)
		}
		bs := many("b")
		never := submit(t, cl, client.Task{Function: "never"})
		dies := submit(t, cl, client.Task{Function: "never", Options: client.Options{StartTTL: 20 * time.Second}})
		faketime.Pass(50 * time.Second) // of the bubble
		began := time.Now()
		for _, id := range many("a") {
			if info := wait(t, cl, id); info.State != task.Succeeded {
				t.Errorf("a: %v", info.State)
			}
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("the known function's tasks took %v", took)
		}
		for _, id := range append(bs, never) {
			if info := get(t, cl, id); info.State != task.Queued || info.Attempt != 1 || info.WaitReason != "no executor" || info.Losses != 0 {
				t.Fatalf("without executor: %v, attempt %d, %q", info.State, info.Attempt, info.WaitReason)
			}
		}
		if info := wait(t, cl, dies); info.State != task.Expired || info.FinishedAt.Sub(info.CreatedAt) > 21*time.Second {
			t.Errorf("with a start TTL: %v after %v", info.State, info.FinishedAt.Sub(info.CreatedAt))
		}
		c.Executor(4, "acme", func(x *executor.Executor) { raw(x, "b", fn.Options{}, ok) })
		for _, id := range bs {
			if info := wait(t, cl, id); info.State != task.Succeeded || info.Attempt != 1 {
				t.Errorf("b: %v, attempt %d", info.State, info.Attempt)
			}
		}
		if info := get(t, cl, never); info.State != task.Queued {
			t.Errorf("never: %v", info.State)
		}
	})
}

// Priority zero is the first, not the default; what was set comes back; what is out of range is refused; a
// hundred queued tasks start by priority, and within one in the order of their submit (B060).
func TestScenarioPriorities(t *testing.T) {
	testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
		cl := c.Client("acme")
		raw1 := headracev1.NewTaskServiceClient(c.Raw())
		for _, p := range []uint32{10, 255, 256, 1 << 31} { // 256 is 0 to a careless byte
			_, err := raw1.Submit(t.Context(), &headracev1.SubmitRequest{Tenant: "acme", Task: &headracev1.TaskSpec{Function: "f", Priority: proto.Uint32(p)}})
			if info := grpcx.Read(err); info.Code != codes.InvalidArgument || info.Metadata[grpcx.MetaField] != "task.priority" {
				t.Errorf("priority %d: %+v", p, info)
			}
		}
		want := map[string]int{}
		var tasks []client.Task
		for i := range 100 {
			tk := client.Task{Function: "f", Payload: fmt.Append(nil, i)}
			if i%11 < 10 {
				tk.Priority = new(uint8(i % 11))
			}
			tasks = append(tasks, tk)
		}
		ids := submitBatch(t, cl, tasks)
		for i, id := range ids {
			p := i % 11
			if p == 10 {
				p = task.DefaultPriority
			}
			want[id] = p
			if info := get(t, cl, id); info.Priority != p {
				t.Errorf("task %d has priority %d, want %d", i, info.Priority, p)
			}
		}
		var starts journal
		c.Executor(1, "acme", func(x *executor.Executor) {
			raw(x, "f", fn.Options{}, func(ctx context.Context, _ *executor.Task) ([]byte, error) {
				starts.add(executor.TaskID(ctx).String())
				return nil, nil
			})
		})
		for _, id := range ids {
			wait(t, cl, id)
		}
		index := map[string]int{}
		for i, id := range ids {
			index[id] = i
		}
		order := starts.texts()
		if len(order) != len(ids) {
			t.Fatalf("%d starts", len(order))
		}
		for i := 1; i < len(order); i++ {
			a, b := order[i-1], order[i]
			if want[a] > want[b] || want[a] == want[b] && index[a] > index[b] {
				t.Fatalf("start %d: task %d of priority %d before task %d of priority %d", i, index[a], want[a], index[b], want[b])
			}
		}
	})
}

// A batch of a thousand starts in its order where one slot takes it, also over a restart of the node (B061).
func TestScenarioBatchKeepsItsOrder(t *testing.T) {
	testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
		cl := c.Client("acme")
		tasks := make([]client.Task, 1000)
		for i := range tasks {
			tasks[i] = client.Task{Function: "f", Payload: fmt.Append(nil, i)}
		}
		ids := submitBatch(t, cl, tasks)
		var starts journal
		var running, most atomic.Int32
		c.Executor(1, "acme", func(x *executor.Executor) {
			raw(x, "f", fn.Options{}, func(_ context.Context, tk *executor.Task) ([]byte, error) {
				most.Store(max(most.Load(), running.Add(1)))
				defer running.Add(-1)
				starts.add(string(tk.Payload))
				faketime.Pass(5 * time.Millisecond) // of the bubble
				return nil, nil
			})
		})
		faketime.Pass(time.Second) // of the bubble
		c.Stop()
		c.Start()
		for _, id := range ids {
			wait(t, cl, id)
		}
		for i, text := range starts.texts() {
			if text != fmt.Sprint(i) {
				t.Fatalf("start %d is task %s", i, text)
			}
		}
		if n := len(starts.texts()); n != 1000 || most.Load() != 1 {
			t.Errorf("%d starts, %d at once on one slot", n, most.Load())
		}
	})
}

// One of ten executors never reads its stream. The others do all the work meanwhile, what was pushed to it
// comes back once its session is given up, and nothing is started twice or counted (B110).
func TestScenarioSlowExecutor(t *testing.T) {
	testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
		const tasks = 300
		stream, err := headracev1.NewExecutorServiceClient(c.Raw()).Session(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&headracev1.SessionRequest{Credit: 50, Hello: &headracev1.Hello{ExecutorId: make([]byte, 16), Name: "slow", Slots: 50,
			Functions: []*headracev1.FunctionDeclaration{{Tenant: "acme", Name: "f"}}}}); err != nil {
			t.Fatal(err)
		}
		var starts atomic.Int32
		for range 9 {
			c.Executor(4, "acme", func(x *executor.Executor) {
				raw(x, "f", fn.Options{}, func(context.Context, *executor.Task) ([]byte, error) {
					starts.Add(1)
					faketime.Pass(100 * time.Millisecond) // of the bubble
					return nil, nil
				})
			})
		}
		cl := c.Client("acme")
		began := time.Now()
		var ids []string
		for range tasks {
			ids = append(ids, submit(t, cl, client.Task{Function: "f", Payload: make([]byte, 256<<10)}))
		}
		eventually(t, 3*time.Second, "all but what the slow one holds is done", func() bool { return starts.Load() >= tasks-50 })
		t.Logf("%d of %d after %v", starts.Load(), tasks, time.Since(began))
		for _, id := range ids {
			if info := wait(t, cl, id); info.State != task.Succeeded || info.Losses != 0 || info.Attempt != 1 {
				t.Errorf("%v, losses %d, attempt %d", info.State, info.Losses, info.Attempt)
			}
		}
		// The session that reads nothing ends after 10 s without a word, its pushes 30 s after its last beat.
		if took := time.Since(began); took > 45*time.Second {
			t.Errorf("all done after %v", took)
		}
		if n := starts.Load(); n != tasks {
			t.Errorf("%d starts of %d tasks", n, tasks)
		}
	})
}

// eventually asks again until ok, at most for d of the bubble's time.
func eventually(t *testing.T, d time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(d); !ok(); faketime.Pass(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", d, what)
		}
	}
}

var errCustom = errors.New("a handler's own error")
