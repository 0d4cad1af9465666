package testcluster_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/internal/testcluster"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/store/memstore"
)

// Any node explains any task: it asks the owner, and says so if there is none, or if it or the database does not answer.
func TestExplainAcrossNodes(t *testing.T) {
	testcluster.RunSeveral(t, 2, 1, func(t *testing.T, c *testcluster.Several) {
		a, b := c.All()[0], c.All()[1]
		all := len(partitions(t, a))
		balanced(t, 1, all, a, b)
		cl := a.Client("acme")
		var ids []string
		for range 20 {
			r, err := cl.Submit(t.Context(), client.Task{Function: "nobody"})
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, r.ID)
		}
		reasons := func(of *client.Client) map[string]int {
			t.Helper()
			m := map[string]int{}
			for _, id := range ids {
				e, err := of.Explain(t.Context(), client.ByID(id))
				if err != nil {
					t.Fatal(err)
				}
				if e.Reason == "no_executor" && (!e.Queued || e.Task.Function != "nobody" || e.ETAKnown || !strings.HasPrefix(e.Text, "no executor has offered nobody of acme")) {
					t.Errorf("%+v", e)
				}
				m[e.Reason]++
			}
			return m
		}
		for _, n := range []*testcluster.OneNode{a, b} {
			if m := reasons(n.Client("acme")); m["no_executor"] != len(ids) {
				t.Fatalf("node %s says %v", n.ID(), m)
			}
		}
		if _, err := b.Client("other").Explain(t.Context(), client.ByID(ids[0])); !errors.Is(err, client.ErrNotFound) {
			t.Errorf("of another tenant: %v", err)
		}
		b.Kill()
		if m := reasons(cl); m["no_owner"]+m["owner_unreachable"] == 0 {
			t.Errorf("after a node's death: %v", m)
		}
		until(t, 30*time.Second, "everything is taken over", func() bool { return reasons(cl)["no_executor"] == len(ids) })
		failing := func(err error) {
			a.Fault(func(_ int, op string) memstore.Fault {
				if op == "get" {
					return memstore.Fault{Err: err}
				}
				return memstore.Fault{}
			})
		}
		failing(store.ErrUnavailable)
		if m := reasons(cl); m["store_unreachable"] != len(ids) {
			t.Errorf("without the database: %v", m)
		}
		failing(errors.New("a row that can't be read"))
		if e, err := cl.Explain(t.Context(), client.ByID(ids[0])); err == nil {
			t.Errorf("a database that answers, with an error, counts as away: %+v", e)
		}
	})
}
