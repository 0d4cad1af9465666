package testcluster_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/executor"
	"github.com/headrace/headrace/internal/faketime"
	"github.com/headrace/headrace/internal/testcluster"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/store/memstore"
)

// What a cluster with a lease of 5 s promises: a node that is cut off from a database is found out within detected, and its
// partitions are served by others takenOver later.
const (
	detected  = 5*time.Second + 2*time.Second + 2500*time.Millisecond // the lease, two looks, and half a lease for the leader to be sure
	takenOver = 3 * time.Second
)

// openAt is the owner of each partition that is open, as a node sees it.
func openAt(t *testing.T, n *testcluster.OneNode) map[uint32]string {
	t.Helper()
	m := map[uint32]string{}
	for _, p := range partitions(t, n) {
		if p.State == "open" {
			m[p.Id] = p.NodeId
		}
	}
	return m
}

// A node that silently loses its way to the databases, or is refused, and keeps that to etcd and the others, loses its partitions to those who
// reach them, in time. It gets them back once the databases have answered for a while.
func TestNodeCutOffFromDatabases(t *testing.T) {
	for _, how := range []string{"refused", "silent", "of one"} {
		t.Run(how, func(t *testing.T) {
			three(t, func(t *testing.T, c *testcluster.Several, a, b, d *testcluster.OneNode) {
				a.Executor(50, "acme", func(x *executor.Executor) {
					executor.Handle(x, upper, func(_ context.Context, in string) (string, error) { return in, nil })
				})
				before := openAt(t, a)
				was := shares(t, a)[b.ID()]
				heal := make(chan struct{})
				healNow := sync.OnceFunc(func() { close(heal) })
				t.Cleanup(healNow)
				began := time.Now()
				b.Fault(func(database int, op string) memstore.Fault {
					switch {
					case how == "silent":
						<-heal
					case how == "refused", database == 1:
						return memstore.Fault{Err: fmt.Errorf("no route to it: %w", store.ErrUnavailable)}
					}
					return memstore.Fault{}
				})
				in := databases(t, a)
				gone := func(p uint32) bool { return before[p] == b.ID() && (how != "of one" || in[p] == "db2") }
				until(t, detected+takenOver, "others serve what the node can't", func() bool {
					now := openAt(t, a)
					for p := range before {
						if now[p] == "" || gone(p) && now[p] == b.ID() || !gone(p) && how != "of one" && now[p] != before[p] {
							return false
						}
					}
					return true
				})
				t.Logf("%s: %d partitions of %d moved after %v", how, was-shares(t, a)[b.ID()], was, time.Since(began))
				if how != "of one" && shares(t, a)[b.ID()] != 0 {
					t.Errorf("the node has %d partitions yet", shares(t, a)[b.ID()])
				}
				for i, n := range []*testcluster.OneNode{a, b, d} { // any node takes a submit
					for range 5 {
						submit(t, n.Client("acme"), client.Task{Function: "upper", Payload: fmt.Append(nil, i)})
					}
				}
				cl := a.Client("acme")
				until(t, 5*time.Second, "all of them are run", func() bool {
					page, err := cl.List(t.Context(), client.ListOptions{})
					if err != nil {
						t.Fatal(err)
					}
					return len(page.Tasks) == 15 && !slices.ContainsFunc(page.Tasks, func(i *client.TaskInfo) bool { return !i.Succeeded() })
				})

				rest := openAt(t, a)
				healNow()
				b.Fault(nil)
				healed := time.Now()
				faketime.Pass(8 * time.Second)
				if now := openAt(t, a); !maps.Equal(now, rest) {
					t.Errorf("8 s after it healed: %v, before %v", now, rest)
				}
				balanced(t, 2, 8, a, b, d)
				t.Logf("%s: it has its share again after %v", how, time.Since(healed))
			})
		})
	}
}

// A database that dies is out of everybody's reach: no partition goes anywhere, while it is away and when it is back.
func TestDeadDatabaseMovesNothing(t *testing.T) {
	three(t, func(t *testing.T, c *testcluster.Several, a, b, d *testcluster.OneNode) {
		before := openAt(t, a)
		for i, n := range []*testcluster.OneNode{a, b, d} {
			n.Fault(func(database int, op string) memstore.Fault {
				if database == 0 {
					return memstore.Fault{Err: errors.New("connection refused")}
				}
				return memstore.Fault{}
			})
			faketime.Pass(time.Duration(i) * 300 * time.Millisecond) // not all notice at once
		}
		faketime.Pass(time.Minute)
		for i, n := range []*testcluster.OneNode{d, a, b} {
			n.Fault(nil)
			faketime.Pass(time.Duration(i) * 500 * time.Millisecond)
		}
		for _, wait := range []time.Duration{6 * time.Second, 30 * time.Second} {
			faketime.Pass(wait)
			if now := openAt(t, a); !maps.Equal(now, before) {
				t.Errorf("%v, before %v", now, before)
			}
		}
	})
}
