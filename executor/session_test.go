package executor_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/headrace/headrace/executor"
	"github.com/headrace/headrace/fn"
	"github.com/headrace/headrace/internal/faketime"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

// The node dies with one task running and one outcome that was not committed. Its successor hears of
// both, and each handler has run once (B028, B036).
func TestNodeRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		let := make(chan struct{})
		var starts atomic.Int64
		r, s := run(t, executor.Config{Slots: 4}, func(x *executor.Executor) {
			x.HandleRaw("f", fn.Options{}, func(ctx context.Context, tk *executor.Task) (executor.Result, error) {
				starts.Add(1)
				if tk.ID.Seq() == 2 {
					<-let
				}
				return executor.Result{Body: []byte("done")}, ctx.Err()
			})
		})
		defer r.close()
		r.n.set(func(n *node) { n.hold = true })
		s.push(1, nil)
		long := s.push(2, nil)
		first := r.outcome()
		r.n.stop()
		faketime.Pass(15 * time.Second) // nobody listens; of the bubble
		r.n.set(func(n *node) { n.epoch, n.hold = 6, false })
		r.n.start()
		began := time.Now()
		s = <-r.n.sessions
		if d := time.Since(began); d > 1500*time.Millisecond {
			t.Errorf("came back after %v", d)
		}
		again := r.outcome()
		if string(again.TaskId) != string(first.TaskId) || again.Token.Push != first.Token.Push {
			t.Errorf("%v was reported, then %v", first, again)
		}
		synctest.Wait()
		// The first hello can't speak for epoch 6; the one after the welcome does, and claims what runs.
		claimed := 0
		for range len(r.n.claims) {
			if c := <-r.n.claims; string(c.TaskId) == string(long.TaskId) && c.Outcome == nil && c.RunMicros > 0 {
				claimed++
			}
		}
		if claimed != 2 {
			t.Errorf("the running try was claimed %d times, want in both hellos", claimed)
		}
		close(let)
		o := r.outcome()
		for string(o.TaskId) == string(first.TaskId) { // both hellos may tell it
			o = r.outcome()
		}
		if string(o.TaskId) != string(long.TaskId) || o.ErrorClass != 0 || o.Token.Epoch != 5 {
			t.Errorf("outcome %v", text(o))
		}
		synctest.Wait()
		if n := starts.Load(); n != 2 {
			t.Errorf("%d starts", n)
		}
		s.push(3, nil)
		r.outcome()
	})
}

// The node comes back under another id at its address. The executor keeps one session there: of two, each
// one's hello would leave out what the other claims, which the node takes for a denial.
func TestNodeRestartsUnderAnotherID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		let := make(chan struct{})
		r, s := run(t, executor.Config{Slots: 4}, func(x *executor.Executor) {
			x.HandleRaw("f", fn.Options{}, func(ctx context.Context, _ *executor.Task) (executor.Result, error) {
				<-let
				return executor.Result{}, ctx.Err()
			})
		})
		defer r.close()
		long := s.push(1, nil)
		synctest.Wait()
		for _, id := range []string{"n2", "n3"} {
			r.n.stop()
			faketime.Pass(time.Second) // of the bubble
			r.n.set(func(n *node) { n.id = id; n.epoch++ })
			r.n.start()
			<-r.n.sessions
			if c := <-r.n.claims; string(c.TaskId) != string(long.TaskId) {
				t.Errorf("%s hears the claim %v", id, c)
			}
			faketime.Pass(10 * time.Second) // of the bubble
			if st := r.x.Stats(); len(r.n.sessions) != 0 || st.Sessions != 1 || st.Running != 1 {
				t.Errorf("%s: %d further sessions, %+v", id, len(r.n.sessions), st)
			}
			for range len(r.n.claims) {
				<-r.n.claims
			}
		}
		close(let)
		if o := r.outcome(); string(o.TaskId) != string(long.TaskId) || o.ErrorClass != 0 {
			t.Errorf("outcome %v", text(o))
		}
	})
}

// An owner that answers no beats for four fifths of the orphan timeout has lost the try: the handler is
// told, once, and the try is reported as a loss when somebody listens again (R7).
func TestOrphan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cause atomic.Value
		r, s := run(t, executor.Config{}, func(x *executor.Executor) {
			x.HandleRaw("f", fn.Options{}, func(ctx context.Context, _ *executor.Task) (executor.Result, error) {
				<-ctx.Done()
				cause.Store(context.Cause(ctx))
				return executor.Result{}, ctx.Err()
			})
		})
		defer r.close()
		s.push(1, func(p *headracev1.Push) { p.OrphanMicros = 10_000_000 })
		faketime.Pass(30 * time.Second) // beats are answered: nothing happens
		if cause.Load() != nil {
			t.Fatal("cancelled although beats are answered")
		}
		r.n.set(func(n *node) { n.deaf, n.hold = true, true })
		began := time.Now()
		o := r.outcome()
		if d := time.Since(began); d < 7*time.Second || d > 9*time.Second {
			t.Errorf("orphaned after %v, want about 8 s", d)
		}
		if cause.Load() != executor.ErrOrphaned || task.Class(o.ErrorClass) != task.ExecutorLost {
			t.Errorf("cause %v, outcome %v", cause.Load(), text(o))
		}
		// Nobody commits it; it is said again after a while, and then somebody does.
		r.n.set(func(n *node) { n.hold, n.deaf = false, false })
		if again := r.outcome(); again.Token.Push != o.Token.Push {
			t.Errorf("then %v", again)
		}
	})
}

// A stream that is cut takes no task with it, and a node that says nothing gets a new stream (B002).
func TestStreamsBreak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var starts atomic.Int64
		r, s := run(t, executor.Config{Slots: 1}, func(x *executor.Executor) {
			x.HandleRaw("f", fn.Options{}, func(context.Context, *executor.Task) (executor.Result, error) {
				starts.Add(1)
				faketime.Pass(100 * time.Millisecond)
				return executor.Result{}, nil
			})
		})
		defer r.close()
		for i := range uint64(50) {
			s.push(i, nil)
			close(s.cut)
			next := <-r.n.sessions
			synctest.Wait()
			// Either it was taken, then it is claimed or reported, or it never started.
			for range len(r.n.acks) {
				<-r.n.acks
			}
			for range len(r.n.claims) {
				<-r.n.claims
			}
			s = next
			faketime.Pass(time.Second)
		}
		synctest.Wait()
		if got := int64(len(r.n.outcomes)); got < starts.Load() {
			t.Errorf("%d starts, %d outcomes", starts.Load(), got)
		}
		for range len(r.n.outcomes) {
			<-r.n.outcomes
		}
		s.push(99, nil) // the slot is free
		r.outcome()
		if st := r.x.Stats(); st.Running != 0 || st.Sessions != 1 || st.Succeeded != st.Started {
			t.Errorf("%+v", st)
		}
	})
}

// A node that says nothing any more, on a connection that looks alive, gets a new stream after 5 s; what
// runs goes on.
func TestSilentNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		let := make(chan struct{})
		r, s := run(t, executor.Config{}, func(x *executor.Executor) {
			x.HandleRaw("f", fn.Options{}, func(context.Context, *executor.Task) (executor.Result, error) {
				<-let
				return executor.Result{}, nil
			})
		})
		defer r.close()
		s.push(1, nil)
		synctest.Wait()
		r.n.set(func(n *node) { n.mute = true })
		began := time.Now()
		<-r.n.sessions
		if d := time.Since(began); d < 4*time.Second || d > 6*time.Second {
			t.Errorf("a new stream after %v", d)
		}
		r.n.set(func(n *node) { n.mute = false })
		if c := <-r.n.claims; c.Outcome != nil {
			t.Errorf("claim %v", c)
		}
		close(let)
		if o := r.outcome(); o.ErrorClass != 0 {
			t.Error(text(o))
		}
	})
}

// The directory names a second node: a session is opened there, and the slots are shared.
func TestDirectoryBringsNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		second := newNode(t)
		second.set(func(n *node) { n.id, n.partition = "n2", 2 })
		first := newNode(t)
		x, err := executor.New(executor.Config{Addr: "passthrough:///one", Slots: 2, Logger: slog.New(slog.DiscardHandler), Dialer: func(ctx context.Context, addr string) (net.Conn, error) {
			if addr == "two" {
				return second.dial(ctx, addr)
			}
			return first.dial(ctx, addr)
		}})
		if err != nil {
			t.Fatal(err)
		}
		x.HandleRaw("f", fn.Options{}, func(context.Context, *executor.Task) (executor.Result, error) { return executor.Result{}, nil })
		ran := make(chan error, 1)
		ctx, end := context.WithCancel(t.Context())
		go func() { ran <- x.Run(ctx) }()
		s1 := <-first.sessions
		names := func(nodes ...*headracev1.DirectoryNode) {
			first.set(func(n *node) {
				n.nodes = nodes
				close(n.changed)
				n.changed = make(chan struct{})
			})
		}
		n1 := &headracev1.DirectoryNode{Id: "n1", Partitions: []uint32{1}}
		names(n1, &headracev1.DirectoryNode{Id: "n2", Address: "passthrough:///two", Partitions: []uint32{2}}, &headracev1.DirectoryNode{Id: "n3", Address: "passthrough:///three"})
		s2 := <-second.sessions
		s1.push(1, nil)
		<-first.outcomes
		synctest.Wait()
		s2.push(1, nil) // credit that came back goes to whoever has none
		<-second.outcomes
		names(n1)
		synctest.Wait()
		if n := x.Stats().Sessions; n != 1 {
			t.Errorf("%d sessions after the second node has gone", n)
		}
		end()
		if err := <-ran; err != nil {
			t.Error(err)
		}
		first.stop()
		second.stop()
	})
}

// A large payload is fetched; one that can't be is given back, uncounted, without a call of the handler.
func TestFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, s := run(t, executor.Config{Slots: 1}, func(x *executor.Executor) {
			x.HandleRaw("f", fn.Options{}, func(_ context.Context, tk *executor.Task) (executor.Result, error) {
				return executor.Result{Body: fmt.Append(nil, len(tk.Payload))}, nil
			})
		})
		defer r.close()
		big := func(p *headracev1.Push) { p.Fetch, p.PayloadSize = true, 1<<20 }
		r.n.set(func(n *node) { n.payloads[task.NewID(1, 1, 977)] = make([]byte, 1<<20) })
		s.push(1, big)
		if o := r.outcome(); string(o.Result) != "1048576" {
			t.Errorf("%v", text(o))
		}
		synctest.Wait()
		s.push(2, big)
		if o := r.outcome(); task.Class(o.ErrorClass) != task.Drained || !strings.Contains(o.Message, "no payload") {
			t.Errorf("a payload that is gone: %v", text(o))
		}
		synctest.Wait()
		r.n.set(func(n *node) { n.fetchErr = status.Error(codes.Unavailable, "busy") })
		began := time.Now()
		s.push(3, big)
		if o := r.outcome(); task.Class(o.ErrorClass) != task.Drained || time.Since(began) < 100*time.Millisecond {
			t.Errorf("a node that is away: %v after %v", text(o), time.Since(began))
		}
		if n := r.x.Stats().Started; n != 1 {
			t.Errorf("%d handlers were called", n)
		}
	})
}

// Progress, checkpoints and log lines reach the task; the process's logger has the lines, too.
func TestReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var own strings.Builder
		log := slog.New(slog.NewTextHandler(&own, nil))
		r, s := run(t, executor.Config{Logger: log}, func(x *executor.Executor) {
			x.HandleRaw("f", fn.Options{}, func(ctx context.Context, _ *executor.Task) (executor.Result, error) {
				l := executor.Logger(ctx)
				l.Debug("not for the task")
				l.With("page", 3).WithGroup("g").Info("hello", "k", "two words")
				for i := range 1000 {
					executor.Progress(ctx, float64(i)/1000, fmt.Sprint("step ", i))
					faketime.Pass(3 * time.Millisecond)
				}
				if err := executor.Checkpoint(ctx, make([]byte, task.MaxCheckpoint+1)); err == nil {
					t.Error("a large checkpoint was taken")
				}
				executor.Checkpoint(ctx, []byte("at 1000"))
				l.Error("the end")
				return executor.Result{}, errors.New("again")
			})
		})
		defer r.close()
		s.push(1, nil)
		o := r.outcome()
		if string(o.Checkpoint) != "at 1000" {
			t.Errorf("checkpoint %q", o.Checkpoint)
		}
		synctest.Wait()
		var lines []string
		progress := 0
		for range len(r.n.reports) {
			m := <-r.n.reports
			progress += len(m.Progress)
			for _, rep := range m.Logs {
				for _, e := range rep.Entries {
					lines = append(lines, e.Level+" "+e.Message)
				}
			}
		}
		if progress < 3 || progress > 4 {
			t.Errorf("%d progress reports in 3 s", progress)
		}
		if got := strings.Join(lines, "|"); got != `info hello page=3 g.k="two words"|error the end` {
			t.Errorf("lines: %s", got)
		}
		if !strings.Contains(own.String(), "msg=hello task="+task.NewID(1, 1, 977).String()+" tenant=default function=f attempt=1 page=3 g.k=\"two words\"") {
			t.Errorf("own log: %s", own.String())
		}
		// Outside of a handler nothing happens.
		executor.Progress(t.Context(), 1, "")
		if executor.Token(t.Context()) != "" || executor.Logger(t.Context()) != slog.Default() || executor.Checkpoint(t.Context(), nil) != nil {
			t.Error("outside of a handler")
		}
	})
}
