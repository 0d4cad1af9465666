package placement

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headrace/headrace/internal/faketime"
	"github.com/headrace/headrace/shard"
	"github.com/headrace/headrace/shard/member"
	"github.com/headrace/headrace/shard/memshard"
)

// counted is a registry that counts what is written.
type counted struct {
	member.KV
	mu  sync.Mutex // guards following
	ops []int      // of each transaction, and when
	at  []time.Time
}

func (c *counted) Commit(ctx context.Context, txn member.Txn) (bool, int64, error) {
	c.mu.Lock()
	c.ops, c.at = append(c.ops, len(txn.Then)), append(c.at, time.Now())
	c.mu.Unlock()
	return c.KV.Commit(ctx, txn)
}

func (c *counted) writes() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.ops)
}

// node is one registry of a test.
type node struct {
	*Registry
	kv        *counted
	conn      *memshard.Conn
	catalogue atomic.Pointer[[]shard.Partition]
}

func (n *node) set(ps []shard.Partition) { n.catalogue.Store(&ps) }

func parts(n, zones int) []shard.Partition {
	ps := make([]shard.Partition, n)
	for i := range ps {
		ps[i] = shard.Partition{ID: uint32(i + 1), Zone: fmt.Sprintf("pg%d", i%zones)}
	}
	return ps
}

// cluster runs f with nodes on one registry, in a bubble.
func cluster(t *testing.T, nodes int, ps []shard.Partition, f func(t *testing.T, r *memshard.Registry, ns []*node)) {
	synctest.Test(t, func(t *testing.T) {
		reg := memshard.New()
		defer reg.Close()
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		var ns []*node
		for range nodes {
			n := &node{conn: reg.Connect()}
			n.kv = &counted{KV: n.conn}
			n.set(ps)
			var err error
			n.Registry, err = New(Config{KV: n.kv, Secret: "s", Catalogue: func() []shard.Partition { return *n.catalogue.Load() }})
			if err != nil {
				t.Fatal(err)
			}
			wg.Go(func() { _ = n.Run(ctx) })
			ns = append(ns, n)
		}
		synctest.Wait()
		f(t, reg, ns)
		stop()
		wg.Wait()
	})
}

func stored(t *testing.T, n *node, tenant string) *Shard {
	t.Helper()
	s, err := n.Stored(t.Context(), tenant)
	if err != nil {
		t.Fatalf("%s: %v", tenant, err)
	}
	return s
}

// The first look at a tenant writes its placement once, whoever looks and how often; until then all nodes
// compute the same.
func TestCreatedOnce(t *testing.T) {
	cluster(t, 3, parts(8, 2), func(t *testing.T, _ *memshard.Registry, ns []*node) {
		var want []uint32
		for _, n := range ns {
			s := n.Of("acme")
			if len(s.Members) != 4 || len(s.AtHome) < 2 {
				t.Fatalf("computed %+v", s)
			}
			if want == nil {
				want = s.Members
			}
			if !slices.Equal(s.Members, want) {
				t.Fatalf("%v and %v", s.Members, want)
			}
		}
		synctest.Wait()
		faketime.Pass(time.Second)
		tried := 0
		for _, n := range ns {
			tried += n.kv.writes()
			if s := n.Of("acme"); !s.Stored || s.Version != 1 || s.Reason != shard.Created || !slices.Equal(s.Members, want) {
				t.Fatalf("stored %+v", s)
			}
			if len(n.Snapshot().All("")) != 1 || n.Snapshot().Len() != 1 || len(n.Snapshot().All("acme")) != 0 {
				t.Fatalf("all: %v", n.Snapshot().All(""))
			}
		}
		for range 10_000 {
			for _, n := range ns {
				n.Of("acme")
			}
		}
		faketime.Pass(time.Minute)
		for _, n := range ns {
			tried -= n.kv.writes()
		}
		if tried != 0 {
			t.Errorf("%d writes for submits of a known tenant", -tried)
		}
	})
}

// A thousand new tenants at once wait in a queue, and cost ten writes a second at most; their load is even.
func TestManyTenantsAtOnce(t *testing.T) {
	cluster(t, 2, parts(64, 4), func(t *testing.T, _ *memshard.Registry, ns []*node) {
		for i := range 1000 {
			for _, n := range ns {
				if s := n.Of(fmt.Sprint("t", i)); len(s.Members) != 5 {
					t.Fatalf("%v", s.Members)
				}
			}
		}
		began := time.Now()
		for i := range 1000 {
			stored(t, ns[i%2], fmt.Sprint("t", i))
		}
		took := time.Since(began)
		synctest.Wait() // for the watches
		if took > 30*time.Second {
			t.Errorf("it took %v", took)
		}
		for _, n := range ns {
			w := n.kv.writes()
			if float64(w) > 10*took.Seconds()+2 || w > 200 {
				t.Errorf("%d writes in %v", w, took)
			}
			if n.Snapshot().Len() != 1000 {
				t.Errorf("%d tenants", n.Snapshot().Len())
			}
		}
		load := map[uint32]int{}
		for _, p := range ns[0].Snapshot().All("") {
			for _, m := range p.Members {
				load[m]++
			}
		}
		most := 0
		for _, n := range load {
			most = max(most, n)
		}
		if mean := 5000.0 / 64; float64(most) > 1.25*mean {
			t.Errorf("the fullest has %d, the mean is %.0f", most, mean)
		}
	})
}

// Two nodes that know different catalogues agree on the directory database of a new tenant all the same.
func TestTwoCataloguesOneHome(t *testing.T) {
	cluster(t, 2, parts(4, 1), func(t *testing.T, _ *memshard.Registry, ns []*node) {
		ps := parts(4, 1)
		for i := range 12 {
			ps = append(ps, shard.Partition{ID: uint32(5 + i), Zone: fmt.Sprint("new", i%3)})
		}
		ns[1].set(ps)
		differ := 0
		for i := range 50 {
			tenant := fmt.Sprint("t", i)
			a, b := ns[0].Of(tenant), ns[1].Of(tenant)
			if a.Home != b.Home {
				differ++
			}
			done := make(chan *Shard)
			go func() { s, _ := ns[1].Stored(t.Context(), tenant); done <- s }()
			one, two := stored(t, ns[0], tenant), <-done
			if two == nil || one.Home != two.Home {
				t.Fatalf("%s: %+v and %+v", tenant, one, two)
			}
		}
		if differ < 10 {
			t.Errorf("only %d would have differed", differ)
		}
	})
}

// Without the registry tenants are computed, ids are refused after a moment, and what is known stays known.
func TestOutage(t *testing.T) {
	cluster(t, 1, parts(8, 2), func(t *testing.T, reg *memshard.Registry, ns []*node) {
		old := stored(t, ns[0], "old")
		reg.Stop()
		if s := ns[0].Of("new"); s.Stored || len(s.Members) == 0 {
			t.Errorf("%+v", s)
		}
		began := time.Now()
		if _, err := ns[0].Stored(t.Context(), "new"); err != ErrPending || time.Since(began) != storedWait {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		if s := stored(t, ns[0], "old"); !reflect.DeepEqual(s.Placement, old.Placement) {
			t.Errorf("%+v, was %+v", s, old)
		}
		if _, err := ns[0].Change(t.Context(), "old", Change{K: 2}); err == nil {
			t.Error("moved without the registry")
		}
		faketime.Pass(20 * time.Minute)
		reg.Start()
		faketime.Pass(10 * time.Second)
		if s := ns[0].Of("new"); !s.Stored {
			t.Errorf("after the outage: %+v", s)
		}
	})
}

// Moves are versions with events; of two at once both happen, one after the other.
func TestChange(t *testing.T) {
	cluster(t, 2, parts(8, 2), func(t *testing.T, _ *memshard.Registry, ns []*node) {
		was := stored(t, ns[0], "acme")
		p, err := ns[0].Change(t.Context(), "acme", Change{To: []uint32{1, 2, 3}, Note: "because"})
		if err != nil || p.Version != 2 || !slices.Equal(p.Members[:3], []uint32{1, 2, 3}) || p.Home != was.Home {
			t.Fatalf("%+v, %v", p, err)
		}
		if s := ns[0].Of("acme"); !reflect.DeepEqual(s.Placement, p) {
			t.Fatalf("right after it: %+v", s)
		}
		synctest.Wait()
		if s := ns[1].Of("acme"); !reflect.DeepEqual(s.Placement, p) {
			t.Fatalf("the other node: %+v", s)
		}
		var wg sync.WaitGroup
		for i, n := range ns {
			wg.Go(func() {
				if _, err := n.Change(t.Context(), "acme", Change{K: 5 + i}); err != nil {
					t.Error(err)
				}
				if _, err := n.Change(t.Context(), fmt.Sprint("other", i), Change{K: 2}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		synctest.Wait()
		for _, n := range ns {
			s := n.Of("acme")
			if s.Version != 4 || !reflect.DeepEqual(s.Placement, ns[0].Of("acme").Placement) {
				t.Errorf("%+v", s)
			}
			ev := n.Snapshot().Events()
			if len(ev) != 5 || ev[0].Number != 5 || ev[4].Number != 1 || ev[4].Reason != "moved" || ev[4].Note != "because" ||
				!slices.Equal(ev[4].From, was.Members) || !slices.Equal(ev[4].To, p.Members) || ev[4].Version != 2 {
				t.Errorf("events %+v", ev)
			}
		}
		for _, bad := range []Change{{To: []uint32{99}}, {K: 0}, {K: 99}} {
			if _, err := ns[0].Change(t.Context(), "acme", bad); err == nil {
				t.Errorf("%+v was done", bad)
			}
		}
		for i := range 300 {
			if _, err := ns[i%2].Change(t.Context(), "acme", Change{K: 1 + i%4}); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if ev := ns[1].Snapshot().Events(); len(ev) != keptEvents || ev[0].Number != 305 || ev[keptEvents-1].Number != 50 {
			t.Errorf("%d events, %d to %d", len(ev), ev[len(ev)-1].Number, ev[0].Number)
		}
	})
}

// A member that drains is out at once, and the new shard is written once by those who look.
func TestDrained(t *testing.T) {
	cluster(t, 2, parts(8, 2), func(t *testing.T, _ *memshard.Registry, ns []*node) {
		was := stored(t, ns[0], "acme")
		synctest.Wait()
		gone := was.Members[1]
		ps := parts(8, 2)
		ps[gone-1].State = shard.Draining
		for _, n := range ns {
			n.set(ps)
			if s := n.Of("acme"); slices.Contains(s.Members, gone) || s.Version != 2 {
				t.Fatalf("%+v", s)
			}
		}
		faketime.Pass(2 * time.Second)
		for _, n := range ns {
			p, _ := n.Snapshot().Get("acme")
			if p.Version != 2 || p.Reason != shard.Drained || slices.Contains(p.Members, gone) || !slices.Equal(p.Before, was.Members) {
				t.Errorf("stored %+v", p)
			}
			if ev := n.Snapshot().Events(); len(ev) != 1 || ev[0].Reason != "drained" {
				t.Errorf("events %+v", ev)
			}
		}
	})
}

// What was deleted is made anew; what can't be read is not trusted, and neither is anything but a placement.
func TestStrangeKeys(t *testing.T) {
	cluster(t, 1, parts(8, 2), func(t *testing.T, reg *memshard.Registry, ns []*node) {
		stored(t, ns[0], "acme")
		reg.Delete(DefaultPrefix + "tenants/acme")
		synctest.Wait()
		if s := ns[0].Of("acme"); s.Stored {
			t.Errorf("%+v", s)
		}
		stored(t, ns[0], "acme")
		for _, key := range []string{"tenants/bad", "events/001", "events/999", "other"} {
			if _, _, err := ns[0].conn.Commit(t.Context(), member.Txn{Then: []member.Op{{Key: DefaultPrefix + key, Value: []byte("{")}}}); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if n := ns[0].Snapshot().Len(); n != 1 || len(ns[0].Snapshot().Events()) != 0 {
			t.Errorf("%d tenants, %v", n, ns[0].Snapshot().Events())
		}
		if s := stored(t, ns[0], "acme"); s.Version != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// A list that was read before an own write does not undo it; a registry that went back does.
func TestLateList(t *testing.T) {
	r, err := New(Config{KV: memshard.New().Connect(), Secret: "s", Catalogue: func() []shard.Partition { return parts(8, 2) }})
	if err != nil {
		t.Fatal(err)
	}
	l := &loop{Registry: r, placed: map[uint32]float64{}}
	record := shard.Placement{Tenant: "acme", Version: 1, K: 1, Members: []uint32{1}, Home: 1, Reason: shard.Created}.Encode()
	own := []member.Change{{Item: member.Item{Key: DefaultPrefix + "tenants/acme", Value: record, Revision: 7}}}
	l.take(own, false)
	l.take(l.newer(list{all: true, revision: 6}), true)
	if r.Snapshot().Len() != 1 || l.placed[1] != 1 {
		t.Errorf("a late list took it away: %v", l.placed)
	}
	l.take(l.newer(list{all: true, revision: 9}), true)
	if r.Snapshot().Len() != 0 || l.placed[1] != 0 {
		t.Errorf("a later list did not: %v", l.placed)
	}
	l.take(own, false)
	l.take(l.newer(list{all: true, revision: 3}), true)
	if r.Snapshot().Len() != 0 {
		t.Error("a restored registry did not")
	}
}

func BenchmarkOf(b *testing.B) {
	ps := parts(64, 4)
	r, err := New(Config{KV: memshard.New().Connect(), Secret: "s", Catalogue: func() []shard.Partition { return ps }})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		r.Of("acme")
	}
}
