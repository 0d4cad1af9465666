package peer

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/internal/faketime"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/shard"
)

// rosterStage is a roster in a bubble with a directory that the test sets.
type rosterStage struct {
	*Roster
	t      *testing.T
	dir    atomic.Pointer[shard.Directory] // Run looks at it, whenever it comes to that
	listed atomic.Uint64                   // the newest number since it was looked at
}

const testLife = 10 * time.Second

func onRoster(t *testing.T, f func(t *testing.T, s *rosterStage)) {
	synctest.Test(t, func(t *testing.T) {
		s := &rosterStage{t: t}
		s.members()
		s.Roster = NewRoster(RosterConfig{Life: testLife, Now: time.Now,
			Directory: s.dir.Load,
			Listed:    func(run, upTo uint64) { s.listed.Store(upTo) }})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); s.Run(ctx) }()
		f(t, s)
		cancel()
		<-ended
	})
}

func (s *rosterStage) members(ns ...shard.Node) { s.dir.Store(&shard.Directory{Nodes: ns}) }

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
		s.members(shard.Node{ID: "a", Session: 7}, shard.Node{ID: "b", Session: 8})
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
		faketime.Pass(2 * time.Second) // of the bubble: the polls end
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
	least := testLife + 1500*time.Millisecond // what it knows is used until its life ends, and a push after that is refused a grace later
	t.Run("by time", func(t *testing.T) {
		onRoster(t, func(t *testing.T, s *rosterStage) {
			s.members(shard.Node{ID: "a", Session: 7})
			s.asks("a", 7, 0)
			s.joins(1)
			faketime.Pass(least)
			s.expect(0)
			faketime.Pass(least / 2)
			s.expect(1)
		})
	})
	t.Run("as it has left", func(t *testing.T) {
		onRoster(t, func(t *testing.T, s *rosterStage) {
			s.members(shard.Node{ID: "a", Session: 7})
			s.asks("a", 7, 0)
			s.Update()
			s.joins(1)
			faketime.Pass(time.Second)
			s.expect(0)
			s.members()
			s.Update()
			faketime.Pass(1500 * time.Millisecond)
			s.expect(0) // it may have raised an epoch just before
			faketime.Pass(time.Second)
			s.expect(1)
		})
	})
	t.Run("as its session is another", func(t *testing.T) {
		onRoster(t, func(t *testing.T, s *rosterStage) {
			s.members(shard.Node{ID: "a", Session: 7})
			s.asks("a", 7, 0)
			s.Update()
			s.joins(1)
			s.members(shard.Node{ID: "a", Session: 8})
			s.Update()
			faketime.Pass(2500 * time.Millisecond)
			s.expect(1)
		})
	})
	t.Run("not while the directory is behind", func(t *testing.T) {
		onRoster(t, func(t *testing.T, s *rosterStage) {
			s.members(shard.Node{ID: "a", Session: 7}) // it has joined again meanwhile, which is not known yet
			s.asks("a", 8, 0)
			s.Update()
			s.joins(1)
			s.members()
			s.Update()
			faketime.Pass(2500 * time.Millisecond)
			s.expect(0)
		})
	})
}
