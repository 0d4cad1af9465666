package tenants

import (
	"context"
	"errors"
	"reflect"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headrace/headrace/internal/faketime"
	"github.com/headrace/headrace/shard/memshard"
	"github.com/headrace/headrace/task"
)

// node is one registry of a test, and what its Changed was told.
type node struct {
	*Registry
	conn *memshard.Conn
	mu   sync.Mutex // guards following
	told map[string]task.Tenant
}

func (n *node) of(tenant string) task.Tenant {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.told[tenant]
}

// cluster runs f with running nodes on one registry, in a bubble.
func cluster(t *testing.T, nodes int, f func(t *testing.T, ns []*node)) {
	synctest.Test(t, func(t *testing.T) {
		r := memshard.New()
		defer r.Close()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		var ns []*node
		for range nodes {
			n := &node{conn: r.Connect(), told: map[string]task.Tenant{}}
			var err error
			n.Registry, err = New(Config{KV: n.conn, Changed: func(tenant string, g task.Tenant) {
				n.mu.Lock()
				defer n.mu.Unlock()
				n.told[tenant] = g
			}})
			if err != nil {
				t.Fatal(err)
			}
			wg.Go(func() { _ = n.Run(ctx) })
			ns = append(ns, n)
		}
		synctest.Wait()
		f(t, ns)
	})
}

func set(g task.Tenant) func(task.Tenant) (task.Tenant, error) {
	return func(task.Tenant) (task.Tenant, error) { return g, nil }
}

func TestAllHearOfAChange(t *testing.T) {
	cluster(t, 3, func(t *testing.T, ns []*node) {
		want := task.Tenant{DrainMax: 90 * time.Second, MaxRows: 7, MaxBytes: 8, Rate: 1.5, Burst: 3, Weight: 2}
		got, err := ns[0].Change(t.Context(), "acme", set(want))
		if err != nil || got.Grant != want || ns[0].of("acme") != want {
			t.Fatalf("%+v, %v; told %+v", got, err, ns[0].of("acme"))
		}
		synctest.Wait()
		for i, n := range ns {
			if n.of("acme") != want || !reflect.DeepEqual(n.Of("acme"), got) || len(n.All("")) != 1 || len(n.All("acme")) != 0 {
				t.Errorf("node %d has %+v, was told %+v, want %+v", i, n.Of("acme"), n.of("acme"), got)
			}
		}
		// Nothing to change writes nothing; the zero grant takes it away.
		if again, err := ns[1].Change(t.Context(), "acme", set(want)); err != nil || !reflect.DeepEqual(again, got) {
			t.Errorf("again: %+v, %v", again, err)
		}
		if _, err := ns[2].Change(t.Context(), "acme", set(task.Tenant{})); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		for i, n := range ns {
			if n.of("acme") != (task.Tenant{}) || len(n.All("")) != 0 {
				t.Errorf("node %d has %+v", i, n.Of("acme"))
			}
		}
		if _, err := ns[0].Change(t.Context(), "acme", set(want)); err != nil {
			t.Error(err)
		}
		faketime.Pass(3 * time.Minute) // a list beside the watch
		if ns[2].of("acme") != want {
			t.Errorf("after it was there again: %+v", ns[2].of("acme"))
		}
	})
}

// Two that change one field each at once lose nothing of each other.
func TestWritersDoNotOverwrite(t *testing.T) {
	cluster(t, 3, func(t *testing.T, ns []*node) {
		for _, n := range ns {
			n.conn.Delay(5 * time.Millisecond)
		}
		var wg sync.WaitGroup
		for i := range 30 {
			wg.Go(func() {
				if _, err := ns[i%3].Change(t.Context(), "acme", func(g task.Tenant) (task.Tenant, error) {
					g.MaxRows++
					return g, nil
				}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		faketime.Pass(time.Second)
		for _, n := range ns {
			if n.of("acme").MaxRows != 30 {
				t.Errorf("%d changes are left of 30", n.of("acme").MaxRows)
			}
		}
	})
}

func TestBadGrantsAndNoRegistry(t *testing.T) {
	cluster(t, 1, func(t *testing.T, ns []*node) {
		for field, g := range map[string]task.Tenant{
			"drain_max": {DrainMax: time.Millisecond}, "max_rows": {MaxRows: -1}, "max_bytes": {MaxBytes: 1 << 60},
			"rate": {Rate: -1}, "burst": {Burst: 5}, "weight": {Weight: 1001},
		} {
			var bad *task.FieldError
			if _, err := ns[0].Change(t.Context(), "acme", set(g)); !errors.As(err, &bad) || bad.Field != field {
				t.Errorf("%+v: %v, want an error that names %s", g, err, field)
			}
		}
		if _, err := ns[0].Change(t.Context(), "acme", set(task.Tenant{Weight: 5})); err != nil {
			t.Fatal(err)
		}
		ns[0].conn.Cut()
		if _, err := ns[0].Change(t.Context(), "acme", set(task.Tenant{Weight: 6})); !errors.Is(err, ErrRegistry) {
			t.Errorf("without a registry: %v", err)
		}
		faketime.Pass(5 * time.Minute)
		if ns[0].of("acme").Weight != 5 {
			t.Errorf("without a registry it knows %+v", ns[0].of("acme"))
		}
		ns[0].conn.Heal()
	})
}
