package testcluster_test

import (
	"strings"
	"testing"
	"time"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/executor"
	"github.com/headrace/headrace/fn"
	"github.com/headrace/headrace/internal/faketime"
	"github.com/headrace/headrace/internal/testcluster"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

// many are n tasks of a function.
func many(function string, n int) (ts []client.Task) {
	for range n {
		ts = append(ts, client.Task{Function: function})
	}
	return ts
}

// submitMany submits n tasks of a function, and returns their ids.
func submitMany(t *testing.T, cl *client.Client, function string, n int) (ids []string) {
	t.Helper()
	items, err := cl.SubmitBatch(t.Context(), many(function, n))
	if err != nil {
		t.Fatal(err)
	}
	for _, it := range items {
		if it.Err != nil {
			t.Fatal(it.Err)
		}
		ids = append(ids, it.ID)
	}
	return ids
}

// A user's limits hold by the executors' own count, over a crash of the server too; what they hold back waits and
// says why, nothing is lost, and nobody else waits.
func TestBoundsOfUsers(t *testing.T) {
	testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
		s := &service{capacity: 1000, until: map[task.ID]time.Time{}}
		free := &service{capacity: 1000, until: map[task.ID]time.Time{}}
		c.Executor(200, "acme", func(x *executor.Executor) {
			raw(x, "pay", fn.Options{}, s.call)
			raw(x, "mail", fn.Options{}, free.call)
		})
		set := func(req *headracev1.SetBoundRequest) {
			t.Helper()
			req.Tenant, req.Reason = "acme", "test"
			if _, err := headracev1.NewLimitServiceClient(c.Raw()).SetBound(t.Context(), req); err != nil {
				t.Fatal(err)
			}
		}
		list := func() []*headracev1.Bound {
			t.Helper()
			res, err := headracev1.NewLimitServiceClient(c.Raw()).ListBounds(t.Context(), &headracev1.ListBoundsRequest{Tenant: "acme"})
			if err != nil || len(res.MissingNodes) > 0 {
				t.Fatalf("list: %v, %v", res, err)
			}
			return res.Bounds
		}
		set(&headracev1.SetBoundRequest{Function: "pay", Concurrency: 3})
		faketime.Pass(3 * time.Second) // its coordinator grants nothing before it knows all that runs
		cl := c.Client("acme")
		ids := submitMany(t, cl, "pay", 400)
		mails := submitMany(t, cl, "mail", 200)
		faketime.Pass(2 * time.Second)
		if took, most := free.since(); took != 200 || most < 100 {
			t.Errorf("beside it %d of 200 ran, %d at once", took, most)
		}
		if took, most := s.since(); most != 3 || took < 50 {
			t.Errorf("%d at once, %d of 60", most, took)
		}
		until(t, 5*time.Second, "a waiting task names the limit", func() bool {
			return strings.HasPrefix(get(t, cl, ids[len(ids)-1]).WaitReason, "limit of function pay of acme: ")
		})
		if bs := list(); len(bs) != 1 || bs[0].Function != "pay" || bs[0].Reason != "test" || bs[0].Nodes[0].Running < 2 {
			t.Errorf("bounds: %v", bs)
		}
		c.Kill()
		c.Start()
		faketime.Pass(5 * time.Second)
		if took, most := s.since(); most > 3 || took < 50 {
			t.Errorf("after a crash %d at once, %d", most, took)
		}
		// The tenant's own limit is for both functions, and a rate is a rate.
		set(&headracev1.SetBoundRequest{Concurrency: 100, Rate: 5, Burst: 1})
		faketime.Pass(3 * time.Second)
		s.since()
		faketime.Pass(10 * time.Second)
		if took, _ := s.since(); took < 49 || took > 51 {
			t.Errorf("%d starts in 10 s, want 50", took)
		}
		ls := headracev1.NewLimitServiceClient(c.Raw())
		for _, f := range []string{"", "pay"} {
			if res, err := ls.RemoveBound(t.Context(), &headracev1.RemoveBoundRequest{Tenant: "acme", Function: f}); err != nil || res.Removed == nil {
				t.Errorf("remove: %v, %v", res, err)
			}
		}

		for _, id := range append(ids, mails...) {
			if info := wait(t, cl, id); info.State != task.Succeeded {
				t.Fatalf("%v", info)
			}
		}
		for _, req := range []*headracev1.SetBoundRequest{{Tenant: "acme"}, {Tenant: "acme", Function: "B", Rate: 1}, {Tenant: "A", Rate: 1}, {Tenant: "acme", Rate: -1}} {
			if _, err := ls.SetBound(t.Context(), req); err == nil {
				t.Errorf("%v is taken", req)
			}
		}
	})
}
