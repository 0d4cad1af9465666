package testcluster_test

import (
	"context"
	"testing"
	"time"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/executor"
	"github.com/headrace/headrace/internal/faketime"
	"github.com/headrace/headrace/internal/testcluster"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/store/memstore"
	"github.com/headrace/headrace/task"
)

// A partition that drains and is empty is sealed: it has no owner any more, what ended there can be read, tasks go
// elsewhere, and it never opens again. One that takes tasks, has some, or is the last of its database is not
// sealed; one that got a task all the same drains again.
func TestClusterSeal(t *testing.T) {
	three(t, func(t *testing.T, c *testcluster.Several, a, b, d *testcluster.OneNode) {
		cl := a.Client("acme")
		var ids []string
		for range 40 {
			ids = append(ids, submit(t, cl, client.Task{Function: "upper"}))
		}
		first := get(t, cl, ids[0]).Partition
		const sealed, draining = headracev1.PartitionIntake_PARTITION_INTAKE_SEALED, headracev1.PartitionIntake_PARTITION_INTAKE_DRAINING
		if intake(t, a, sealed, first) == nil {
			t.Error("an active partition was sealed")
		}
		if err := intake(t, a, draining, first); err != nil {
			t.Fatal(err)
		}
		faketime.Pass(time.Second)
		if intake(t, b, sealed, first) == nil {
			t.Error("a partition with tasks was sealed")
		}
		d.Executor(50, "acme", func(x *executor.Executor) {
			executor.Handle(x, upper, func(_ context.Context, in string) (string, error) { return in, nil })
		})
		for _, id := range ids {
			wait(t, cl, id)
		}
		faketime.Pass(time.Second)
		if err := intake(t, b, sealed, first); err != nil {
			t.Fatal(err)
		}
		until(t, 10*time.Second, "nobody owns it", func() bool { return owner(t, d, first) == "" })
		if un := status(t, d).PartitionsWithoutOwner; len(un) != 0 {
			t.Errorf("without owner: %v", un)
		}
		for _, id := range ids {
			if info := get(t, b.Client("acme"), id); info.State != task.Succeeded {
				t.Errorf("%s: %v", id, info.State)
			}
		}
		for range 40 {
			if info := wait(t, cl, submit(t, cl, client.Task{Function: "upper"})); info.Partition == first {
				t.Fatal("a new task is in a sealed partition")
			}
		}
		if intake(t, a, headracev1.PartitionIntake_PARTITION_INTAKE_ACTIVE, first) == nil {
			t.Error("it opens again")
		}
		var same []uint32
		in := map[uint32]string{}
		for _, p := range partitions(t, a) {
			in[p.Id] = p.Database
		}
		for id, db := range in {
			if db == in[first] && id != first {
				same = append(same, id)
			}
		}
		if err := intake(t, a, draining, same...); err != nil {
			t.Fatal(err)
		}
		faketime.Pass(time.Second)
		if intake(t, a, sealed, same...) == nil {
			t.Error("the last partition of a database was sealed")
		}

		// A task that slipped in, as the last commit of an owner that had not heard yet.
		index := 0
		if in[first] == "db2" {
			index = 1
		}
		s := memstore.Open(c.Database(index))
		e, err := s.Epoch(t.Context(), first)
		if err != nil {
			t.Fatal(err)
		}
		if e, err = s.Acquire(t.Context(), first, e); err != nil {
			t.Fatal(err)
		}
		now := time.Now()
		late := &store.Task{ID: task.NewID(first, 1_000_000, 7), Tenant: "acme", Function: "upper", Band: task.Normal, Priority: task.DefaultPriority,
			CreatedAt: now, DueAt: now, FirstDueAt: now, State: task.Queued, Attempt: 1}
		rs, err := s.Commit(t.Context(), &store.Batch{At: now, Parts: []store.Part{{Partition: first, Epoch: e, Seq: 1_000_000,
			Changes: []store.Change{{Op: store.Insert, Task: late}}}}})
		if err != nil || rs[0].Err != nil {
			t.Fatal(err, rs)
		}
		// With the next change of the catalogue the leader looks.
		if err := intake(t, a, headracev1.PartitionIntake_PARTITION_INTAKE_ACTIVE, same[0]); err != nil {
			t.Fatal(err)
		}
		if info := wait(t, cl, late.ID.String()); info.State != task.Succeeded {
			t.Errorf("the late one: %v", info.State)
		}
	})
}

// A database is added while the cluster runs: the nodes are restarted one by one with a longer list. Its partitions
// come once every node knows it, and not before; submits go on all the time.
func TestClusterDatabaseIsAdded(t *testing.T) {
	testcluster.RunSeveral(t, 2, 1, func(t *testing.T, c *testcluster.Several) {
		a, b := c.All()[0], c.All()[1]
		balanced(t, 2, 4, a, b)
		b.Executor(50, "acme", func(x *executor.Executor) {
			executor.Handle(x, upper, func(_ context.Context, in string) (string, error) { return in, nil })
		})
		run := func(n *testcluster.OneNode) {
			t.Helper()
			cl := n.Client("acme")
			for range 5 {
				wait(t, cl, submit(t, cl, client.Task{Function: "upper"}))
			}
		}
		c.AddDatabase()
		a.Stop()
		run(b)
		a = c.Start()
		balanced(t, 2, 4, a, b)
		faketime.Pass(30 * time.Second)
		if n := len(partitions(t, a)); n != 4 {
			t.Fatalf("%d partitions while a node does not know the database", n)
		}
		run(a)
		d := c.Start()
		b.Stop()
		balanced(t, 4, 8, a, d)
		if n := of(databases(t, a), "db2"); len(n) != 4 {
			t.Errorf("partitions of the new database: %v", n)
		}
		run(d)
	})
}
