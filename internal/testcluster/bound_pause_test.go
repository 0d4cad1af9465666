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

// A limit holds while nodes are paused beyond their lease and come back, and while one is stopped: whoever coordinates it,
// and whatever a node that was away takes for true. All that was submitted ends.
func TestBoundOverPauses(t *testing.T) {
	three(t, func(t *testing.T, c *testcluster.Several, a, b, d *testcluster.OneNode) {
		s := &service{capacity: 10_000, until: map[task.ID]time.Time{}}
		d.Executor(100, "acme", func(x *executor.Executor) { raw(x, "pay", fn.Options{}, s.call) })
		ls := headracev1.NewLimitServiceClient(d.Raw())
		if _, err := ls.SetBound(t.Context(), &headracev1.SetBoundRequest{Tenant: "acme", Function: "pay", Concurrency: 7}); err != nil {
			t.Fatal(err)
		}
		cl := d.Client("acme")
		ids := submitMany(t, cl, "pay", 1000)
		for range 2 {
			ids = append(ids, submitMany(t, cl, "pay", 1000)...)
		}
		used := func(when string, least int) {
			t.Helper()
			took, most := s.since()
			t.Logf("%s: %d ran, %d at once", when, took, most)
			if most > 7 || took < least {
				t.Errorf("%s: %d ran, want at least %d; %d at once, want at most 7", when, took, least, most)
			}
		}
		faketime.Pass(3 * time.Second)
		used("on three nodes", 20)
		for _, n := range []*testcluster.OneNode{a, b} {
			n.Pause()
			faketime.Pass(8 * time.Second)
			used("while one was paused", 0)
			n.Resume()
			faketime.Pass(8 * time.Second)
			used("since it went on", 50)
		}
		b.Stop()
		faketime.Pass(6 * time.Second)
		used("while one was stopped", 50)
		for _, id := range ids {
			if info := wait(t, cl, id); info.State != task.Succeeded {
				t.Fatalf("%v", info)
			}
		}
		used("to the end", 0)
	})
}
