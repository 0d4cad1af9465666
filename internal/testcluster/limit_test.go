package testcluster_test

import (
	"context"
	"strings"
	"sync"
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

// service is a downstream that takes so many at once, and counts.
type service struct {
	mu       sync.Mutex
	capacity int
	in, most int
	took     int
	early    int                   // tries before their retry-after
	until    map[task.ID]time.Time // by task
	after    time.Duration
}

func (s *service) call(ctx context.Context, t *executor.Task) ([]byte, error) {
	s.mu.Lock()
	if time.Now().Before(s.until[t.ID]) {
		s.early++
	}
	if s.in >= s.capacity {
		s.until[t.ID] = time.Now().Add(s.after)
		s.mu.Unlock()
		return nil, executor.Throttled(errBoom, "", s.after)
	}
	s.in++
	s.took++
	s.most = max(s.most, s.in)
	s.mu.Unlock()
	select {
	case <-time.After(100 * time.Millisecond):
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.in--
	return nil, nil
}

// since is how many it took, and most at once, since the last call.
func (s *service) since() (took, most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	took, most = s.took, s.most
	s.took, s.most = 0, s.in
	return took, most
}

// A downstream of ten places is found, shown and used; an operator's word holds at once, over a restart, and until it is
// taken back; no attempt is spent and no retry-after broken.
func TestAdaptiveLimit(t *testing.T) {
	testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
		s := &service{capacity: 10, after: 200 * time.Millisecond, until: map[task.ID]time.Time{}}
		c.Executor(200, "acme", func(x *executor.Executor) {
			raw(x, "pay", fn.Options{Downstream: "bank"}, s.call)
		})
		cl := c.Client("acme")
		var tasks []client.Task
		for range 1000 {
			tasks = append(tasks, client.Task{Function: "pay"})
		}
		var ids []string
		for range 12 {
			items, err := cl.SubmitBatch(t.Context(), tasks)
			if err != nil {
				t.Fatal(err)
			}
			for _, it := range items {
				if it.Err != nil {
					t.Fatal(it.Err)
				}
				ids = append(ids, it.ID)
			}
		}
		faketime.Pass(20 * time.Second)
		s.since()
		faketime.Pass(20 * time.Second)
		if took, _ := s.since(); took < 1900 {
			t.Errorf("of 2,000 places in 20 s %d were used", took)
		}
		ls := headracev1.NewLimitServiceClient(c.Raw())
		list := func() *headracev1.Limit {
			t.Helper()
			res, err := ls.ListLimits(t.Context(), &headracev1.ListLimitsRequest{Tenant: "acme"})
			if err != nil || len(res.Limits) != 1 || len(res.Limits[0].Nodes) != 1 || len(res.MissingNodes) > 0 {
				t.Fatalf("list: %v, %v", res, err)
			}
			return res.Limits[0]
		}
		l := list()
		n := l.Nodes[0]
		if l.Downstream != "bank" || l.Functions[0] != "pay" || !n.Active || n.Limit < 9 || n.Limit > 14 || n.InUse+n.Parked < 9 || len(n.Decisions) == 0 || n.NodeId == "" {
			t.Errorf("the limit: %v", l)
		}
		// What lies in the store only says that it waits for its turn; and at this very moment a permit may be free.
		until(t, 5*time.Second, "a waiting task names the limit", func() bool {
			for i := 0; i < len(ids); i += 100 {
				if why := get(t, cl, ids[i]).WaitReason; strings.HasPrefix(why, "downstream bank of acme: ") && strings.Contains(why, " in use") {
					return true
				}
			}
			return false
		})

		set := func(lo, hi uint32) {
			t.Helper()
			if _, err := ls.SetLimit(t.Context(), &headracev1.SetLimitRequest{Tenant: "acme", Downstream: "bank", Min: lo, Max: hi, Reason: "test"}); err != nil {
				t.Fatal(err)
			}
			faketime.Pass(time.Second)
			s.since()
		}
		set(3, 3)
		faketime.Pass(5 * time.Second)
		if took, most := s.since(); most != 3 || took < 140 {
			t.Errorf("fixed at 3: %d at once, %d of 150 in 5 s", most, took)
		}
		c.Kill()
		c.Start()
		faketime.Pass(10 * time.Second)
		s.since()
		faketime.Pass(5 * time.Second)
		if took, most := s.since(); most != 3 || took < 140 {
			t.Errorf("fixed at 3, after a restart: %d at once, %d of 150 in 5 s", most, took)
		}
		if l := list(); l.Override.GetMin() != 3 || l.Override.GetReason() != "test" || l.Nodes[0].Limit != 3 {
			t.Errorf("the limit that was set: %v", l)
		}
		ls = headracev1.NewLimitServiceClient(c.Raw())
		res, err := ls.ResetLimit(t.Context(), &headracev1.ResetLimitRequest{Tenant: "acme", Downstream: "bank"})
		if err != nil || res.Removed.GetMax() != 3 || res.Nodes != 1 {
			t.Errorf("reset: %v, %v", res, err)
		}
		s.since()
		faketime.Pass(60 * time.Second)
		if _, most := s.since(); most != 10 {
			t.Errorf("after the reset %d at once", most)
		}
		for _, id := range ids {
			if info := wait(t, cl, id); info.State != task.Succeeded || info.Attempt != 1 {
				t.Fatalf("%v at attempt %d after %d throttles", info.State, info.Attempt, info.Throttles)
			}
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.early > 0 {
			t.Errorf("%d tries came before their retry-after", s.early)
		}
		for _, req := range []*headracev1.SetLimitRequest{{Tenant: "acme", Downstream: "bank"}, {Tenant: "acme", Downstream: "B", Max: 1}, {Tenant: "A", Downstream: "b", Max: 1}} {
			if _, err := ls.SetLimit(t.Context(), req); err == nil {
				t.Errorf("%v is taken", req)
			}
		}
	})
}

// What never throttles has no limit, and is not slowed by one.
func TestNoLimitWithoutThrottles(t *testing.T) {
	testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
		s := &service{capacity: 1000, until: map[task.ID]time.Time{}}
		c.Executor(200, "acme", func(x *executor.Executor) { raw(x, "f", fn.Options{}, s.call) })
		cl := c.Client("acme")
		if _, err := cl.SubmitBatch(t.Context(), make200()); err != nil {
			t.Fatal(err)
		}
		faketime.Pass(time.Second)
		if took, most := s.since(); took != 200 || most != 200 {
			t.Errorf("%d of 200, %d at once", took, most)
		}
		res, err := headracev1.NewLimitServiceClient(c.Raw()).ListLimits(t.Context(), &headracev1.ListLimitsRequest{})
		if err != nil || len(res.Limits) != 0 {
			t.Errorf("limits: %v, %v", res, err)
		}
	})
}

func make200() (ts []client.Task) {
	for range 200 {
		ts = append(ts, client.Task{Function: "f"})
	}
	return ts
}
