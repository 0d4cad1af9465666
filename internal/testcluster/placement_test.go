package testcluster_test

import (
	"context"
	"fmt"
	"slices"
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

// move changes a tenant's placement.
func move(t *testing.T, n *testcluster.OneNode, req *headracev1.MovePlacementRequest) *headracev1.Placement {
	t.Helper()
	res, err := headracev1.NewPlacementServiceClient(n.Raw()).MovePlacement(t.Context(), req)
	if err != nil {
		t.Fatalf("move %v: %v", req, err)
	}
	return res.Placement
}

func explain(t *testing.T, n *testcluster.OneNode, tenant string) *headracev1.ExplainPlacementResponse {
	t.Helper()
	res, err := headracev1.NewPlacementServiceClient(n.Raw()).ExplainPlacement(t.Context(), &headracev1.ExplainPlacementRequest{Tenant: tenant})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// databases says which database holds each of the eight partitions.
func databases(t *testing.T, n *testcluster.OneNode) map[uint32]string {
	t.Helper()
	var all []uint32
	for _, p := range partitions(t, n) {
		all = append(all, p.Id)
	}
	move(t, n, &headracev1.MovePlacementRequest{Tenant: "everywhere", Partitions: all})
	in := map[uint32]string{}
	for _, m := range explain(t, n, "everywhere").Members {
		in[m.Partition] = m.Database
	}
	return in
}

// of returns the partitions of a database.
func of(in map[uint32]string, database string) (list []uint32) {
	for p, db := range in {
		if db == database {
			list = append(list, p)
		}
	}
	slices.Sort(list)
	return list
}

// A tenant is moved back and forth between two databases, through two nodes, while both of them take its
// tasks: nothing is lost, each client id that both nodes get at once is accepted once, its tasks are all
// in one database, and what comes after a move goes where it says.
func TestMoveUnderLoad(t *testing.T) {
	testcluster.RunSeveral(t, 2, 2, func(t *testing.T, c *testcluster.Several) {
		nodes := c.All()
		in := databases(t, nodes[0])
		one, two := of(in, "db1"), of(in, "db2")
		runs := &journal{}
		nodes[0].Executor(16, "acme", func(x *executor.Executor) {
			raw(x, "f", fn.Options{}, func(_ context.Context, tk *executor.Task) ([]byte, error) {
				runs.add(string(tk.Payload))
				return nil, nil
			})
		})

		const each = 300
		type told struct {
			id    string
			dedup bool
		}
		var mu sync.Mutex // guards what follows
		answers := map[string][]told{}
		var wg sync.WaitGroup
		for s := range 4 { // two of each node; all send the same client ids, and plain tasks of their own
			cl := nodes[s%2].Client("acme")
			wg.Go(func() {
				for i := range each {
					for name, id := range map[string]string{fmt.Sprint("id-", i): fmt.Sprint("id-", i), fmt.Sprint("plain-", s, "-", i): ""} {
						tk := client.Task{Function: "f", Payload: []byte(name)}
						tk.ID = id
						got, err := cl.Submit(t.Context(), tk)
						if err != nil {
							t.Errorf("submit %s: %v", name, err)
							return
						}
						mu.Lock()
						answers[name] = append(answers[name], told{got.ID, got.Deduplicated})
						mu.Unlock()
					}
					faketime.Pass(time.Duration(1+(i+s)%7) * time.Millisecond) // of the bubble
				}
			})
		}
		for i := range 12 {
			faketime.Pass(90 * time.Millisecond)
			req := &headracev1.MovePlacementRequest{Tenant: "acme", Note: fmt.Sprint("move ", i)}
			switch i % 3 {
			case 0:
				req.Partitions = two
			case 1:
				req.Partitions = one
			default:
				req.K = uint32(1 + i%5)
			}
			move(t, nodes[i%2], req)
		}
		wg.Wait()

		cl := nodes[0].Client("acme")
		home := explain(t, nodes[1], "acme").Placement.DirectoryDatabase
		used := map[string]int{}
		for name, list := range answers {
			first := 0
			for _, a := range list {
				if a.id != list[0].id {
					t.Fatalf("%s is %s and %s", name, a.id, list[0].id)
				}
				if !a.dedup {
					first++
				}
			}
			if first != 1 {
				t.Errorf("%s was accepted %d times", name, first)
			}
			info := wait(t, cl, list[0].id)
			if info.State != task.Succeeded {
				t.Errorf("%s ended %v", name, info.State)
			}
			db := in[info.Partition]
			if name[0] == 'i' && db != home {
				t.Errorf("%s is in %s, client ids are in %s", name, db, home)
			}
			used[db]++
		}
		if len(answers) != 5*each || used["db1"] < each/2 || used["db2"] < each/2 {
			t.Errorf("%d tasks, by database %v", len(answers), used)
		}
		did := runs.texts()
		if len(did) != len(answers) || len(slices.Compact(slices.Sorted(slices.Values(did)))) != len(answers) {
			t.Errorf("%d runs of %d tasks", len(did), len(answers))
		}

		// What comes after a move goes where it says, whatever node takes it.
		p := move(t, nodes[0], &headracev1.MovePlacementRequest{Tenant: "acme", Partitions: two[:2]})
		faketime.Pass(100 * time.Millisecond)
		for i := range 40 {
			id := submit(t, nodes[i%2].Client("acme"), client.Task{Function: "f", Payload: []byte("after")})
			if at := get(t, cl, id).Partition; !slices.Contains(p.Partitions, at) {
				t.Fatalf("a task went to %d, not to %v", at, p.Partitions)
			}
		}
		ev, err := headracev1.NewPlacementServiceClient(nodes[1].Raw()).ListPlacementEvents(t.Context(), &headracev1.ListPlacementEventsRequest{})
		if err != nil || len(ev.Events) != 14 || ev.Events[1].Note != "move 11" {
			t.Errorf("events %v, %v", ev, err)
		}
	})
}

// A whole database drains under load: new tasks go to the other one, but those with client ids of the tenants
// whose ids it holds, so that none is accepted twice; what it held is done, and all hear why.
func TestADatabaseDrains(t *testing.T) {
	testcluster.RunSeveral(t, 2, 2, func(t *testing.T, c *testcluster.Several) {
		nodes := c.All()
		in := databases(t, nodes[0])
		drained := of(in, "db2")
		homes := map[string]int{}
		first := map[string]string{}
		var tenants []string
		for i := range 40 { // salts are drawn: of twelve tenants one in 160 times all but one have the same home
			if i >= 12 && min(homes["db1"], homes["db2"]) >= 2 {
				break
			}
			tenant := fmt.Sprint("tenant-", i)
			tenants = append(tenants, tenant)
			cl := nodes[i%2].Client(tenant)
			for j := range 20 {
				tk := client.Task{Function: "f"}
				if j%2 == 0 {
					tk.ID = fmt.Sprint("id-", j)
				}
				id := submit(t, cl, tk)
				if tk.ID != "" {
					first[tenant+tk.ID] = id
				}
			}
			homes[explain(t, nodes[0], tenant).Placement.DirectoryDatabase]++
		}
		if homes["db1"] < 2 || homes["db2"] < 2 {
			t.Fatalf("directory databases %v", homes)
		}
		if _, err := headracev1.NewClusterServiceClient(nodes[1].Raw()).SetPartitionIntake(t.Context(), &headracev1.SetPartitionIntakeRequest{
			Partitions: drained, Intake: headracev1.PartitionIntake_PARTITION_INTAKE_DRAINING}); err != nil {
			t.Fatal(err)
		}
		faketime.Pass(200 * time.Millisecond) // of the bubble: the other node hears of it
		for i, tenant := range tenants {
			cl := nodes[(i+1)%2].Client(tenant)
			home := explain(t, nodes[i%2], tenant).Placement.DirectoryDatabase
			for j := range 30 {
				tk := client.Task{Function: "f"}
				if j%3 == 0 {
					tk.ID = fmt.Sprint("id-", j)
				}
				id := submit(t, cl, tk)
				want := "db1"
				if tk.ID != "" {
					want = home
				}
				if db := in[get(t, cl, id).Partition]; db != want {
					t.Fatalf("%s: task %d (%q) went to %s, want %s", tenant, j, tk.ID, db, want)
				}
				if was := first[tenant+tk.ID]; was != "" && was != id {
					t.Errorf("%s: %s was accepted twice", tenant, tk.ID)
				}
			}
			nodes[0].Executor(4, tenant, func(x *executor.Executor) {
				raw(x, "f", fn.Options{}, func(context.Context, *executor.Task) ([]byte, error) { return nil, nil })
			})
		}
		until(t, time.Minute, "everything is done", func() bool {
			left := int64(0)
			for _, p := range partitions(t, nodes[0]) {
				left += p.Backlog + p.Scheduled + p.Running
			}
			return left == 0
		})
		until(t, 5*time.Second, "all hear why", func() bool { // one write for each, ten a second
			ev, err := headracev1.NewPlacementServiceClient(nodes[0].Raw()).ListPlacementEvents(t.Context(), &headracev1.ListPlacementEventsRequest{})
			if err != nil {
				t.Fatal(err)
			}
			moved := map[string]bool{}
			for _, e := range ev.Events {
				if e.Reason == headracev1.PlacementReason_PLACEMENT_REASON_DRAINED {
					moved[e.Tenant] = true
				}
			}
			return len(moved) == len(tenants)
		})
	})
}

// A submit whose answer was lost is sent again after the tenant has moved: it is the same tasks.
func TestRetryAfterAMove(t *testing.T) {
	testcluster.RunSeveral(t, 2, 2, func(t *testing.T, c *testcluster.Several) {
		nodes := c.All()
		in := databases(t, nodes[0])
		for i := range 20 {
			tenant := fmt.Sprint("tenant-", i)
			req := &headracev1.SubmitBatchRequest{Tenant: tenant, RequestId: fmt.Appendf(nil, "request-%08d", i),
				Tasks: []*headracev1.TaskSpec{{Function: "f"}, {Function: "f"}}}
			first, err := headracev1.NewTaskServiceClient(nodes[i%2].Raw()).SubmitBatch(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			was := get(t, nodes[0].Client(tenant), first.Outcomes[0].Id).Partition
			var to []uint32
			for p := range in {
				if p != was && in[p] != in[was] {
					to = append(to, p)
				}
			}
			slices.Sort(to)
			p := move(t, nodes[0], &headracev1.MovePlacementRequest{Tenant: tenant, Partitions: to})
			if i%4 == 3 { // its members are all still there
				move(t, nodes[0], &headracev1.MovePlacementRequest{Tenant: tenant, K: uint32(len(p.Partitions)) + 1})
				continue
			}
			faketime.Pass(100 * time.Millisecond)
			req.Retry = true
			again, err := headracev1.NewTaskServiceClient(nodes[(i+1)%2].Raw()).SubmitBatch(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			for j, o := range again.Outcomes {
				if o.Id != first.Outcomes[j].Id {
					t.Errorf("%s: %s was stored again as %s", tenant, first.Outcomes[j].Id, o.Id)
				}
			}
		}
	})
}
