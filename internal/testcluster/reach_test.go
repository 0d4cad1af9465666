package testcluster_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/executor"
	"github.com/headrace/headrace/fn"
	"github.com/headrace/headrace/internal/testcluster"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/store/memstore"
	"github.com/headrace/headrace/task"
)

// placed returns a tenant's stored placement.
func placed(t *testing.T, n *testcluster.OneNode, tenant string) *headracev1.ExplainPlacementResponse {
	t.Helper()
	var res *headracev1.ExplainPlacementResponse
	until(t, 10*time.Second, "the placement is stored", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		var err error
		if res, err = headracev1.NewPlacementServiceClient(n.Raw()).ExplainPlacement(ctx, &headracev1.ExplainPlacementRequest{Tenant: tenant}); err != nil {
			t.Fatal(err)
		}
		return res.Placement.Stored
	})
	return res
}

// A database that is down does not concern the reads of tenants that have nothing there, and a look-up by client
// id only where it is the tenant's directory. Where it may hold tasks of the tenant the list goes without it, and says so.
func TestReadsWithADatabaseDown(t *testing.T) {
	testcluster.RunSeveral(t, 1, 6, func(t *testing.T, c *testcluster.Several) {
		a := c.All()[0]
		cl := a.Client("acme")
		for i := range 20 {
			submit(t, cl, client.Task{Function: "f", Options: client.Options{ID: fmt.Sprint("id-", i)}})
			submit(t, cl, client.Task{Function: "f"})
		}
		p := placed(t, a, "acme")
		var with, without int // indexes of databases
		for i := range 6 {
			name := fmt.Sprint("db", i+1)
			switch in := slices.ContainsFunc(p.Members, func(m *headracev1.PlacementMember) bool { return m.Database == name }); {
			case !in:
				without = i
			case name != p.Placement.DirectoryDatabase:
				with = i
			}
		}
		down := func(n int, err error) {
			a.Fault(func(database int, op string) memstore.Fault {
				if database == n && slices.Contains([]string{"list", "by client id", "get"}, op) {
					return memstore.Fault{Err: err}
				}
				return memstore.Fault{}
			})
		}
		list := func() (int, string) {
			page, err := cl.List(t.Context(), client.ListOptions{PageSize: 1000})
			if err != nil {
				t.Fatal(err)
			}
			return len(page.Tasks), strings.Join(page.Unreachable, " ")
		}
		unavailable := fmt.Errorf("down: %w", store.ErrUnavailable)
		down(without, unavailable)
		if n, missing := list(); n != 40 || missing != "" {
			t.Errorf("a database that is not the tenant's is down: %d tasks, without %q", n, missing)
		}
		down(with, unavailable)
		n, missing := list()
		if n == 0 || n >= 40 || missing != fmt.Sprint("database db", with+1) {
			t.Errorf("one of the tenant's databases is down: %d tasks, without %q", n, missing)
		}
		seen := 0
		for _, err := range cl.ListAll(t.Context(), client.ListOptions{PageSize: 7}) {
			if err != nil {
				if e, ok := err.(*client.IncompleteError); !ok || len(e.Unreachable) != 1 {
					t.Errorf("the end of all: %v", err)
				}
				break
			}
			seen++
		}
		if seen != n {
			t.Errorf("all pages have %d tasks, one has %d", seen, n)
		}
		for i := range 20 {
			if _, err := cl.Get(t.Context(), client.ByClientID(fmt.Sprint("id-", i))); err != nil {
				t.Errorf("look up id-%d: %v", i, err)
			}
		}
		if _, err := cl.Get(t.Context(), client.ByClientID("nobody")); err == nil || !strings.Contains(err.Error(), "no such task") {
			t.Errorf("an id that is not there: %v", err)
		}
	})
}

// What runs is listed from the owners that answer; the others are named.
func TestRunningWithAnOwnerDown(t *testing.T) {
	three(t, func(t *testing.T, c *testcluster.Several, a, b, d *testcluster.OneNode) {
		hold := make(chan struct{})
		a.Executor(50, "acme", func(x *executor.Executor) {
			executor.Handle(x, fn.Raw("held", fn.Options{}), func(ctx context.Context, _ []byte) ([]byte, error) {
				select {
				case <-hold:
					return nil, nil
				case <-ctx.Done():
					return nil, context.Cause(ctx)
				}
			})
		})
		cl := a.Client("acme")
		var ids []string
		for range 40 {
			ids = append(ids, submit(t, cl, client.Task{Function: "held"}))
		}
		list := func() (int, []string) {
			page, err := cl.List(t.Context(), client.ListOptions{State: task.Running, PageSize: 1000})
			if err != nil {
				t.Fatal(err)
			}
			return len(page.Tasks), page.Unreachable
		}
		until(t, 5*time.Second, "all run", func() bool { n, missing := list(); return n == 40 && len(missing) == 0 })
		victim, its := b, 0
		for _, n := range []*testcluster.OneNode{b, d} { // the tenant's shard may be elsewhere
			on := 0
			for _, id := range ids {
				info, err := cl.Get(t.Context(), client.ByID(id))
				if err != nil {
					t.Fatal(err)
				}
				if owner(t, a, info.Partition) == n.ID() {
					on++
				}
			}
			if on > its {
				victim, its = n, on
			}
		}
		if its == 0 || its == 40 {
			t.Skipf("of the tenant's tasks %d are on one of the other nodes", its)
		}
		victim.Kill()
		n, missing := list()
		if n != 40-its || len(missing) != 1 || missing[0] != "node "+victim.ID() {
			t.Errorf("%d running are listed, without %v", n, missing)
		}
		page, err := cl.List(t.Context(), client.ListOptions{PageSize: 1000})
		if err != nil || len(page.Tasks) != 40 || len(page.Unreachable) != 1 {
			t.Errorf("the stored ones: %d, without %v, %v", len(page.Tasks), page.Unreachable, err)
		}
		until(t, 20*time.Second, "all are listed again", func() bool { n, missing := list(); return n == 40 && len(missing) == 0 })
		close(hold)
		for _, id := range ids {
			wait(t, cl, id)
		}
	})
}
