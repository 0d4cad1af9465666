package ownership

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headrace/headrace/dispatcher/core"
)

const testLife = 10 * time.Second

func executor(n uint64) core.RosterChange {
	return core.RosterChange{Executor: fmt.Sprintf("executor %07d", n), Number: n}
}

// What a peer knows is the same whether it was told each change or everything at once.
func TestViewFollowsTheRoster(t *testing.T) {
	s := NewRoster(testLife)
	var steps, all RosterView
	check := func(want string) {
		t.Helper()
		all = RosterView{}
		all.Take(s.Since(0), 7, time.Now())
		m := s.Since(steps.version)
		if m.Full && steps.version > 0 && !strings.HasPrefix(want, "!") {
			t.Error("everything was sent")
		}
		steps.Take(m, 7, time.Now())
		for _, v := range []*RosterView{&steps, &all} {
			var got []string
			for id := range v.executors {
				got = append(got, strings.TrimPrefix(id, "executor 000000"))
			}
			for p, e := range v.held {
				got = append(got, fmt.Sprintf("p%d@%d", p, e))
			}
			slices.Sort(got)
			if strings.Join(got, " ") != strings.TrimPrefix(want, "!") {
				t.Errorf("knows %v, want %s", got, want)
			}
		}
	}
	s.Change(0, []core.RosterChange{executor(1), {Partition: 3, Epoch: 2}})
	check("1 p3@2")
	s.Change(0, []core.RosterChange{executor(2), {Partition: 4, Epoch: 1}})
	check("1 2 p3@2 p4@1")
	s.Change(0, []core.RosterChange{{Executor: executor(1).Executor, Gone: true}, {Partition: 3, Epoch: 2, Gone: true}})
	check("2 p4@1")
	for range RosterLog {
		s.Change(0, []core.RosterChange{executor(5), {Executor: executor(5).Executor, Gone: true}})
	}
	check("!2 p4@1")
	s.Change(1, nil) // the core panicked and began anew
	check("!")
	s.Change(1, []core.RosterChange{executor(1)})
	check("1")
}

// A view may be used for the epoch that it is about, in the session it was asked for in, for its life.
func TestUseOfAView(t *testing.T) {
	began := time.Now()
	var v RosterView
	v.Take(RosterNews{Version: 3, Full: true, Changes: []core.RosterChange{{Executor: "b"}, {Executor: "a"}, {Partition: 3, Epoch: 5}}}, 7, began)
	for _, c := range []struct {
		name      string
		partition uint32
		epoch     uint64
		session   int64
		after     time.Duration
		ok        bool
	}{
		{"as it is", 3, 5, 7, testLife, true},
		{"another partition", 4, 5, 7, 0, false},
		{"an older epoch", 3, 4, 7, 0, false},
		{"another session of ours", 3, 5, 8, 0, false},
		{"too old", 3, 5, 7, testLife + 1, false},
	} {
		ids, ok := v.Use(c.partition, c.epoch, c.session, began.Add(c.after), testLife)
		if ok != c.ok || ok && fmt.Sprint(ids) != "[a b]" {
			t.Errorf("%s: %v, %v", c.name, ids, ok)
		}
	}
}

// A node that was in the directory when it asked, and dies before the directory changes again, holds back the first
// pushes to new executors for the rest of a grace after it has left, not until its roster is too old.
func TestPollerThatDiesIsNotWaitedFor(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	r := NewRoster(RosterLife(5 * time.Second))
	here := true
	there := func(Poller) bool { return here }
	r.Change(1, nil)
	r.Polled(now, Poller{Node: "n3", Session: 3}, r.Version(), there)
	r.Change(1, []core.RosterChange{executor(1)})
	now = now.Add(5 * time.Second) // its lease
	here = false
	r.Look(now, there)
	if _, upTo, _ := r.Listed(now.Add(1500*time.Millisecond), there); upTo != 0 {
		t.Error("an executor is listed while the dead node may still be about to take over")
	}
	if _, upTo, _ := r.Listed(now.Add(2*time.Second), there); upTo != 1 {
		t.Errorf("listed up to %d two seconds after the node has left, want 1", upTo)
	}
}
