package truth_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headrace/headrace/internal/faketime"
	"github.com/headrace/headrace/shard/member"
	"github.com/headrace/headrace/shard/memshard"
	"github.com/headrace/headrace/shard/truth"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/store/memstore"
)

const (
	rule   = truth.Root + "pause/acme"
	tenant = truth.Root + "placement/tenants/acme"
)

// site is a registry, two databases, and gates in front of them.
type site struct {
	t        *testing.T
	registry *memshard.Registry
	conn     *memshard.Conn
	data     [2]*memstore.Data
	down     [2]atomic.Bool
}

func play(t *testing.T, f func(t *testing.T, s *site)) {
	synctest.Test(t, func(t *testing.T) {
		s := &site{t: t, registry: memshard.New(), data: [2]*memstore.Data{new(memstore.Data), new(memstore.Data)}}
		s.conn = s.registry.Connect()
		defer s.registry.Close()
		f(t, s)
	})
}

// gate returns a gate of another node. It runs until the end of the test, the first one as the leader.
func (s *site) gate(leads bool) *truth.Gate {
	s.t.Helper()
	cfg := truth.Config{KV: s.registry.Connect()}
	for i, data := range s.data {
		st := memstore.Open(data)
		st.Fail = func(string) memstore.Fault {
			if s.down[i].Load() {
				return memstore.Fault{Err: store.ErrUnavailable}
			}
			return memstore.Fault{}
		}
		cfg.Databases = append(cfg.Databases, truth.Database{Name: fmt.Sprint("db", i+1), Keeper: st})
	}
	g, err := truth.New(cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); g.Run(ctx, func() bool { return leads }) }()
	s.t.Cleanup(func() { cancel(); <-ended })
	return g
}

func (s *site) put(g *truth.Gate, key, value string) error {
	_, _, err := g.Commit(s.t.Context(), member.Txn{Then: []member.Op{{Key: key, Value: []byte(value)}}})
	return err
}

func (s *site) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// get returns a key's value in the registry; "" if it is not there.
func (s *site) get(key string) string {
	items, _, err := s.conn.List(s.t.Context(), key)
	s.must(err)
	for _, it := range items {
		if it.Key == key {
			return string(it.Value)
		}
	}
	return ""
}

// copies returns what a database remembers.
func (s *site) copies(i int) string {
	c, err := memstore.Open(s.data[i]).Configuration(s.t.Context(), true)
	s.must(err)
	var b strings.Builder
	fmt.Fprintf(&b, "seen %d, copied %d:", c.Seen, c.Copied)
	for _, it := range c.Copies {
		fmt.Fprintf(&b, " %s=%s@%d", strings.TrimPrefix(it.Key, truth.Root), it.Value, it.Version)
	}
	return b.String()
}

func (s *site) expect(what, got, want string) {
	s.t.Helper()
	if got != want {
		s.t.Errorf("%s: %s, want %s", what, got, want)
	}
}

// What is configuration is counted and copied within a quarter of a second; what is not, is not.
func TestChangesAreCopied(t *testing.T) {
	play(t, func(t *testing.T, s *site) {
		g := s.gate(true)
		s.must(g.Compare(t.Context()))
		if g.Held() != nil {
			t.Fatalf("an empty cluster is held: %s", g.Held().Reason)
		}
		faketime.Pass(2 * time.Second) // the copying begins
		s.must(s.put(g, tenant, "1"))
		s.must(s.put(g, rule, "on"))
		faketime.Pass(250 * time.Millisecond)
		s.expect("first", s.copies(0), "seen 2, copied 2: pause/acme=on@2 placement/tenants/acme=1@1")
		s.expect("second", s.copies(1), "seen 2, copied 0:")

		lease, err := g.Grant(t.Context(), time.Minute)
		s.must(err)
		_, _, err = g.Commit(t.Context(), member.Txn{Then: []member.Op{
			{Key: member.DefaultPrefix + "members/n1", Value: []byte("{}"), Lease: lease},
			{Key: truth.Root + "acks/n1", Value: []byte("{}"), Lease: lease},
			{Key: member.DefaultPrefix + "assignment", Value: []byte("{}")},
			{Key: truth.Root + "placement/events/001", Value: []byte("{}")},
			{Key: truth.Root + "shard-epochs/1", Value: []byte("7")},
		}})
		s.must(err)
		faketime.Pass(250 * time.Millisecond)
		s.expect("what is not configuration", s.copies(0), "seen 2, copied 2: pause/acme=on@2 placement/tenants/acme=1@1")

		_, _, err = g.Commit(t.Context(), member.Txn{Then: []member.Op{{Key: rule, Delete: true}, {Key: member.DefaultPrefix + "partitions", Value: []byte("[]")}}})
		s.must(err)
		faketime.Pass(250 * time.Millisecond)
		s.expect("first", s.copies(0), "seen 3, copied 3: placement/tenants/acme=1@1 shard/partitions=[]@3")
		s.expect("second", s.copies(1), "seen 3, copied 0:")
	})
}

// Two writers never wait for each other, and each change counts.
func TestWritersDoNotConflict(t *testing.T) {
	play(t, func(t *testing.T, s *site) {
		g, o := s.gate(true), s.gate(false)
		for i := range 20 {
			ok := [2]bool{}
			for j, one := range []*truth.Gate{g, o} {
				var err error
				key := fmt.Sprintf("%s-%d-%d", tenant, i, j)
				ok[j], _, err = one.Commit(t.Context(), member.Txn{If: []member.Cond{{Key: key}}, Then: []member.Op{{Key: key}}})
				s.must(err)
			}
			if ok != [2]bool{true, true} {
				t.Fatalf("round %d: %v", i, ok)
			}
		}
		st, err := o.Status(t.Context())
		s.must(err)
		if st.Registry != 40 {
			t.Errorf("version %d after 40 changes", st.Registry)
		}
	})
}

// A registry that is older than what any database has seen holds every node, before it learns what the registry says
// now; nothing can be changed. Whichever is accepted, the nodes go on, and the copies and the registry are the same.
func TestRestoredRegistry(t *testing.T) {
	for _, from := range []truth.Source{truth.Registry, truth.Copies} {
		for _, lost := range []bool{false, true} {
			t.Run(fmt.Sprint(from, lost), func(t *testing.T) {
				play(t, func(t *testing.T, s *site) {
					g, o := s.gate(true), s.gate(false)
					s.must(s.put(g, tenant, "1"))
					s.must(s.put(g, rule, "old"))
					backup := s.registry.Backup()
					if lost {
						backup = nil
					}
					s.must(s.put(g, rule, "new"))
					s.must(s.put(g, tenant+"2", "2"))
					faketime.Pass(2 * time.Second)
					s.registry.Restore(backup)

					// The very list that would tell the old rule comes after the hold.
					_, _, err := o.List(t.Context(), truth.Root+"pause/")
					s.must(err)
					if h := o.Held(); h == nil || h.Highest != 4 {
						t.Fatalf("held: %+v", h)
					}
					if err := s.put(g, rule, "x"); !errors.Is(err, truth.ErrHeld) {
						t.Errorf("a change meanwhile = %v", err)
					}
					late := s.gate(false) // a node that starts now has seen nothing itself
					s.must(late.Compare(t.Context()))
					if late.Held() == nil || late.Held().Who == "" {
						t.Errorf("a new node: %+v", late.Held())
					}
					faketime.Pass(time.Minute)
					if g.Held() == nil {
						t.Error("the hold ends by itself")
					}
					s.expect("copies meanwhile", s.copies(0), "seen 4, copied 4: pause/acme=new@4 placement/tenants/acme=1@4 placement/tenants/acme2=2@4")

					s.must(o.Accept(t.Context(), from))
					if o.Held() != nil {
						t.Errorf("still held: %s", o.Held().Reason)
					}
					faketime.Pass(1100 * time.Millisecond)
					if g.Held() != nil || late.Held() != nil {
						t.Error("other nodes are held")
					}
					faketime.Pass(2 * time.Second)
					var want string
					switch {
					case from == truth.Copies:
						s.expect("the rule", s.get(rule), "new")
						want = "seen 6, copied 6: pause/acme=new@4 placement/tenants/acme=1@4 placement/tenants/acme2=2@4"
					case lost:
						s.expect("the rule", s.get(rule), "")
						want = "seen 6, copied 6:"
					default:
						s.expect("the rule", s.get(rule), "old")
						want = "seen 6, copied 6: pause/acme=old@6 placement/tenants/acme=1@4"
					}
					s.expect("copies", s.copies(0), want)
					if err := o.Accept(t.Context(), from); !errors.Is(err, truth.ErrAgreed) {
						t.Errorf("accepted again = %v", err)
					}
					s.must(s.put(late, rule, "newer"))
					faketime.Pass(250 * time.Millisecond)
					if c := s.copies(0); !strings.HasPrefix(c, "seen 7, copied 7: pause/acme=newer@7") {
						t.Errorf("copies after it: %s", c)
					}
				})
			})
		}
	}
}

// A change right after a restore would bring the version to where it was: it is compared before.
func TestChangeToARestoredRegistryIsRefused(t *testing.T) {
	play(t, func(t *testing.T, s *site) {
		g := s.gate(true)
		s.must(s.put(g, rule, "old"))
		backup := s.registry.Backup()
		s.must(s.put(g, rule, "new"))
		faketime.Pass(2 * time.Second)
		s.registry.Restore(backup)
		if err := s.put(g, tenant, "1"); !errors.Is(err, truth.ErrHeld) {
			t.Errorf("the change = %v, want held", err)
		}
	})
}

// A node whose connection was cut compares with the databases before it believes a registry that is as old as itself.
func TestNodeThatWasCutOff(t *testing.T) {
	play(t, func(t *testing.T, s *site) {
		g, conn := s.gate(true), s.registry.Connect()
		cut, err := truth.New(truth.Config{KV: conn, Databases: []truth.Database{{Name: "db2", Keeper: memstore.Open(s.data[1])}}})
		s.must(err)
		s.must(s.put(g, rule, "old"))
		s.must(cut.Compare(t.Context()))
		backup := s.registry.Backup()
		conn.Cut()
		s.must(s.put(g, rule, "new"))
		faketime.Pass(2 * time.Second)
		call, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, _, err := cut.List(call, rule); err == nil {
			t.Fatal("it is not cut off")
		}
		s.registry.Restore(backup)
		conn.Heal()
		_, _, err = cut.List(t.Context(), rule)
		s.must(err)
		if cut.Held() == nil {
			t.Error("it believes a registry of the version that it knew")
		}
	})
}

// Watches end when the registry goes back: one of a future revision would hear nothing of what comes before it.
func TestWatchesEndWithARestore(t *testing.T) {
	play(t, func(t *testing.T, s *site) {
		g := s.gate(false)
		s.must(s.put(g, rule, "1"))
		backup := s.registry.Backup()
		s.must(s.put(g, rule, "2"))
		s.must(s.put(g, rule, "3"))
		_, revision, err := g.List(t.Context(), rule)
		s.must(err)
		watch := g.Watch(t.Context(), rule, revision)
		s.registry.Restore(backup)
		faketime.Pass(2 * time.Second)
		select {
		case c, open := <-watch:
			if open {
				t.Errorf("the watch says %v", c)
			}
		default:
			t.Error("the watch goes on as if nothing had happened")
		}
	})
}

// Databases that are away: one that answers is enough to go on, none is not; all are needed to accept.
func TestDatabasesAway(t *testing.T) {
	play(t, func(t *testing.T, s *site) {
		s.down[0].Store(true)
		s.down[1].Store(true)
		g := s.gate(true)
		s.must(g.Compare(t.Context()))
		if h := g.Held(); h == nil || !h.Unsure {
			t.Fatalf("nobody was asked, and held is %+v", h)
		}
		if err := s.put(g, rule, "1"); !errors.Is(err, truth.ErrHeld) {
			t.Errorf("a change = %v", err)
		}
		s.down[1].Store(false)
		faketime.Pass(1100 * time.Millisecond)
		if g.Held() != nil {
			t.Fatal("one database answers, and it is held")
		}
		s.must(s.put(g, rule, "1"))
		backup := s.registry.Backup()
		s.must(s.put(g, rule, "2"))
		faketime.Pass(5 * time.Second)
		s.expect("second", s.copies(1), "seen 2, copied 0:")
		s.registry.Restore(backup)
		faketime.Pass(2 * time.Second)
		if h := g.Held(); h == nil || h.Unsure {
			t.Fatalf("held: %+v", h)
		}
		if err := g.Accept(t.Context(), truth.Registry); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("accepted without a database: %v", err)
		}
		s.down[0].Store(false)
		if err := g.Accept(t.Context(), truth.Copies); !errors.Is(err, truth.ErrNoCopies) {
			t.Errorf("accepted copies that are not there: %v", err)
		}
		if s.get(rule) != "1" {
			t.Error("the registry was changed")
		}
		s.must(g.Accept(t.Context(), truth.Registry))
		faketime.Pass(3 * time.Second)
		s.expect("first", s.copies(0), "seen 4, copied 4: pause/acme=1@4")
	})
}

// A first database that is restored gets its copies again; a leader that was paused overwrites none.
func TestRestoredDatabase(t *testing.T) {
	play(t, func(t *testing.T, s *site) {
		g := s.gate(true)
		s.must(s.put(g, tenant, "1"))
		s.must(s.put(g, rule, "on"))
		faketime.Pass(2 * time.Second)
		backup := s.data[0].Clone()
		s.must(s.put(g, tenant, "2"))
		s.must(s.put(g, rule, "off"))
		faketime.Pass(time.Second)
		s.data[0].Restore(backup)
		faketime.Pass(3 * time.Second)
		s.expect("first", s.copies(0), "seen 4, copied 4: pause/acme=off@4 placement/tenants/acme=2@4")
		s.must(s.put(g, tenant+"2", "3"))
		faketime.Pass(time.Second)
		s.expect("first", s.copies(0), "seen 5, copied 5: pause/acme=off@4 placement/tenants/acme=2@4 placement/tenants/acme2=3@5")
		s.data[1].Restore(new(memstore.Data))
		faketime.Pass(3 * time.Second)
		s.expect("second", s.copies(1), "seen 5, copied 0:")
		if g.Held() != nil {
			t.Errorf("held: %s", g.Held().Reason)
		}
	})
}

// Thousands of copies go in parts, and the copies count as new only with the last.
func TestManyCopies(t *testing.T) {
	play(t, func(t *testing.T, s *site) {
		g := s.gate(true)
		const n = 12_000
		for from := range slices.Chunk(slices.Collect(func(yield func(int) bool) {
			for i := range n {
				if !yield(i) {
					return
				}
			}
		}), 100) {
			var txn member.Txn
			for _, i := range from {
				txn.Then = append(txn.Then, member.Op{Key: fmt.Sprint(tenant, i), Value: []byte("x")})
			}
			_, _, err := g.Commit(t.Context(), txn)
			s.must(err)
		}
		faketime.Pass(5 * time.Second)
		c, err := memstore.Open(s.data[0]).Configuration(t.Context(), true)
		s.must(err)
		if len(c.Copies) != n || c.Copied != 120 {
			t.Fatalf("%d copies of version %d", len(c.Copies), c.Copied)
		}
		s.registry.Restore(nil)
		faketime.Pass(2 * time.Second)
		s.must(g.Accept(t.Context(), truth.Copies))
		items, _, err := s.conn.List(t.Context(), tenant)
		s.must(err)
		if len(items) != n {
			t.Errorf("%d keys after it, want %d", len(items), n)
		}
	})
}
