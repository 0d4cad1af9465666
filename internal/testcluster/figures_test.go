package testcluster_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/executor"
	"github.com/headrace/headrace/fn"
	"github.com/headrace/headrace/internal/faketime"
	"github.com/headrace/headrace/internal/testcluster"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
)

// Each node tells the same of all partitions and nodes, and a submit's answer says when a task starts also where
// another node owns it. Of a node that is not heard of any more nobody makes anything up.
func TestFiguresAreTheClusters(t *testing.T) {
	three(t, func(t *testing.T, c *testcluster.Several, a, b, d *testcluster.OneNode) {
		cl := a.Client("acme")
		for range 60 {
			submit(t, cl, client.Task{Function: "nobody"})
		}
		faketime.Pass(2 * time.Second) // of the bubble
		figures := func(n *testcluster.OneNode) (text string, waiting int64) {
			for _, p := range partitions(t, n) {
				text += fmt.Sprintf("%d at %d on %s: %s, %d %d; ", p.Id, p.Epoch, p.NodeId, p.State, p.Backlog, p.Running)
				waiting += p.Backlog
			}
			return text, waiting
		}
		want, waiting := figures(a)
		if waiting != 60 {
			t.Errorf("%d wait", waiting)
		}
		for _, n := range []*testcluster.OneNode{b, d} {
			if got, _ := figures(n); got != want {
				t.Errorf("one node tells\n%s\nanother\n%s", want, got)
			}
		}
		a.Executor(10, "acme", func(x *executor.Executor) {
			executor.Handle(x, fn.Raw("f", fn.Options{}), func(_ context.Context, in []byte) ([]byte, error) { return in, nil })
		})
		api := headracev1.NewTaskServiceClient(a.Raw())
		known := map[string]int{} // answers with an estimate, by owner
		one := func() (who string, ok bool) {
			res, err := api.Submit(t.Context(), &headracev1.SubmitRequest{Tenant: "acme", Task: &headracev1.TaskSpec{Function: "f"}})
			if err != nil {
				t.Fatal(err)
			}
			info := wait(t, cl, res.Id)
			if res.EtaMax != nil && (res.EtaMin.AsDuration() != 0 || res.EtaMax.AsDuration() < 100*time.Millisecond) {
				t.Errorf("between %v and %v", res.EtaMin.AsDuration(), res.EtaMax.AsDuration())
			}
			return owner(t, a, info.Partition), res.EtaMax != nil
		}
		for range 200 {
			if who, ok := one(); ok {
				known[who]++
			}
			faketime.Pass(50 * time.Millisecond)
		}
		delete(known, a.ID())
		if len(known) == 0 {
			t.Errorf("no estimate for a task on another node")
		}
	})
}
