package testcluster_test

import (
	"context"
	"fmt"
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

// limits is a cluster with what a test of limits asks.
type limits struct {
	t       *testing.T
	tasks   headracev1.TaskServiceClient
	tenants headracev1.TenantServiceClient
}

func newLimits(t *testing.T, c *testcluster.Cluster) limits {
	cc := c.Raw()
	return limits{t, headracev1.NewTaskServiceClient(cc), headracev1.NewTenantServiceClient(cc)}
}

func (l limits) set(req *headracev1.SetTenantRequest) {
	l.t.Helper()
	if _, err := l.tenants.SetTenant(l.t.Context(), req); err != nil {
		l.t.Fatal(err)
	}
}

func (l limits) submit(tenant string) grpcx.Info {
	_, err := l.tasks.Submit(l.t.Context(), &headracev1.SubmitRequest{Tenant: tenant, Task: &headracev1.TaskSpec{Function: "f"}})
	if err == nil {
		return grpcx.Info{}
	}
	return grpcx.Read(err)
}

func (l limits) batch(tenant, id string, n int, retry bool) (ids []string, refused []*headracev1.SubmitError) {
	l.t.Helper()
	req := &headracev1.SubmitBatchRequest{Tenant: tenant, RequestId: []byte(id), Retry: retry}
	for i := range n {
		req.Tasks = append(req.Tasks, &headracev1.TaskSpec{Function: "f", Payload: fmt.Append(nil, i)})
	}
	res, err := l.tasks.SubmitBatch(l.t.Context(), req)
	if err != nil {
		l.t.Fatal(err)
	}
	for _, o := range res.Outcomes {
		if o.Error != nil {
			refused = append(refused, o.Error)
		} else {
			ids = append(ids, o.Id)
		}
	}
	return ids, refused
}

// Over the wire: what a refusal says, and that a retry at the told time is accepted, 1 ms earlier refused.
func TestRefusedAndToldWhen(t *testing.T) {
	testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
		l := newLimits(t, c)
		l.set(&headracev1.SetTenantRequest{Tenant: "a", Rate: proto.Float64(0.5), Burst: proto.Float64(2)})
		for range 2 {
			if i := l.submit("a"); i.Code != codes.OK {
				t.Fatal(i)
			}
		}
		i := l.submit("a")
		if i.Code != codes.ResourceExhausted || i.Reason != "tenant_rate" || i.Metadata["tenant"] != "a" || i.Metadata["level"] != "hard" || i.Metadata["limit"] != "0.5 tasks/s" {
			t.Fatalf("refused with %+v", i)
		}
		faketime.Pass(i.RetryAfter - time.Millisecond)
		if early := l.submit("a"); early.Code != codes.ResourceExhausted || early.RetryAfter <= 0 {
			t.Fatalf("1 ms before the told time: %+v", early)
		}
		faketime.Pass(time.Millisecond)
		if late := l.submit("a"); late.Code != codes.OK {
			t.Fatalf("at the told time: %+v", late)
		}
		if other := l.submit("b"); other.Code != codes.OK {
			t.Fatalf("somebody else: %+v", other)
		}
		// What is too large never fits: nobody is told to try again.
		_, err := l.tasks.Submit(t.Context(), &headracev1.SubmitRequest{Tenant: "b", Task: &headracev1.TaskSpec{Function: "f", Payload: make([]byte, task.MaxPayload+1)}})
		if i := grpcx.Read(err); err == nil || i.RetryAfter != 0 {
			t.Errorf("too large: %+v", i)
		}
		// The setting is stored, and outlives the node.
		c.Stop()
		c.Start()
		faketime.Pass(time.Second)
		got, err := l.tenants.GetTenant(t.Context(), &headracev1.GetTenantRequest{Tenant: "a"})
		if err != nil || got.Tenant.Settings.Rate != 0.5 || got.Tenant.Effective.MaxRows != task.DefaultMaxRows || got.Tenant.Rows != 3 {
			t.Errorf("%v, %v", got, err)
		}
	})
}

// A batch is taken as far as it goes. Repeated after a lost answer it is taken whole, and what was stored is found.
func TestBatchIsTakenInPart(t *testing.T) {
	testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
		l := newLimits(t, c)
		l.set(&headracev1.SetTenantRequest{Tenant: "a", Rate: proto.Float64(10), Burst: proto.Float64(60)})
		const id = "0123456789abcdef"
		first, refused := l.batch("a", id, 100, false)
		if len(first) != 60 || len(refused) != 40 || refused[0].Reason != "tenant_rate" || refused[0].RetryAfter.AsDuration() <= 0 || refused[0].Metadata["tenant"] != "a" {
			t.Fatalf("%d taken, %d refused: %v", len(first), len(refused), refused[0])
		}
		if again, refused := l.batch("a", id, 100, true); len(again) != 0 || len(refused) != 100 {
			t.Fatalf("at once again: %d taken", len(again))
		}
		faketime.Pass(20 * time.Second)
		for range 2 {
			all, refused := l.batch("a", id, 100, true)
			if len(all) != 100 || len(refused) != 0 {
				t.Fatalf("again: %d taken, %d refused", len(all), len(refused))
			}
			for i := range first {
				if all[i] != first[i] {
					t.Fatalf("task %d is there twice: %s and %s", i, first[i], all[i])
				}
			}
			faketime.Pass(20 * time.Second)
		}
		// The SDK waits by itself until all are in.
		begin := time.Now()
		if ids := submitBatch(t, c.Client("a"), make100()); len(ids) != 100 {
			t.Error("not all are in")
		}
		if took := time.Since(begin); took < 3*time.Second || took > 10*time.Second {
			t.Errorf("100 tasks at 10/s with a burst of 60 took %v", took)
		}
		faketime.Pass(time.Second)
		if got, err := l.tenants.GetTenant(t.Context(), &headracev1.GetTenantRequest{Tenant: "a"}); err != nil || got.Tenant.Ready != 200 {
			t.Errorf("%v, %v: want 200 ready", got, err)
		}
	})
}

func make100() (ts []client.Task) {
	for range 100 {
		ts = append(ts, client.Task{Function: "f"})
	}
	return ts
}

// Rows are bounded whatever the pressure, and room that tasks leave can be used.
func TestRowsAreBounded(t *testing.T) {
	testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
		l := newLimits(t, c)
		l.set(&headracev1.SetTenantRequest{Tenant: "a", MaxRows: proto.Int64(50)})
		if got, refused := l.batch("a", "", 70, false); len(got) != 50 || refused[0].Reason != "tenant_rows" || refused[0].RetryAfter == nil {
			t.Fatalf("%d taken, %v", len(got), refused)
		}
		faketime.Pass(time.Second)
		if i := l.submit("a"); i.Reason != "tenant_rows" {
			t.Fatalf("%+v", i)
		}
		// A takeover knows how many there are.
		c.Kill()
		c.Start()
		faketime.Pass(3 * time.Second)
		if i := l.submit("a"); i.Reason != "tenant_rows" {
			t.Fatalf("after a takeover: %+v", i)
		}
		c.Executor(10, "a", func(x *executor.Executor) {
			x.HandleRaw("f", fn.Options{}, func(context.Context, *executor.Task) (executor.Result, error) { return executor.Result{}, nil })
		})
		faketime.Pass(5 * time.Second)
		if got, _ := l.batch("a", "", 70, false); len(got) != 50 {
			t.Fatalf("%d taken once all had ended", len(got))
		}
	})
}
