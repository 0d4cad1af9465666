package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/dispatcher/loop"
	"github.com/headrace/headrace/internal/faketime"
	"github.com/headrace/headrace/shard"
	"github.com/headrace/headrace/shard/member"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/store/memstore"
	"github.com/headrace/headrace/task"
)

// stage is a membership and a loop that do what the test says, with a real store between them.
type stage struct {
	*owners
	events chan member.Event
	mem    *memstore.Store

	mu    sync.Mutex        // guards following
	said  []string          // what the owners did, in order
	holds []bool            // answers of the next looks; empty: true
	noted map[uint32]uint64 // epochs in the registry

	session int64
	changes bool // of the session, at each look
	calm    bool // the end of a tenure is written
}

func (s *stage) Holds(context.Context, uint32) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.holds) == 0 {
		return true, nil
	}
	h := s.holds[0]
	s.holds = s.holds[1:]
	return h, nil
}

func (s *stage) Epoch(_ context.Context, p uint32) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.noted[p], nil
}

func (s *stage) Remember(ctx context.Context, p uint32, epoch uint64) (bool, error) {
	held, err := s.Holds(ctx, p)
	if held && err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.noted[p] = epoch
	}
	return held, err
}

func (s *stage) Release(_ context.Context, p uint32) error {
	s.did("key back %d", p)
	return nil
}

// Session is 1, and another at each look from the first change on.
func (s *stage) Session() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changes {
		s.session++
	}
	return 1 + s.session
}

// Nobody dies on this stage: there are no tenures.
func (s *stage) Tenure(uint32) shard.Tenure           { return shard.Tenure{} }
func (s *stage) Passed(context.Context, uint32) error { return member.ErrNotHeld }
func (s *stage) Caught(_ context.Context, p uint32, c shard.Caught) error {
	s.did("caught %d of %d, passed %v", c.Panics, p, c.Passed)
	return nil
}
func (s *stage) Calm(context.Context, uint32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calm {
		return nil
	}
	return member.ErrNotHeld
}
func (s *stage) Hands(context.Context, uint32) (shard.Hands, error) {
	return shard.Hands{}, member.ErrNotHeld
}
func (s *stage) SetHands(context.Context, uint32, shard.Hands) error { return member.ErrNotHeld }

func (s *stage) did(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.said = append(s.said, fmt.Sprintf(format, args...))
}

// asLoop is the stage in the loop's part: its Release is another than the membership's.
type asLoop struct{ *stage }

func (l asLoop) Acquired(a core.Acquired) {
	who := ""
	if a.Complete {
		who = fmt.Sprint(" after ", a.Executors)
	}
	l.did("acquired %d at %d%s", a.Recovered.Partition.ID, a.Epoch, who)
}
func (l asLoop) Guard(uint32, loop.Guard) {}
func (l asLoop) Drop(p uint32, _ error)   { l.did("drop %d", p) }
func (l asLoop) Release(p uint32)         { l.did("release %d", p) }

func play(t *testing.T, f func(t *testing.T, s *stage)) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New()
		s := &stage{events: make(chan member.Event), mem: mem, noted: map[uint32]uint64{}}
		s.owners = newOwners(asLoop{s}, s, func(uint32) (store.Store, core.Database, error) { return mem, 0, nil }, func(context.Context) error { return nil },
			time.Now, zap.NewNop(), s.events)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); s.run(ctx) }()
		f(t, s)
		cancel()
		<-ended
	})
}

// expect waits until nothing moves and compares what was done since the last call.
func (s *stage) expect(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if fmt.Sprint(s.said) != fmt.Sprint(want) {
		t.Errorf("did %q, want %q", s.said, want)
	}
	s.said = nil
}

// The key is gone when it is looked at after the epoch was raised (R10): not an owner. It comes back by another
// Won, at a higher epoch.
func TestKeyLostWhileTheEpochWasRaised(t *testing.T) {
	play(t, func(t *testing.T, s *stage) {
		s.holds = []bool{true, false}
		s.events <- member.Event{Kind: member.Assigned, Partition: 1}
		s.events <- member.Event{Kind: member.Won, Partition: 1}
		s.expect(t)
		s.events <- member.Event{Kind: member.Lost, Partition: 1, Reason: member.Taken}
		faketime.Pass(time.Minute) // of the bubble: it does not try without the key
		s.expect(t)
		s.events <- member.Event{Kind: member.Won, Partition: 1}
		s.expect(t, "acquired 1 at 2")
	})
}

// Who is fenced but holds the key acquires again at once, after panics with growing pauses. A panic is noted in the
// registry and is an alarm: until the partition has been well for a while.
func TestLostByTheLoopIsAcquiredAgain(t *testing.T) {
	play(t, func(t *testing.T, s *stage) {
		s.events <- member.Event{Kind: member.Assigned, Partition: 1}
		s.events <- member.Event{Kind: member.Won, Partition: 1}
		s.expect(t, "acquired 1 at 1")
		id := task.NewID(1, 7, 0)
		s.lost(core.LostPartition{Partition: 1, Epoch: 1, Reason: store.ErrFenced})
		s.expect(t, "acquired 1 at 2")
		s.alarm = func(p uint32, message string) { s.did("alarm of %d: %q", p, message) }
		for i, pause := range []time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond} {
			s.lost(core.LostPartition{Partition: 1, Reason: &loop.PanicError{Task: id}})
			c := shard.Caught{Panics: i + 1, Task: id.String()}
			s.expect(t, fmt.Sprintf("alarm of 1: %q", c), fmt.Sprintf("caught %d of 1, passed false", i+1))
			faketime.Pass(pause)
			s.expect(t, fmt.Sprintf("acquired 1 at %d", 3+i))
		}
		faketime.Pass(passAfter)
		s.expect(t, "caught 3 of 1, passed true")
		s.mu.Lock()
		s.calm = true
		s.mu.Unlock()
		faketime.Pass(shard.TenureCalm - passAfter)
		s.expect(t, `alarm of 1: ""`)
	})
}

// A partition that is wanted elsewhere is handed over, then its key is given back; in a drain all are.
func TestHandOver(t *testing.T) {
	play(t, func(t *testing.T, s *stage) {
		serves := false
		s.ready = func(now bool) { serves = now }
		for p := range uint32(3) {
			s.events <- member.Event{Kind: member.Assigned, Partition: p}
			s.events <- member.Event{Kind: member.Won, Partition: p}
			synctest.Wait()
		}
		s.expect(t, "acquired 0 at 1", "acquired 1 at 1", "acquired 2 at 1")
		if !serves {
			t.Error("not ready")
		}
		s.events <- member.Event{Kind: member.Unassigned, Partition: 1}
		s.expect(t, "release 1")
		s.released(1)
		s.expect(t, "key back 1")
		s.events <- member.Event{Kind: member.Lost, Partition: 1, Reason: member.Released}
		s.startDrain()
		s.expect(t, "release 0", "release 2")
		if serves {
			t.Error("ready in a drain")
		}
		s.released(0)
		s.expect(t, "key back 0")
		s.lost(core.LostPartition{Partition: 2, Reason: errors.New("fenced meanwhile")})
		s.expect(t, "key back 2")
		select {
		case <-s.empty:
			t.Error("empty before the keys are back")
		default:
		}
		s.events <- member.Event{Kind: member.Lost, Partition: 0, Reason: member.Released}
		s.events <- member.Event{Kind: member.Lost, Partition: 2, Reason: member.Released}
		<-s.empty
	})
}

// What is known of the owner before counts only if its own takeover had ended, and if this node was a member all
// the time since it raised the epoch.
func TestWhoMayHoldATry(t *testing.T) {
	play(t, func(t *testing.T, s *stage) {
		s.roster = func(partition uint32, epoch store.Epoch, session int64, _ time.Time) ([]string, bool) {
			return []string{fmt.Sprintf("x of %d@%d", partition, epoch)}, session == 1
		}
		floor := func() {
			e, _ := s.mem.Epoch(t.Context(), 1)
			rs, err := s.mem.Commit(t.Context(), &store.Batch{Parts: []store.Part{{Partition: 1, Epoch: e, Floor: e}}})
			if err != nil || rs[0].Err != nil {
				t.Fatal(err, rs)
			}
		}
		again := func(want string) {
			t.Helper()
			s.lost(core.LostPartition{Partition: 1, Reason: store.ErrFenced})
			s.expect(t, want)
			faketime.Pass(2 * time.Minute)
		}
		s.events <- member.Event{Kind: member.Assigned, Partition: 1}
		s.events <- member.Event{Kind: member.Won, Partition: 1}
		s.expect(t, "acquired 1 at 1")
		again("acquired 1 at 2") // the first had raised no floor
		floor()
		again("acquired 1 at 3 after [x of 1@2]")
		floor()
		s.changes = true
		again("acquired 1 at 4")
	})
}

// asked is a store that notes when it is asked to raise.
type asked struct {
	store.Store
	s *stage
}

func (a asked) AcquireAbove(ctx context.Context, p uint32, from, above store.Epoch) (store.Epoch, error) {
	a.s.did("raise")
	return a.Store.AcquireAbove(ctx, p, from, above)
}

// The pause rules are read after the epoch was raised and before anything can be pushed; without them
// nothing is acquired.
func TestPauseRulesAreReadAfterTheRaise(t *testing.T) {
	play(t, func(t *testing.T, s *stage) {
		mem, fails := asked{memstore.New(), s}, true
		s.store = func(uint32) (store.Store, core.Database, error) { return mem, 0, nil }
		s.rules = func(context.Context) error {
			s.did("rules")
			if fails {
				fails = false
				return errors.New("no answer")
			}
			return nil
		}
		s.events <- member.Event{Kind: member.Assigned, Partition: 1}
		s.events <- member.Event{Kind: member.Won, Partition: 1}
		s.expect(t, "raise", "rules")
		faketime.Pass(time.Second)
		s.expect(t, "raise", "rules", "acquired 1 at 2")
	})
}
