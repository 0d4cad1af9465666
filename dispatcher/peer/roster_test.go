package peer

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headrace/headrace/dispatcher/core"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/shard"
)

// rosterStage is a roster in a bubble with a directory that the test sets.
type rosterStage struct {
	*Roster
	t      *testing.T
	nodes  []shard.Node
	listed atomic.Uint64 // the newest number since it was looked at
}

const testLife = 10 * time.Second

func onRoster(t *testing.T, f func(t *testing.T, s *rosterStage)) {
	synctest.Test(t, func(t *testing.T) {
		s := &rosterStage{t: t}
		s.Roster = NewRoster(RosterConfig{Life: testLife, Now: time.Now,
			Directory: func() *shard.Directory { return &shard.Directory{Nodes: s.nodes} },
			Listed:    func(run, upTo uint64) { s.listed.Store(upTo) }})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); s.Run(ctx) }()
		f(t, s)
		cancel()
		<-ended
	})
}

// asks polls once as a node.
func (s *rosterStage) asks(node string, session int64, version uint64) *headracev1.PollRosterResponse {
	return s.poll(s.t.Context(), nil, &headracev1.PollRosterRequest{NodeId: node, Session: session, Version: version})
}

// expect says up to which number executors were listed since the last call; 0: none were.
func (s *rosterStage) expect(want uint64) {
	s.t.Helper()
	synctest.Wait()
	if got := s.listed.Swap(0); got != want {
		s.t.Errorf("listed up to %d, want %d", got, want)
	}
}

func executor(n uint64) core.RosterChange {
	return core.RosterChange{Executor: fmt.Sprintf("executor %07d", n), Number: n}
}

func (s *rosterStage) joins(n uint64) { s.Change(0, []core.RosterChange{executor(n)}) }

// Nobody takes over: an executor is listed at once. A node that has asked holds back those that it does not know.
func TestListedOnceThePollersKnow(t *testing.T) {
	onRoster(t, func(t *testing.T, s *rosterStage) {
		s.joins(1)
		s.expect(1)
		s.nodes = []shard.Node{{ID: "a", Session: 7}, {ID: "b", Session: 8}}
		a, b := s.asks("a", 7, 0), s.asks("b", 8, 0)
		s.joins(2)
		s.expect(0)
		a = s.asks("a", 7, a.Version)
		s.expect(0)
		if len(a.Changes) != 1 || a.Full || string(a.Changes[0].ExecutorId) != executor(2).Executor {
			t.Errorf("a was told %v", a)
		}
		b = s.asks("b", 8, b.Version) // told, and that is not known to have arrived
		s.expect(0)
		go s.asks("a", 7, a.Version)
		s.expect(0)
		go s.asks("b", 8, b.Version)
		s.expect(2)
		time.Sleep(2 * time.Second) // of the bubble: the polls end
	})
}

// A poll waits for news for a second.
func TestPollWaitsForNews(t *testing.T) {
	onRoster(t, func(t *testing.T, s *rosterStage) {
		s.joins(1)
		v := s.asks("a", 7, 0).Version
		began := time.Now()
		if m := s.asks("a", 7, v); len(m.Changes) != 0 || m.Version != v || time.Since(began) != rosterWait {
			t.Errorf("after %v: %v", time.Since(began), m)
		}
		got := make(chan *headracev1.PollRosterResponse)
		go func() { got <- s.asks("a", 7, v) }()
		synctest.Wait()
		s.joins(2)
		began = time.Now()
		if m := <-got; len(m.Changes) != 1 || time.Since(began) != 0 {
			t.Errorf("after %v: %v", time.Since(began), m)
		}
	})
}

// A node that does not answer any more holds new executors back until what it knows can't be used.
func TestSilentPollerIsPassedOver(t *testing.T) {
	least := testLife + rosterLate // what it knows is used until its life ends, and a push after that is refused a grace later
	t.Run("by time", func(t *testing.T) {
		onRoster(t, func(t *testing.T, s *rosterStage) {
			s.nodes = []shard.Node{{ID: "a", Session: 7}}
			s.asks("a", 7, 0)
			s.joins(1)
			time.Sleep(least)
			s.expect(0)
			time.Sleep(least / 2)
			s.expect(1)
		})
	})
	t.Run("as it has left", func(t *testing.T) {
		onRoster(t, func(t *testing.T, s *rosterStage) {
			s.nodes = []shard.Node{{ID: "a", Session: 7}}
			s.asks("a", 7, 0)
			s.Update()
			s.joins(1)
			time.Sleep(time.Second)
			s.expect(0)
			s.nodes = nil
			s.Update()
			time.Sleep(rosterLate)
			s.expect(0) // it may have raised an epoch just before
			time.Sleep(time.Second)
			s.expect(1)
		})
	})
	t.Run("as its session is another", func(t *testing.T) {
		onRoster(t, func(t *testing.T, s *rosterStage) {
			s.nodes = []shard.Node{{ID: "a", Session: 7}}
			s.asks("a", 7, 0)
			s.Update()
			s.joins(1)
			s.nodes[0].Session = 8
			s.Update()
			time.Sleep(rosterLate + time.Second)
			s.expect(1)
		})
	})
	t.Run("not while the directory is behind", func(t *testing.T) {
		onRoster(t, func(t *testing.T, s *rosterStage) {
			s.nodes = []shard.Node{{ID: "a", Session: 7}} // it has joined again meanwhile, which is not known yet
			s.asks("a", 8, 0)
			s.Update()
			s.joins(1)
			s.nodes = nil
			s.Update()
			time.Sleep(rosterLate + time.Second)
			s.expect(0)
		})
	})
}

// What a peer knows is the same whether it was told each change or everything at once.
func TestViewFollowsTheRoster(t *testing.T) {
	onRoster(t, func(t *testing.T, s *rosterStage) {
		var steps, all rosterView
		check := func(want string) {
			t.Helper()
			all = rosterView{}
			all.take(s.since(0), 7, time.Now())
			m := s.since(steps.version)
			if m.Full && steps.version > 0 && !strings.HasPrefix(want, "!") {
				t.Error("everything was sent")
			}
			steps.take(m, 7, time.Now())
			for _, v := range []*rosterView{&steps, &all} {
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
		for range rosterLog {
			s.Change(0, []core.RosterChange{executor(5), {Executor: executor(5).Executor, Gone: true}})
		}
		check("!2 p4@1")
		s.Change(1, nil) // the core panicked and began anew
		check("!")
		s.Change(1, []core.RosterChange{executor(1)})
		check("1")
	})
}

// A view may be used for the epoch that it is about, in the session it was asked for in, for its life.
func TestUseOfAView(t *testing.T) {
	began := time.Now()
	var v rosterView
	v.take(&headracev1.PollRosterResponse{Version: 3, Full: true, Changes: []*headracev1.RosterChange{
		{ExecutorId: []byte("b")}, {ExecutorId: []byte("a")}, {Partition: 3, Epoch: 5}}}, 7, began)
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
		ids, ok := v.use(c.partition, c.epoch, c.session, began.Add(c.after), testLife)
		if ok != c.ok || ok && fmt.Sprint(ids) != "[a b]" {
			t.Errorf("%s: %v, %v", c.name, ids, ok)
		}
	}
}
