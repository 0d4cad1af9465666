package loop

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/internal/faketime"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/store/memstore"
	"github.com/headrace/headrace/task"
)

// harness runs a loop over a memstore in a bubble.
type harness struct {
	*Loop
	t     *testing.T
	store *memstore.Store
	lost  chan core.LostPartition
}

func run(t *testing.T, f func(t *testing.T, h *harness)) {
	synctest.Test(t, func(t *testing.T) {
		h := &harness{t: t, store: memstore.New(), lost: make(chan core.LostPartition, 100)}
		seed := uint64(1)
		l, err := New(Config{
			Core:      core.Config{Random: func() uint64 { seed = seed*6364136223846793005 + 1442695040888963407; return seed }},
			Databases: []Database{{Name: "main", Store: h.store}},
			Trust:     func() time.Time { return time.Now().Add(time.Second) },
			Lost:      func(p core.LostPartition) { h.lost <- p },
		})
		if err != nil {
			t.Fatal(err)
		}
		h.Loop = l
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- l.Run(ctx) }()
		defer func() {
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("run: %v", err)
			}
		}()
		f(t, h)
	})
}

// acquire hands a partition over as the node does.
func (h *harness) acquire(p uint32) {
	h.t.Helper()
	ctx := h.t.Context()
	from, err := h.store.Epoch(ctx, p)
	if err != nil {
		h.t.Fatal(err)
	}
	epoch, err := h.store.Acquire(ctx, p, from)
	if err != nil {
		h.t.Fatal(err)
	}
	rec, err := h.store.Recover(ctx, p)
	if err != nil {
		h.t.Fatal(err)
	}
	flows, err := h.store.Flows(ctx, p)
	if err != nil {
		h.t.Fatal(err)
	}
	h.Acquired(core.Acquired{Epoch: epoch, RaisedAt: time.Now(), Recovered: rec, Flows: flows})
}

func (h *harness) submit(p uint32) (task.ID, error) {
	now := time.Now().UTC().Truncate(time.Microsecond)
	a, err := h.Submit(h.t.Context(), &core.Submit{Tenant: "t", Partition: p, Tasks: []*store.Task{{
		Tenant: "t", Function: "f", Attempt: 1, Band: task.Normal, DueAt: now, FirstDueAt: now}}})
	if err == nil {
		err = a.Err
	}
	if err != nil {
		return task.ID{}, err
	}
	return a.Items[0].ID, a.Items[0].Err
}

// outbox takes everything and remembers its end.
type outbox struct{ closed chan error }

func (o outbox) Put(*headracev1.SessionResponse) bool { return true }
func (o outbox) Close(reason error) {
	select {
	case o.closed <- reason:
	default:
	}
}

// A panic in the core costs the partition of the event: it is lost, its neighbour serves on, and it serves
// again once it is acquired.
func TestPanicCostsOnePartition(t *testing.T) {
	run(t, func(t *testing.T, h *harness) {
		h.acquire(1)
		h.acquire(2)
		id, err := h.submit(1)
		if err != nil {
			t.Fatal(err)
		}
		events, stop, err := h.Watch(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		defer stop()
		h.post("test", func(time.Time) { h.enterAt("test", 1, func(*core.Core) { panic("a bug") }) })
		for range events { // ends with the partition
		}
		if p := <-h.lost; p.Partition != 1 || !errors.Is(p.Reason, ErrPanic) {
			t.Errorf("lost %+v", p)
		}
		if _, err := h.submit(1); !errors.Is(err, core.ErrNotOwner) {
			t.Errorf("submit to the lost one: %v", err)
		}
		if _, err := h.submit(2); err != nil {
			t.Errorf("submit to its neighbour: %v", err)
		}
		h.acquire(1)
		if _, err := h.submit(1); err != nil {
			t.Errorf("submit after it was acquired again: %v", err)
		}
	})
}

// An orderly release ends the watches of the partition, as a loss does: who waits asks the next owner.
func TestReleaseEndsWatches(t *testing.T) {
	run(t, func(t *testing.T, h *harness) {
		h.acquire(1)
		id, err := h.submit(1)
		if err != nil {
			t.Fatal(err)
		}
		events, stop, err := h.Watch(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		defer stop()
		h.Release(1)
		timeout := time.After(time.Minute)
		for open := true; open; {
			select {
			case ev, more := <-events:
				if open = more; more && ev.Task == nil {
					t.Error("an event without a task")
				}
			case <-timeout:
				t.Fatal("the watch is open a minute after the release")
			}
		}
	})
}

// A panic that names nothing costs the core: sessions end, callers hear of an unknown outcome, every
// partition is lost, and the node lives on.
func TestPanicOfUnknownCauseStartsANewCore(t *testing.T) {
	run(t, func(t *testing.T, h *harness) {
		h.SetBounds("t", []task.Bound{{Concurrency: 1}})
		h.acquire(1)
		h.acquire(2)
		id, err := h.submit(2)
		if err != nil {
			t.Fatal(err)
		}
		out := outbox{make(chan error, 1)}
		hello := &headracev1.Hello{ExecutorId: make([]byte, 16), Name: "x", Slots: 1, Functions: []*headracev1.FunctionDeclaration{{Tenant: "t", Name: "g"}}}
		if _, err := h.OpenSession(t.Context(), hello, out); err != nil {
			t.Fatal(err)
		}
		events, stop, err := h.Watch(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		defer stop()
		// A look that panics costs the call alone.
		if err := h.Do(t.Context(), func(*core.Core) { panic("a bug") }); !errors.Is(err, ErrPanic) {
			t.Errorf("the call: %v", err)
		}
		if _, err := h.submit(1); err != nil {
			t.Errorf("submit after a look that panicked: %v", err)
		}
		h.post("test", func(now time.Time) {
			h.core.Tick(now) // nothing is in hand any more
			h.enter("test", func(*core.Core) { panic("a bug") })
		})
		for _, want := range []uint32{1, 2} {
			if p := <-h.lost; p.Partition != want {
				t.Errorf("lost %+v, want %d", p, want)
			}
		}
		if reason := <-out.closed; !errors.Is(reason, core.ErrUnknownOutcome) {
			t.Errorf("the session: %v", reason)
		}
		for range events { // ends
		}
		h.acquire(2)
		if _, err := h.submit(2); err != nil {
			t.Errorf("submit after it was acquired again: %v", err)
		}
		// A limit waits for partition 1: nobody has counted what runs there.
		shut := func(want bool) {
			t.Helper()
			faketime.Pass(5 * time.Second)
			if bs, err := h.Bounds(t.Context(), "t", "", "", 1); err != nil || len(bs) != 1 || (bs[0].Why != "") != want {
				t.Errorf("the limit: %+v, %v; want it shut: %v", bs, err, want)
			}
		}
		shut(true)
		h.acquire(1)
		shut(false)
	})
}

// The task in hand at a panic is a suspect; in hand twice, it is handed over as one, once.
func TestSuspectIsNamedTheSecondTime(t *testing.T) {
	run(t, func(t *testing.T, h *harness) {
		h.acquire(1)
		id, err := h.submit(1)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			h.post("test", func(time.Time) {
				h.suspects[id]++
				h.enterAt("test", 1, func(*core.Core) { panic("a bug") })
			})
			<-h.lost
			h.acquire(1)
		}
		synctest.Wait()
		row, err := h.store.Get(t.Context(), id)
		if err != nil || row.State != task.Failed {
			t.Errorf("the suspect: %+v, %v", row, err)
		}
		if _, err := h.submit(1); err != nil {
			t.Errorf("the partition: %v", err)
		}
	})
}

// A fenced commit loses the partition and answers its callers; a commit of unknown outcome is not taken for
// a failure.
func TestRefusedAndUnknownCommits(t *testing.T) {
	run(t, func(t *testing.T, h *harness) {
		h.acquire(1)
		if _, err := h.store.Acquire(t.Context(), 1, 1); err != nil { // somebody else
			t.Fatal(err)
		}
		if _, err := h.submit(1); err == nil {
			t.Error("a fenced submit was accepted")
		}
		if p := <-h.lost; !errors.Is(p.Reason, store.ErrFenced) {
			t.Errorf("lost %+v", p)
		}
		h.acquire(1)
		h.store.Fail = func(op string) memstore.Fault {
			if op == "commit" {
				return memstore.Fault{Err: store.ErrUnknown, Apply: true}
			}
			return memstore.Fault{}
		}
		if _, err := h.submit(1); !errors.Is(err, core.ErrUnknownOutcome) {
			t.Errorf("an unknown outcome is told as %v", err)
		}
		if p := <-h.lost; !errors.Is(p.Reason, core.ErrUnknownOutcome) {
			t.Errorf("lost %+v", p)
		}
	})
}

// When the loop ends, whoever waits is answered.
func TestStopAnswersEverybody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		block := make(chan struct{})
		s := memstore.New()
		l, err := New(Config{Core: core.Config{Random: func() uint64 { return 7 }}, Databases: []Database{{Name: "main", Store: blocking{s, block}}}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- l.Run(ctx) }()
		h := &harness{Loop: l, t: t, store: s}
		h.acquire(1)
		answer := make(chan error, 1)
		go func() { _, err := h.submit(1); answer <- err }()
		synctest.Wait()
		cancel()
		if err := <-answer; !errors.Is(err, ErrStopped) {
			t.Errorf("the caller: %v", err)
		}
		close(block)
		if err := <-ended; err != nil {
			t.Errorf("run: %v", err)
		}
		if err := l.Do(t.Context(), func(*core.Core) {}); !errors.Is(err, ErrStopped) {
			t.Errorf("after the end: %v", err)
		}
	})
}

// blocking is a store whose commits wait.
type blocking struct {
	*memstore.Store
	block chan struct{}
}

func (b blocking) Commit(ctx context.Context, batch *store.Batch) ([]store.PartResult, error) {
	<-b.block
	return b.Store.Commit(ctx, batch)
}
