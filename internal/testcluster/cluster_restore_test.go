package testcluster_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/executor"
	"github.com/headrace/headrace/fn"
	"github.com/headrace/headrace/internal/faketime"
	"github.com/headrace/headrace/internal/testcluster"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/shard/memshard"
	"github.com/headrace/headrace/store/memstore"
	"github.com/headrace/headrace/task"
)

func status(t *testing.T, n *testcluster.OneNode) *headracev1.GetClusterStatusResponse {
	t.Helper()
	res, err := headracev1.NewClusterServiceClient(n.Raw()).GetClusterStatus(t.Context(), &headracev1.GetClusterStatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func accept(t *testing.T, n *testcluster.OneNode, source headracev1.RestoreSource) {
	t.Helper()
	if _, err := headracev1.NewClusterServiceClient(n.Raw()).AcceptRestore(t.Context(), &headracev1.AcceptRestoreRequest{Source: source}); err != nil {
		t.Fatal(err)
	}
}

func intake(t *testing.T, n *testcluster.OneNode, intake headracev1.PartitionIntake, ids ...uint32) error {
	t.Helper()
	_, err := headracev1.NewClusterServiceClient(n.Raw()).SetPartitionIntake(t.Context(), &headracev1.SetPartitionIntakeRequest{Partitions: ids, Intake: intake})
	return err
}

func draining(t *testing.T, n *testcluster.OneNode) (ids []uint32) {
	t.Helper()
	for _, p := range partitions(t, n) {
		if p.Intake == headracev1.PartitionIntake_PARTITION_INTAKE_DRAINING {
			ids = append(ids, p.Id)
		}
	}
	return ids
}

// The registry is restored from an older snapshot, or lost. Nothing is pushed until somebody accepts that, a running
// task ends, submits are stored where there are owners; then everything runs, every partition has an owner, and
// from the copies also the newest configuration is there.
func TestClusterRegistryRestored(t *testing.T) {
	for name, tt := range map[string]struct {
		lost   bool
		source headracev1.RestoreSource
	}{
		"snapshot, accepted": {false, headracev1.RestoreSource_RESTORE_SOURCE_REGISTRY},
		"snapshot, rebuilt":  {false, headracev1.RestoreSource_RESTORE_SOURCE_DATABASE},
		"lost, rebuilt":      {true, headracev1.RestoreSource_RESTORE_SOURCE_DATABASE},
		"lost, begun anew":   {true, headracev1.RestoreSource_RESTORE_SOURCE_REGISTRY},
	} {
		t.Run(name, func(t *testing.T) {
			three(t, func(t *testing.T, c *testcluster.Several, a, b, d *testcluster.OneNode) {
				var starts ran
				end := make(chan struct{})
				d.Executor(100, "acme", func(x *executor.Executor) {
					executor.Handle(x, upper, func(_ context.Context, in string) (string, error) {
						starts.note(in)
						if in == "long" {
							<-end
						}
						return in + "!", nil
					})
					executor.Handle(x, fn.DefineCodec("paused", fn.Text(), fn.Text(), fn.Options{}), func(_ context.Context, in string) (string, error) {
						starts.note(in)
						return in, nil
					})
				})
				cl := a.Client("acme")
				wait(t, cl, submit(t, cl, client.Task{Function: "upper", Payload: []byte("one"), Options: client.Options{ID: "order-1"}}))
				long := submit(t, cl, client.Task{Function: "upper", Payload: []byte("long")})
				before := explain(t, a, "acme").Placement
				faketime.Pass(3 * time.Second)
				var backup *memshard.Backup
				if !tt.lost {
					backup = c.Registry().Backup()
				}
				if err := intake(t, b, headracev1.PartitionIntake_PARTITION_INTAKE_DRAINING, 3); err != nil {
					t.Fatal(err)
				}
				if _, err := headracev1.NewPauseServiceClient(b.Raw()).Pause(t.Context(), &headracev1.PauseRequest{Tenant: "acme", Function: "paused"}); err != nil {
					t.Fatal(err)
				}
				paused := submit(t, cl, client.Task{Function: "paused", Payload: []byte("paused")})
				faketime.Pass(3 * time.Second)
				c.Registry().Restore(backup)
				for _, n := range []*testcluster.OneNode{a, b, d} {
					until(t, 5*time.Second, "it is held", func() bool { return status(t, n).Held != "" })
					alarmed(t, a, n, "registry_behind")
				}

				var ids []string
				if !tt.lost { // else nobody knows the partitions
					balanced(t, 2, 8, a, b, d)
					for i := range 20 {
						ids = append(ids, submit(t, cl, client.Task{Function: "upper", Payload: fmt.Appendf(nil, "held-%d", i)}))
					}
					faketime.Pass(30 * time.Second)
					if n := starts.of("held-0"); n != 0 {
						t.Error("a task was pushed while all are held")
					}
					if info := get(t, cl, ids[0]); !strings.Contains(info.WaitReason, "accept-restore") {
						t.Errorf("it waits because %q", info.WaitReason)
					}
				}
				if err := intake(t, b, headracev1.PartitionIntake_PARTITION_INTAKE_DRAINING, 4); err == nil {
					t.Error("the catalogue was changed meanwhile")
				}
				close(end)
				faketime.Pass(5 * time.Second)

				accept(t, b, tt.source)
				balanced(t, 2, 8, a, b, d)
				for _, n := range []*testcluster.OneNode{a, b, d} {
					until(t, 3*time.Second, "it goes on", func() bool { return status(t, n).Held == "" })
					alarmed(t, a, n)
				}
				for i, id := range ids {
					if info := wait(t, cl, id); info.State != task.Succeeded || starts.of(fmt.Sprint("held-", i)) != 1 {
						t.Errorf("held %d: %v, %d starts", i, info.State, starts.of(fmt.Sprint("held-", i)))
					}
				}
				if info := wait(t, cl, long); info.State != task.Succeeded || starts.of("long") != 1 {
					t.Errorf("the long one: %v, %d starts", info.State, starts.of("long"))
				}
				if got, want := fmt.Sprint(draining(t, a)), map[bool]string{true: "[3]", false: "[]"}[tt.source == headracev1.RestoreSource_RESTORE_SOURCE_DATABASE]; got != want {
					t.Errorf("draining: %s, want %s", got, want)
				}
				// The rule was acknowledged: it is in force, unless somebody has said that it shall be forgotten.
				faketime.Pass(20 * time.Second)
				if forgotten := tt.source == headracev1.RestoreSource_RESTORE_SOURCE_REGISTRY; (starts.of("paused") == 1) != forgotten {
					t.Errorf("the paused task: %d starts, waits because %q", starts.of("paused"), get(t, cl, paused).WaitReason)
				}
				if !(tt.lost && tt.source == headracev1.RestoreSource_RESTORE_SOURCE_REGISTRY) {
					after := explain(t, d, "acme").Placement
					if !after.Stored || after.DirectoryDatabase != before.DirectoryDatabase || fmt.Sprint(after.Partitions) != fmt.Sprint(before.Partitions) &&
						tt.source == headracev1.RestoreSource_RESTORE_SOURCE_REGISTRY {
						t.Errorf("placement %v, was %v", after, before)
					}
					res, err := cl.Submit(t.Context(), client.Task{Function: "upper", Payload: []byte("one"), Options: client.Options{ID: "order-1"}})
					if err != nil || !res.Deduplicated {
						t.Errorf("the client id is free again: %+v, %v", res, err)
					}
				}
				wait(t, cl, submit(t, cl, client.Task{Function: "upper", Payload: []byte("two"), Options: client.Options{ID: "order-2"}}))
				until(t, 5*time.Second, "the databases know", func() bool {
					s := status(t, a)
					for i, m := range s.Databases {
						if m.SeenVersion != s.RegistryVersion || i == 0 && m.CopiedVersion != s.RegistryVersion {
							return false
						}
					}
					return len(s.PartitionsWithoutOwner) == 0
				})
			})
		})
	}
}

// A database is restored from an older backup while its owners live. What the backup lacks is lost; what it has runs,
// at least once; no report of the lost future is believed, every partition has an owner at an epoch above all
// that were, and new tasks run once.
func TestClusterDatabaseRestored(t *testing.T) {
	three(t, func(t *testing.T, c *testcluster.Several, a, b, d *testcluster.OneNode) {
		var starts ran
		end := make(chan struct{})
		work := fn.DefineCodec("work", fn.Text(), fn.Text(), fn.Options{})
		d.Executor(100, "acme", func(x *executor.Executor) {
			executor.Handle(x, work, func(ctx context.Context, in string) (string, error) {
				starts.note(in)
				if strings.HasPrefix(in, "long") {
					select {
					case <-end:
					case <-ctx.Done():
						return "", context.Cause(ctx)
					}
				}
				return in, nil
			})
		})
		cl := a.Client("acme")
		put := func(in string) string {
			return submit(t, cl, client.Task{Function: "work", Payload: []byte(in), Options: client.Options{ID: in}})
		}
		kept := map[string]string{}
		for i := range 10 {
			in := fmt.Sprint("long-kept-", i)
			kept[in] = put(in)
		}
		faketime.Pass(3 * time.Second) // they are recorded
		backup := c.Database(0).Clone()
		other := c.Database(1).Clone()
		was := epochs(t, a)
		// Afterwards the partitions change owner twice, and tasks come that the backup does not know.
		b.Stop()
		balanced(t, 4, 8, a, d)
		e := c.Start()
		balanced(t, 2, 8, a, d, e)
		lost := map[string]string{}
		for i := range 10 {
			in := fmt.Sprint("long-lost-", i)
			lost[in] = put(in)
		}
		faketime.Pass(3 * time.Second)
		top := epochs(t, a)
		c.Database(0).Restore(backup)
		c.Database(1).Restore(other)

		until(t, 30*time.Second, "all partitions are owned again, none at an epoch that was given before", func() bool {
			for _, p := range partitions(t, a) {
				if p.State != "open" || p.Epoch < top[p.Id] || p.Epoch == top[p.Id] && was[p.Id] != top[p.Id] {
					return false
				}
			}
			return true
		})
		if fmt.Sprint(was) == fmt.Sprint(top) {
			t.Error("no epoch went back, the test shows nothing")
		}
		for name, id := range lost {
			if _, err := cl.Get(t.Context(), client.ByID(id)); !errors.Is(err, client.ErrNotFound) {
				t.Errorf("%s, which the backup does not have: %v", name, err)
			}
		}
		again := put("long-lost-0") // its id is free, its number is given again
		close(end)
		for name, id := range kept {
			if info := wait(t, cl, id); info.State != task.Succeeded {
				t.Errorf("%s: %v", name, info.State)
			}
		}
		if info := wait(t, cl, again); info.State != task.Succeeded {
			t.Errorf("the one that was submitted again: %v", info.State)
		}
		for i := range 30 {
			name := fmt.Sprint("new-", i)
			if info := wait(t, cl, put(name)); info.State != task.Succeeded || starts.of(name) != 1 {
				t.Errorf("%s: %v, %d starts", name, info.State, starts.of(name))
			}
		}
		until(t, time.Minute, "nothing is held by anybody", func() bool {
			left := int64(0)
			for _, p := range partitions(t, a) {
				left += p.Backlog + p.Scheduled + p.Running
			}
			return left == 0
		})
	})
}

// The same without any change of an owner since the backup: the epoch in it is the living owner's, which must not go on
// with what it has in memory.
func TestClusterDatabaseRestoredUnderItsOwner(t *testing.T) {
	three(t, func(t *testing.T, c *testcluster.Several, a, b, d *testcluster.OneNode) {
		end := make(chan struct{})
		d.Executor(100, "acme", func(x *executor.Executor) {
			executor.Handle(x, upper, func(ctx context.Context, in string) (string, error) {
				select {
				case <-end:
				case <-ctx.Done():
					return "", context.Cause(ctx)
				}
				return in, nil
			})
		})
		cl := b.Client("acme")
		put := func(in string) string {
			return submit(t, cl, client.Task{Function: "upper", Payload: []byte(in), Options: client.Options{ID: in}})
		}
		put("kept")
		faketime.Pass(3 * time.Second)
		backups := []*memstore.Data{c.Database(0).Clone(), c.Database(1).Clone()}
		lost := map[string]string{}
		for i := range 10 {
			in := fmt.Sprint("lost-", i)
			lost[in] = put(in)
		}
		faketime.Pass(200 * time.Millisecond) // they run, and are not recorded yet
		for i, data := range backups {
			c.Database(i).Restore(data)
		}
		close(end)
		faketime.Pass(10 * time.Second)
		for in, id := range lost {
			if info, err := cl.Get(t.Context(), client.ByID(id)); !errors.Is(err, client.ErrNotFound) {
				t.Errorf("%s, which the backup does not have: %+v, %v", in, info, err)
			}
			again := put(in)
			if info := wait(t, cl, again); again == id || info.State != task.Succeeded {
				t.Errorf("%s again: %v", in, info.State)
			}
		}
		if info := wait(t, cl, put("kept")); info.State != task.Succeeded {
			t.Errorf("the one that was kept: %v", info.State)
		}
	})
}
