package testcluster_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/executor"
	"github.com/headrace/headrace/fn"
	"github.com/headrace/headrace/internal/testcluster"
)

// cable is the network of one process, until it is cut.
type cable struct {
	dial  func(ctx context.Context, addr string) (net.Conn, error)
	mu    sync.Mutex // guards following
	conns []net.Conn
	gone  bool
}

func (w *cable) Dial(ctx context.Context, addr string) (net.Conn, error) {
	w.mu.Lock()
	gone := w.gone
	w.mu.Unlock()
	if gone {
		return nil, errors.New("the cable is cut")
	}
	conn, err := w.dial(ctx, addr)
	if err == nil {
		w.mu.Lock()
		w.conns = append(w.conns, conn)
		w.mu.Unlock()
	}
	return conn, err
}

func (w *cable) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gone = true
	for _, c := range w.conns {
		_ = c.Close()
	}
}

// through runs an executor over a cable until the test ends.
func through(t *testing.T, w *cable, addr string, register func(x *executor.Executor)) *executor.Executor {
	t.Helper()
	x, err := executor.New(executor.Config{Logger: slog.New(slog.DiscardHandler), Addr: addr, Tenant: "acme", Slots: 20, Dialer: w.Dial, DrainTimeout: -1})
	if err != nil {
		t.Fatal(err)
	}
	register(x)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- x.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	<-x.Ready()
	return x
}

// grace returns the longest time that a partition of the dead node was somebody's and not open.
func grace(t *testing.T, dead, survivor *testcluster.OneNode, also func()) time.Duration {
	t.Helper()
	was := map[uint32]uint64{}
	for _, p := range partitions(t, survivor) {
		if p.NodeId == dead.ID() {
			was[p.Id] = p.Epoch
		}
	}
	dead.Kill()
	also()
	takenAt, openAt, longest := map[uint32]time.Time{}, map[uint32]time.Time{}, time.Duration(0)
	until(t, 20*time.Second, "all partitions are open again", func() bool {
		for _, p := range partitions(t, survivor) {
			epoch, its := was[p.Id]
			if !its || p.Epoch <= epoch {
				continue
			}
			if takenAt[p.Id].IsZero() {
				takenAt[p.Id] = time.Now()
			}
			if p.State == "open" && openAt[p.Id].IsZero() {
				openAt[p.Id] = time.Now()
				longest = max(longest, time.Since(takenAt[p.Id]))
			}
		}
		return len(openAt) == len(was)
	})
	return longest
}

// A node that takes over knows from the dead one who may hold a try of it. When all have answered it waits no
// longer; when one doesn't, it waits out the grace (R12). What runs goes on either way.
func TestGraceEndsWhenAllHaveAnswered(t *testing.T) {
	for name, silent := range map[string]bool{"all answer": false, "one is silent": true} {
		t.Run(name, func(t *testing.T) {
			three(t, func(t *testing.T, c *testcluster.Several, a, b, d *testcluster.OneNode) {
				r := &ran{}
				hold := make(chan struct{})
				held := fn.Raw("held", fn.Options{})
				register := func(x *executor.Executor) {
					executor.Handle(x, held, func(_ context.Context, in []byte) ([]byte, error) {
						r.note(string(in))
						<-hold
						return nil, nil
					})
				}
				w, lost := &cable{dial: c.Dial}, &cable{dial: c.Dial}
				x := through(t, w, a.Addr, register)
				idle := through(t, lost, a.Addr, func(x *executor.Executor) {
					executor.Handle(x, fn.Raw("other", fn.Options{}), func(_ context.Context, in []byte) ([]byte, error) { return in, nil })
				})
				until(t, 5*time.Second, "sessions to all nodes", func() bool { return x.Stats().Sessions == 3 && idle.Stats().Sessions == 3 })
				cl := a.Client("acme")
				var ids []string
				for range 12 {
					ids = append(ids, submit(t, cl, client.Task{Function: "held", Payload: []byte(time.Now().String() + string(rune('a'+len(ids))))}))
				}
				until(t, 5*time.Second, "all run", func() bool { return x.Stats().Running == 12 })
				took := grace(t, b, a, func() {
					if silent { // the owner had a session to it when it died
						lost.cut()
					}
				})
				if !silent && took > 700*time.Millisecond {
					t.Errorf("partitions were closed for %v although everybody had answered", took)
				}
				if silent && took < time.Second {
					t.Errorf("a partition was opened after %v: somebody had not answered", took)
				}
				close(hold)
				for _, id := range ids {
					if info := wait(t, cl, id); !info.Succeeded() {
						t.Errorf("task %s: %v", id, info.State)
					}
				}
				r.mu.Lock()
				defer r.mu.Unlock()
				for in, n := range r.starts {
					if n != 1 {
						t.Errorf("%q was started %d times", in, n)
					}
				}
			})
		})
	}
}
