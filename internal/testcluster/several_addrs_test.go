package testcluster_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/executor"
	"github.com/headrace/headrace/internal/testcluster"
)

// With the addresses of all nodes nobody needs a certain one: an executor starts although the first one named is
// dead, and a client goes on within moments when the node dies that it talks to.
func TestSeveralAddresses(t *testing.T) {
	three(t, func(t *testing.T, c *testcluster.Several, a, b, d *testcluster.OneNode) {
		d.Kill()
		r := &ran{}
		x := through(t, &cable{dial: c.Dial}, fmt.Sprintf("%s,%s", d.Addr, a.Addr), func(x *executor.Executor) {
			executor.Handle(x, upper, func(_ context.Context, in string) (string, error) { r.note(in); return in, nil })
		})
		until(t, 15*time.Second, "sessions to both that live", func() bool { return x.Stats().Sessions == 2 })
		cl, err := client.Dial(client.Config{Addr: fmt.Sprintf("%s,%s,%s", a.Addr, b.Addr, d.Addr), Tenant: "acme", Dialer: c.Dial})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(cl.Close)
		var ids []string
		slowest := time.Duration(0)
		for i := range 60 {
			if i == 30 {
				b.Kill()
			}
			began := time.Now()
			ids = append(ids, submit(t, cl, client.Task{Function: "upper", Payload: fmt.Appendf(nil, "%d", i)}))
			slowest = max(slowest, time.Since(began))
		}
		// The owner of both candidates may be the dead one: its lease runs out first.
		if slowest > 9*time.Second {
			t.Errorf("a submit took %v", slowest)
		}
		for i, id := range ids {
			if info := wait(t, cl, id); !info.Succeeded() || r.of(fmt.Sprint(i)) != 1 {
				t.Errorf("task %d: %v, started %d times", i, info.State, r.of(fmt.Sprint(i)))
			}
		}
	})
}
