package testcluster_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/internal/grpcx"
	"github.com/headrace/headrace/internal/testcluster"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
)

// Wrong requests are refused with the field and the range, and nothing is stored; a wrong item costs a
// batch that item only.
func TestWrongRequestsStoreNothing(t *testing.T) {
	testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
		tasks := headracev1.NewTaskServiceClient(c.Raw())
		ctx := t.Context()
		spec := func() *headracev1.TaskSpec { return &headracev1.TaskSpec{Function: "f"} }
		many := func(n, payload int) (ts []*headracev1.TaskSpec) {
			for range n {
				ts = append(ts, &headracev1.TaskSpec{Function: "f", Payload: make([]byte, payload)})
			}
			return ts
		}
		ref := func(id string) *headracev1.TaskRef {
			return &headracev1.TaskRef{Ref: &headracev1.TaskRef_Id{Id: id}}
		}
		good := strings.Repeat("2", 26)
		var err error
		call := map[string]func(){
			"tenant": func() { _, err = tasks.Submit(ctx, &headracev1.SubmitRequest{Task: spec()}) },
			"request_id": func() {
				_, err = tasks.Submit(ctx, &headracev1.SubmitRequest{Tenant: "t", Task: spec(), RequestId: []byte("x")})
			},
			"task.function": func() { _, err = tasks.Submit(ctx, &headracev1.SubmitRequest{Tenant: "t"}) },
			"task.payload":  func() { _, err = tasks.Submit(ctx, &headracev1.SubmitRequest{Tenant: "t", Task: many(1, 1<<20+1)[0]}) },
			"tasks":         func() { _, err = tasks.SubmitBatch(ctx, &headracev1.SubmitBatchRequest{Tenant: "t"}) },
			"tasks (count)": func() {
				_, err = tasks.SubmitBatch(ctx, &headracev1.SubmitBatchRequest{Tenant: "t", Tasks: many(1001, 0)})
			},
			"tasks (bytes)": func() {
				_, err = tasks.SubmitBatch(ctx, &headracev1.SubmitBatchRequest{Tenant: "t", Tasks: many(5, 1<<20)})
			},
			"task":    func() { _, err = tasks.Get(ctx, &headracev1.GetRequest{Tenant: "t"}) },
			"task.id": func() { _, err = tasks.Get(ctx, &headracev1.GetRequest{Tenant: "t", Task: ref("x")}) },
			"task.client_id": func() {
				_, err = tasks.Get(ctx, &headracev1.GetRequest{Tenant: "t", Task: &headracev1.TaskRef{Ref: &headracev1.TaskRef_ClientId{}}})
			},
			"reason": func() {
				_, err = tasks.Cancel(ctx, &headracev1.CancelRequest{Tenant: "t", Task: ref(good), Reason: strings.Repeat("r", 256)})
			},
			"page_size":     func() { _, err = tasks.List(ctx, &headracev1.ListRequest{Tenant: "t", PageSize: 1001}) },
			"page_token":    func() { _, err = tasks.List(ctx, &headracev1.ListRequest{Tenant: "t", PageToken: "x"}) },
			"state":         func() { _, err = tasks.List(ctx, &headracev1.ListRequest{Tenant: "t", State: 9}) },
			"label":         func() { _, err = tasks.List(ctx, &headracev1.ListRequest{Tenant: "t", Label: "k"}) },
			"label (state)": func() { _, err = tasks.List(ctx, &headracev1.ListRequest{Tenant: "t", Label: "k=v", State: 5}) },
			"function":      func() { _, err = tasks.List(ctx, &headracev1.ListRequest{Tenant: "t", Function: "F"}) },
		}
		for name, f := range call {
			f()
			info := grpcx.Read(err)
			field, _, _ := strings.Cut(name, " ")
			if info.Code != codes.InvalidArgument || info.Metadata[grpcx.MetaField] != field || info.Metadata[grpcx.MetaWant] == "" {
				t.Errorf("%s: %+v", name, info)
			}
		}
		// Every call wants a tenant, and takes none of these for one (B147).
		for _, tenant := range []string{"", " ", "*", "T", "a/b", "ü", strings.Repeat("t", 64)} {
			for name, f := range map[string]func() error{
				"Submit": func() error {
					_, err := tasks.Submit(ctx, &headracev1.SubmitRequest{Tenant: tenant, Task: spec()})
					return err
				},
				"SubmitBatch": func() error {
					_, err := tasks.SubmitBatch(ctx, &headracev1.SubmitBatchRequest{Tenant: tenant, Tasks: many(1, 0)})
					return err
				},
				"Get": func() error {
					_, err := tasks.Get(ctx, &headracev1.GetRequest{Tenant: tenant, Task: ref(good)})
					return err
				},
				"List": func() error { _, err := tasks.List(ctx, &headracev1.ListRequest{Tenant: tenant}); return err },
				"Cancel": func() error {
					_, err := tasks.Cancel(ctx, &headracev1.CancelRequest{Tenant: tenant, Task: ref(good)})
					return err
				},
				"ListAttempts": func() error {
					_, err := tasks.ListAttempts(ctx, &headracev1.ListAttemptsRequest{Tenant: tenant, Task: ref(good)})
					return err
				},
				"ListLogs": func() error {
					_, err := tasks.ListLogs(ctx, &headracev1.ListLogsRequest{Tenant: tenant, Task: ref(good)})
					return err
				},
				"Wait": func() error {
					s, err := tasks.Wait(ctx, &headracev1.WaitRequest{Tenant: tenant, Task: ref(good)})
					if err == nil {
						_, err = s.Recv()
					}
					return err
				},
				"FetchPayload": func() error {
					_, err := headracev1.NewExecutorServiceClient(c.Raw()).FetchPayload(ctx, &headracev1.FetchPayloadRequest{Tenant: tenant, TaskId: make([]byte, 16)})
					return err
				},
			} {
				if info := grpcx.Read(f()); info.Code != codes.InvalidArgument || info.Metadata[grpcx.MetaField] != "tenant" {
					t.Errorf("%s of tenant %q: %+v", name, tenant, info)
				}
			}
		}
		batch, err := tasks.SubmitBatch(ctx, &headracev1.SubmitBatchRequest{Tenant: "other", Tasks: []*headracev1.TaskSpec{spec(), {Function: "F"}, spec()}})
		if err != nil || batch.Outcomes[0].Id == "" || batch.Outcomes[2].Id == "" {
			t.Fatalf("batch: %v, %v", batch, err)
		}
		if e := batch.Outcomes[1].Error; e.GetCode() != int32(codes.InvalidArgument) || e.GetMetadata()[grpcx.MetaField] != "tasks[1].function" {
			t.Errorf("the wrong item: %v", e)
		}
		if p, err := tasks.List(ctx, &headracev1.ListRequest{Tenant: "t"}); err != nil || len(p.Tasks) != 0 {
			t.Errorf("stored: %v, %v", p, err)
		}
		if p, err := tasks.List(ctx, &headracev1.ListRequest{Tenant: "other"}); err != nil || len(p.Tasks) != 2 {
			t.Errorf("stored of the batch: %v, %v", p, err)
		}
	})
}

// Two tenants use the same client id. Each has its own task, and to the other it is as if it never was (B009).
func TestTenantsAreIsolated(t *testing.T) {
	testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
		a, b := c.Client("a"), c.Client("b")
		ids := map[string]string{}
		for name, cl := range map[string]*client.Client{"a": a, "b": b} {
			ids[name] = submit(t, cl, client.Task{Function: "f", Payload: []byte(name), Options: client.Options{ID: "order/1"}})
		}
		if ids["a"] == ids["b"] {
			t.Fatal("one task for both")
		}
		if info, err := b.Get(t.Context(), client.ByClientID("order/1")); err != nil || info.ID != ids["b"] || string(info.Payload) != "b" {
			t.Errorf("b's own: %v, %v", info, err)
		}
		raw := headracev1.NewTaskServiceClient(c.Raw())
		ask := func(id string) (answers []string) {
			ref := &headracev1.TaskRef{Ref: &headracev1.TaskRef_Id{Id: id}}
			_, err := raw.Get(t.Context(), &headracev1.GetRequest{Tenant: "b", Task: ref})
			answers = append(answers, fmt.Sprint(grpcx.Read(err)))
			_, err = raw.Cancel(t.Context(), &headracev1.CancelRequest{Tenant: "b", Task: ref})
			answers = append(answers, fmt.Sprint(grpcx.Read(err)))
			_, err = raw.ListAttempts(t.Context(), &headracev1.ListAttemptsRequest{Tenant: "b", Task: ref})
			answers = append(answers, fmt.Sprint(grpcx.Read(err)))
			_, err = raw.ListLogs(t.Context(), &headracev1.ListLogsRequest{Tenant: "b", Task: ref})
			answers = append(answers, fmt.Sprint(grpcx.Read(err)))
			s, err := raw.Wait(t.Context(), &headracev1.WaitRequest{Tenant: "b", Task: ref})
			if err == nil {
				_, err = s.Recv()
			}
			return append(answers, fmt.Sprint(grpcx.Read(err)))
		}
		// A random id of the same partition.
		random := ids["a"][:20] + strings.Repeat("2", 6)
		theirs, nobodys := ask(ids["a"]), ask(random)
		for i := range theirs {
			if theirs[i] != nobodys[i] || !strings.Contains(theirs[i], "NotFound") {
				t.Errorf("call %d: %s, of a random id: %s", i, theirs[i], nobodys[i])
			}
		}
	})
}

// 5,000 tasks of one instant: every page size gives each once, in one order (B088).
func TestPagesHaveEachTaskOnce(t *testing.T) {
	testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
		cl := c.Client("acme")
		ids := map[string]bool{}
		batch := make([]client.Task, 500)
		for i := range batch {
			batch[i] = client.Task{Function: "f"}
		}
		for range 10 {
			out, err := cl.SubmitBatch(t.Context(), batch)
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range out {
				if o.Err != nil {
					t.Fatal(o.Err)
				}
				ids[o.ID] = true
			}
		}
		if len(ids) != 5000 {
			t.Fatalf("%d ids", len(ids))
		}
		var order []string
		for _, size := range []int{1000, 100, 7} {
			var got []string
			for info, err := range cl.ListAll(t.Context(), client.ListOptions{PageSize: size}) {
				if err != nil {
					t.Fatal(err)
				}
				if !ids[info.ID] {
					t.Fatalf("unknown id %s", info.ID)
				}
				got = append(got, info.ID)
			}
			if order == nil {
				order = got
			}
			seen := map[string]bool{}
			for i, id := range got {
				if seen[id] || order[i] != id {
					t.Fatalf("size %d: place %d has %s, seen %v", size, i, id, seen[id])
				}
				seen[id] = true
			}
			if len(got) != 5000 {
				t.Errorf("size %d: %d tasks", size, len(got))
			}
		}
	})
}

// The answer to a submit is lost. Sent again as a retry, it names the tasks of the first time, also after the
// node was killed; with another client id's payload it is refused.
func TestLostAnswerMakesNoSecondTask(t *testing.T) {
	testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
		raw := headracev1.NewTaskServiceClient(c.Raw())
		req := &headracev1.SubmitBatchRequest{Tenant: "acme", RequestId: []byte("0123456789abcdef"),
			Tasks: []*headracev1.TaskSpec{{Function: "f"}, {Function: "f", ClientId: "x"}, {Function: "F"}, {Function: "g"}}}
		first, err := raw.SubmitBatch(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		req.Retry = true
		for round := range 3 {
			again, err := raw.SubmitBatch(t.Context(), req)
			if err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			for i, o := range again.Outcomes {
				if o.Id != first.Outcomes[i].Id {
					t.Errorf("round %d, item %d: %q, first %q", round, i, o.Id, first.Outcomes[i].Id)
				}
			}
			if round == 1 {
				c.Kill()
				c.Start()
			}
		}
		if p, err := raw.List(t.Context(), &headracev1.ListRequest{Tenant: "acme"}); err != nil || len(p.Tasks) != 3 {
			t.Errorf("%d tasks, %v", len(p.GetTasks()), err)
		}
		cl := c.Client("acme")
		if s, err := cl.Submit(t.Context(), client.Task{Function: "f", Options: client.Options{ID: "x"}}); err != nil || !s.Deduplicated || s.ID != first.Outcomes[1].Id {
			t.Errorf("the same client id: %+v, %v", s, err)
		}
		_, err = cl.Submit(t.Context(), client.Task{Function: "f", Payload: []byte("other"), Options: client.Options{ID: "x"}})
		var dup *client.DuplicateError
		if !errors.As(err, &dup) {
			t.Errorf("another payload: %v", err)
		}
	})
}

// A wait ends with the task, also when it had ended before, and a tenant may have so many and no more.
func TestWaits(t *testing.T) {
	testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
		cl := c.Client("acme")
		id := submit(t, cl, client.Task{Function: "f"})
		ctx, cancel := context.WithCancel(t.Context())
		seen := make(chan string, 10)
		go func() {
			defer close(seen)
			for info, err := range cl.Watch(ctx, client.ByID(id)) {
				if err != nil {
					return
				}
				seen <- info.State.String()
			}
		}()
		synctest.Wait()
		if _, _, err := cl.Cancel(t.Context(), client.ByID(id), ""); err != nil {
			t.Fatal(err)
		}
		var states []string
		for s := range seen {
			states = append(states, s)
		}
		cancel()
		if fmt.Sprint(states) != "[queued cancelled]" {
			t.Errorf("states %v", states)
		}
		if info := wait(t, cl, id); info.State.String() != "cancelled" {
			t.Errorf("a finished task: %v", info.State)
		}
	})
}

// Health tells whether the node serves, and says no while it drains.
func TestHealth(t *testing.T) {
	testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
		h := healthpb.NewHealthClient(c.Raw())
		for _, service := range []string{"", "headrace.v1.TaskService"} {
			res, err := h.Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
			if err != nil || res.Status != healthpb.HealthCheckResponse_SERVING {
				t.Errorf("%q: %v, %v", service, res, err)
			}
		}
		watch, err := h.Watch(t.Context(), &healthpb.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if res, err := watch.Recv(); err != nil || res.Status != healthpb.HealthCheckResponse_SERVING {
			t.Fatalf("%v, %v", res, err)
		}
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			c.Stop()
		}()
		if res, err := watch.Recv(); err != nil || res.Status != healthpb.HealthCheckResponse_NOT_SERVING {
			t.Errorf("in a drain: %v, %v", res, err)
		}
		<-stopped
	})
}
