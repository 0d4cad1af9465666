package limits

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headrace/headrace/internal/faketime"
	"github.com/headrace/headrace/shard/member"
	"github.com/headrace/headrace/shard/memshard"
	"github.com/headrace/headrace/task"
)

type node struct {
	*Limits
	conn *memshard.Conn
	mu   sync.Mutex // guards told
	told map[string][]task.Limit
}

func (n *node) of(tenant string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	text := ""
	for _, l := range n.told[tenant] {
		text += fmt.Sprintf("%s %d-%d %s;", l.Downstream, l.Min, l.Max, l.Reason)
	}
	return text
}

func cluster(t *testing.T, f func(t *testing.T, ns []*node)) {
	synctest.Test(t, func(t *testing.T) {
		r := memshard.New()
		defer r.Close()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		var ns []*node
		for range 3 {
			n := &node{conn: r.Connect(), told: map[string][]task.Limit{}}
			var err error
			n.Limits, err = New(Config[task.Limit]{KV: n.conn, Changed: func(tenant string, ls []task.Limit) {
				n.mu.Lock()
				defer n.mu.Unlock()
				n.told[tenant] = ls
			}})
			if err != nil {
				t.Fatal(err)
			}
			ns = append(ns, n)
			wg.Go(func() { _ = n.Run(ctx) })
		}
		synctest.Wait()
		f(t, ns)
	})
}

func TestAllHearOfALimit(t *testing.T) {
	cluster(t, func(t *testing.T, ns []*node) {
		l, err := ns[0].Set(t.Context(), "acme", task.Limit{Downstream: "stripe", Max: 40, Reason: "why"})
		if err != nil || l.At.IsZero() || ns[0].of("acme") != "stripe 0-40 why;" {
			t.Fatalf("%v, %v; who stored it knows %q", l, err, ns[0].of("acme"))
		}
		if _, err := ns[1].Set(t.Context(), "acme", task.Limit{Downstream: "smtp", Min: 2, Max: 2}); err != nil {
			t.Fatal(err)
		}
		if _, err := ns[2].Set(t.Context(), "acme", task.Limit{Downstream: "stripe", Min: 1, Max: 50}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for i, n := range ns {
			if got := n.of("acme"); got != "smtp 2-2 ;stripe 1-50 ;" {
				t.Errorf("node %d was told %q", i, got)
			}
		}
		for n := range 2 {
			if removed, err := ns[1].Remove(t.Context(), "acme", "stripe"); err != nil || (removed != nil) != (n == 0) {
				t.Errorf("remove %d: %v, %v", n, removed, err)
			}
		}
		if _, err := ns[1].Remove(t.Context(), "acme", "smtp"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for i, n := range ns {
			if got := n.of("acme"); got != "" {
				t.Errorf("node %d was told %q", i, got)
			}
		}
	})
}

// Two that write at once lose nothing of each other, and who was cut off catches up.
func TestWritersAndCutNodes(t *testing.T) {
	cluster(t, func(t *testing.T, ns []*node) {
		ns[2].conn.Cut()
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				if _, err := ns[i%2].Set(t.Context(), "acme", task.Limit{Downstream: fmt.Sprint("d", i), Max: 1}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := ns[2].Set(ctx, "acme", task.Limit{Downstream: "x", Max: 1}); !errors.Is(err, ErrRegistry) {
			t.Errorf("without the registry: %v", err)
		}
		ns[2].conn.Heal()
		faketime.Pass(2 * time.Minute)
		for i, n := range ns {
			n.mu.Lock()
			if len(n.told["acme"]) != 20 {
				t.Errorf("node %d knows %d limits", i, len(n.told["acme"]))
			}
			n.mu.Unlock()
		}
	})
}

func TestBounds(t *testing.T) {
	cluster(t, func(t *testing.T, ns []*node) {
		n := ns[0]
		for name, l := range map[string]task.Limit{
			"downstream": {Downstream: "A b", Max: 1},
			"min":        {Downstream: "a", Min: task.MaxLimitValue + 1},
			"max":        {Downstream: "a", Min: 2, Max: 1},
			"reason":     {Downstream: "a", Max: 1, Reason: "\n"},
		} {
			var field *task.FieldError
			if _, err := n.Set(t.Context(), "acme", l); !errors.As(err, &field) || field.Field != name {
				t.Errorf("%s: %v", name, err)
			}
		}
		// Late news change nothing, but a restored registry is all there is.
		rec := n.encode([]task.Limit{{Downstream: "a", Max: 3}})
		n.take("b", rec, 30)
		n.take("b", nil, 20)
		n.takeAll(nil, 25, false)
		if n.of("b") == "" {
			t.Error("older news took a limit away")
		}
		n.takeAll([]member.Item{{Key: DefaultPrefix + "c/limits", Value: rec, Revision: 3}}, 5, true)
		if n.of("b") != "" || n.of("c") == "" {
			t.Errorf("after a restore: %v", n.told)
		}
	})
}

// Limits that users set lie beside them, and are as safe.
func TestBoundsOfUsers(t *testing.T) {
	cluster(t, func(t *testing.T, ns []*node) {
		told := map[string][]task.Bound{}
		r, err := NewBounds(Config[task.Bound]{KV: ns[0].conn, Changed: func(tenant string, bs []task.Bound) { told[tenant] = bs }})
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range []task.Bound{{Function: "mail", Rate: 2.5, Burst: 4}, {Concurrency: 9, Reason: "why"}, {Function: "mail", Concurrency: 1}} {
			if _, err := r.Set(t.Context(), "acme", b); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := ns[0].Set(t.Context(), "acme", task.Limit{Downstream: "mail", Max: 40}); err != nil {
			t.Fatal(err)
		}
		if bs := told["acme"]; len(bs) != 2 || bs[0].Concurrency != 9 || bs[0].Reason != "why" || bs[1].Function != "mail" || bs[1].Rate != 0 || bs[1].Concurrency != 1 {
			t.Errorf("told %+v", bs)
		}
		if removed, err := r.Remove(t.Context(), "acme", ""); err != nil || removed == nil || len(told["acme"]) != 1 {
			t.Errorf("%v, %v; left %v", removed, err, told["acme"])
		}
		for name, b := range map[string]task.Bound{
			"function":    {Function: "A b", Rate: 1},
			"concurrency": {Concurrency: -1},
			"rate":        {Rate: -1},
			"burst":       {Concurrency: 1, Burst: 3},
			"reason":      {Rate: 1, Reason: "\n"},
		} {
			var field *task.FieldError
			if _, err := r.Set(t.Context(), "acme", b); !errors.As(err, &field) || field.Field != name {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}
