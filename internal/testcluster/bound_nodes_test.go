package testcluster_test

import (
	"testing"
	"time"

	"github.com/headrace/headrace/executor"
	"github.com/headrace/headrace/fn"
	"github.com/headrace/headrace/internal/faketime"
	"github.com/headrace/headrace/internal/testcluster"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

// A user's limits hold over all nodes together, by the executors' own count: while a node dies and another joins. When
// all is well again, all of a limit is used. Pauses and a stop: TestBoundOverPauses.
func TestBoundOverNodes(t *testing.T) {
	three(t, func(t *testing.T, c *testcluster.Several, a, _, d *testcluster.OneNode) {
		s := &service{capacity: 10_000, until: map[task.ID]time.Time{}}
		slow := &service{capacity: 10_000, until: map[task.ID]time.Time{}}
		d.Executor(100, "acme", func(x *executor.Executor) {
			raw(x, "pay", fn.Options{}, s.call)
			raw(x, "mail", fn.Options{}, slow.call)
		})
		ls := headracev1.NewLimitServiceClient(d.Raw())
		for _, req := range []*headracev1.SetBoundRequest{{Function: "pay", Concurrency: 7}, {Function: "mail", Rate: 10, Burst: 2}} {
			req.Tenant = "acme"
			if _, err := ls.SetBound(t.Context(), req); err != nil {
				t.Fatal(err)
			}
		}
		faketime.Pass(time.Second)
		cl := d.Client("acme")
		for range 4 {
			submitMany(t, cl, "pay", 1000)
		}
		submitMany(t, cl, "mail", 600)
		used := func(when string, least int) {
			t.Helper()
			took, most := s.since()
			t.Logf("%s: %d ran, %d at once", when, took, most)
			if most > 7 || took < least {
				t.Errorf("%s: %d ran, want at least %d; %d at once, want at most 7", when, took, least, most)
			}
		}
		faketime.Pass(5 * time.Second)
		s.since()
		slow.since()
		faketime.Pass(5 * time.Second)
		used("on three nodes", 300)
		if took, _ := slow.since(); took < 45 || took > 55 {
			t.Errorf("%d starts in 5 s, want 50", took)
		}
		res, err := ls.ListBounds(t.Context(), &headracev1.ListBoundsRequest{Tenant: "acme"})
		if err != nil || len(res.Bounds) != 2 || len(res.Bounds[1].Nodes) != 3 {
			t.Fatalf("list: %v, %v", res, err)
		}
		shares := uint32(0)
		for _, n := range res.Bounds[1].Nodes {
			shares += n.Share
		}
		if shares > 7 || shares < 5 {
			t.Errorf("shares of 7: %v", res.Bounds[1])
		}
		a.Kill()
		faketime.Pass(12 * time.Second)
		used("while a node died", 50)
		faketime.Pass(5 * time.Second)
		used("without it", 300)
		c.Start()
		faketime.Pass(6 * time.Second)
		used("while one joined", 100)
	})
}
