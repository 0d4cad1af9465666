package testcluster_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/headrace/headrace/internal/faketime"
	"github.com/headrace/headrace/internal/testcluster"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/store/memstore"
)

// Databases that take for ever to say how large they are hold back nobody who asks what is wrong: a node answers at once
// whatever its own do, and shows another's alarms within seconds, of a database that hangs too.
func TestAlarmsDoNotWaitForDatabases(t *testing.T) {
	testcluster.RunSeveral(t, 2, 2, func(t *testing.T, c *testcluster.Several) {
		sick, far := c.All()[0], c.All()[1]
		alarmed(t, far, sick) // it is known there
		hang := make(chan struct{})
		release := sync.OnceFunc(func() { close(hang) })
		defer release()
		sick.Fault(func(_ int, op string) memstore.Fault {
			switch op {
			case "disk bytes":
				<-hang
			case "epoch":
				return memstore.Fault{Err: errors.New("down")} // what the watch of a database asks
			}
			return memstore.Fault{}
		})
		faketime.Pass(5 * time.Second) // the next questions are under way, and the watch has looked
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for _, n := range []*testcluster.OneNode{sick, far} {
			res, err := headracev1.NewClusterServiceClient(n.Raw()).ListNodes(ctx, &headracev1.ListNodesRequest{})
			if err != nil {
				t.Fatalf("%s lists the nodes: %v", n.Addr, err)
			}
			for _, m := range res.Nodes {
				if m.Address != sick.Addr {
					continue
				}
				if len(m.Alarms) != 2 || m.Alarms[0].Kind != "store_down" || m.Alarms[1].Kind != "store_down" {
					t.Errorf("%s shows alarms %v of the sick node", n.Addr, m.Alarms)
				}
			}
		}
		sick.Fault(nil)
		release()
		alarmed(t, far, sick)
	})
}
