package pause

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headrace/headrace/internal/faketime"
	"github.com/headrace/headrace/shard/member"
	"github.com/headrace/headrace/shard/memshard"
	"github.com/headrace/headrace/task"
)

// node is one registry of a test, and what its Changed was told.
type node struct {
	*Registry
	conn *memshard.Conn
	mu   sync.Mutex // guards following
	told map[string][]task.Pause
	news int
}

func (n *node) in(tenant, function string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return task.PauseOf(n.told[tenant], function, task.Normal, time.Now()) != nil
}

// cluster runs f with nodes on one registry, in a bubble. They are not running.
func cluster(t *testing.T, nodes int, f func(t *testing.T, r *memshard.Registry, ns []*node)) {
	synctest.Test(t, func(t *testing.T) {
		r := memshard.New()
		defer r.Close()
		var ns []*node
		for range nodes {
			n := &node{conn: r.Connect(), told: map[string][]task.Pause{}}
			var err error
			n.Registry, err = New(Config{KV: n.conn, Changed: func(tenant string, rules []task.Pause) {
				n.mu.Lock()
				defer n.mu.Unlock()
				n.told[tenant] = rules
				n.news++
			}})
			if err != nil {
				t.Fatal(err)
			}
			ns = append(ns, n)
		}
		f(t, r, ns)
	})
}

func run(t *testing.T, n *node) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	return func() {
		cancel()
		<-ended
	}
}

func TestAllHearOfAChange(t *testing.T) {
	cluster(t, 3, func(t *testing.T, _ *memshard.Registry, ns []*node) {
		for _, n := range ns {
			defer run(t, n)()
		}
		synctest.Wait()
		rules, err := ns[0].Pause(t.Context(), "acme", task.Pause{Function: "f", Band: task.AnyBand, Reason: "why"})
		if err != nil || len(rules.Rules) != 1 || rules.Revision == 0 {
			t.Fatalf("%v, %v", rules, err)
		}
		if !ns[0].in("acme", "f") {
			t.Error("who has stored a rule does not know it at once")
		}
		synctest.Wait()
		for i, n := range ns {
			if !n.in("acme", "f") || n.in("acme", "g") || n.in("acme2", "f") {
				t.Errorf("node %d was told %v", i, n.told)
			}
		}
		// The same again writes nothing; another reason keeps the time.
		faketime.Pass(time.Second)
		again, err := ns[1].Pause(t.Context(), "acme", task.Pause{Function: "f", Band: task.AnyBand, Reason: "why"})
		if err != nil || !reflect.DeepEqual(again, rules) {
			t.Errorf("paused again: %v, %v; was %v", again, err, rules)
		}
		other, err := ns[1].Pause(t.Context(), "acme", task.Pause{Function: "f", Band: task.AnyBand, Reason: "because"})
		if err != nil || other.Revision <= rules.Revision || len(other.Rules) != 1 || !other.Rules[0].At.Equal(rules.Rules[0].At) || other.Rules[0].Reason != "because" {
			t.Errorf("paused for another reason: %v, %v", other, err)
		}
		if _, removed, err := ns[2].Resume(t.Context(), "acme", task.Pause{Band: task.AnyBand}, false); err != nil || len(removed) != 0 {
			t.Errorf("resumed another scope: %v, %v", removed, err)
		}
		for n := range 2 {
			if left, removed, err := ns[2].Resume(t.Context(), "acme", task.Pause{Function: "f", Band: task.AnyBand}, false); err != nil || len(removed) != 1-n || len(left.Rules) != 0 {
				t.Errorf("resume %d: %v, %v, %v", n, left, removed, err)
			}
		}
		synctest.Wait()
		for i, n := range ns {
			if n.in("acme", "f") || len(n.All("")) != 0 {
				t.Errorf("node %d was told %v", i, n.told)
			}
		}
	})
}

// Two that write at once lose nothing of each other.
func TestWritersDoNotOverwrite(t *testing.T) {
	cluster(t, 3, func(t *testing.T, _ *memshard.Registry, ns []*node) {
		for _, n := range ns {
			n.conn.Delay(5 * time.Millisecond)
		}
		var wg sync.WaitGroup
		for i := range 30 {
			wg.Go(func() {
				if _, err := ns[i%3].Pause(t.Context(), "acme", task.Pause{Function: fmt.Sprint("f", i), Band: task.AnyBand}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for _, n := range ns {
			if err := n.Current(t.Context()); err != nil || len(n.Of("acme")) != 30 {
				t.Errorf("%d rules, %v", len(n.Of("acme")), err)
			}
		}
	})
}

// Current needs no watch, and one list serves all who ask while another is read.
func TestCurrent(t *testing.T) {
	cluster(t, 2, func(t *testing.T, _ *memshard.Registry, ns []*node) {
		a, b := ns[0], ns[1]
		if _, err := a.Pause(t.Context(), "acme", task.Pause{Band: task.Low}); err != nil {
			t.Fatal(err)
		}
		b.conn.Delay(100 * time.Millisecond)
		began := time.Now()
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				if err := b.Current(t.Context()); err != nil || len(b.Of("acme")) != 1 {
					t.Errorf("%v, %v", b.Of("acme"), err)
				}
			})
		}
		wg.Wait()
		if took := time.Since(began); took > 400*time.Millisecond {
			t.Errorf("50 looks took %v, want two lists", took)
		}
		b.conn.Cut()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := b.Current(ctx); !errors.Is(err, ErrRegistry) {
			t.Errorf("without a registry: %v", err)
		}
		if len(b.Of("acme")) != 1 {
			t.Error("what is known is forgotten without the registry")
		}
		b.conn.Heal()
	})
}

// News come in any order: the newest holds, also against a list that was read before.
func TestLateNewsChangeNothing(t *testing.T) {
	cluster(t, 1, func(t *testing.T, _ *memshard.Registry, ns []*node) {
		n := ns[0]
		old := Encode([]task.Pause{{Function: "f", Band: task.AnyBand, At: time.Now()}})
		n.Take("acme", nil, 20)
		n.Take("acme", old, 10)
		if n.in("acme", "f") {
			t.Error("a rule that was taken away is back")
		}
		n.Take("acme", old, 30)
		n.takeAll([]member.Item{{Key: DefaultPrefix + "acme/rules", Value: nil, Revision: 25}}, 28, false)
		n.takeAll(nil, 29, false)
		if !n.in("acme", "f") {
			t.Error("an older list has taken a rule away")
		}
		n.Take("acme", []byte("{"), 40)
		if !n.in("acme", "f") {
			t.Error("a record that can't be read counts as no rule")
		}
		n.takeAll(nil, 50, false)
		if n.in("acme", "f") || len(n.tenants) != 0 {
			t.Error("what a newer list has not is still there")
		}
		// A restored registry: older, and all there is.
		n.Take("acme", old, 60)
		n.takeAll([]member.Item{{Key: DefaultPrefix + "b/rules", Value: old, Revision: 3}}, 5, true)
		if n.in("acme", "f") || !n.in("b", "f") {
			t.Errorf("after a restore: %v", n.told)
		}
	})
}

func TestBounds(t *testing.T) {
	cluster(t, 1, func(t *testing.T, _ *memshard.Registry, ns []*node) {
		n := ns[0]
		now := time.Now()
		for name, rule := range map[string]task.Pause{
			"function":   {Function: "F", Band: task.AnyBand},
			"band":       {Band: 3},
			"reason":     {Band: task.AnyBand, Reason: string(make([]byte, 256))},
			"until_time": {Band: task.AnyBand, Until: now},
		} {
			var field *task.FieldError
			if _, err := n.Pause(t.Context(), "acme", rule); !errors.As(err, &field) || field.Field != name {
				t.Errorf("%s: %v", name, err)
			}
		}
		// A rule that has ended counts no more, and is dropped with the next write.
		if _, err := n.Pause(t.Context(), "acme", task.Pause{Function: "z", Band: task.AnyBand, Until: now.Add(time.Minute)}); err != nil {
			t.Fatal(err)
		}
		faketime.Pass(2 * time.Minute)
		for i := range task.MaxPauses {
			if _, err := n.Pause(t.Context(), "acme", task.Pause{Function: fmt.Sprint("f", i), Band: task.AnyBand}); err != nil {
				t.Fatal(err)
			}
		}
		var field *task.FieldError
		if _, err := n.Pause(t.Context(), "acme", task.Pause{Band: task.AnyBand}); !errors.As(err, &field) || field.Field != "tenant" {
			t.Errorf("one too many: %v", err)
		}
		if _, err := n.Pause(t.Context(), "acme", task.Pause{Function: "f1", Band: task.AnyBand, Reason: "new"}); err != nil {
			t.Errorf("changing one of them: %v", err)
		}
		if left, removed, err := n.Resume(t.Context(), "acme", task.Pause{}, true); err != nil || len(removed) != task.MaxPauses || len(left.Rules) != 0 || n.count != 0 {
			t.Errorf("resume all: %d left, %d removed, %d counted, %v", len(left.Rules), len(removed), n.count, err)
		}
		n.count = maxRules
		if _, err := n.Pause(t.Context(), "acme", task.Pause{Band: task.AnyBand}); !errors.Is(err, ErrTooMany) {
			t.Errorf("a full cluster: %v", err)
		}
	})
}

func TestRecord(t *testing.T) {
	at := time.Date(2026, 11, 30, 12, 0, 0, 5000, time.UTC)
	rules := []task.Pause{
		{Band: task.AnyBand, At: at},
		{Band: task.High, At: at, Until: at.Add(time.Hour)},
		{Function: "a", Band: task.AnyBand, Reason: "\u2028 <b>", At: at},
		{Function: "a", Band: task.Low, At: at},
	}
	got, err := decode(Encode(rules))
	if err != nil || !reflect.DeepEqual(got, rules) {
		t.Errorf("%v, %v", got, err)
	}
	if text := string(Encode(rules[:1])); text != `{"rules":[{"at":"2026-11-30T12:00:00.000005Z"}]}` {
		t.Error(text) // other versions read it
	}
	if _, err := decode([]byte(`{"rules":[{"band":"urgent"}]}`)); err == nil {
		t.Error("an unknown band is read as something")
	}
}
