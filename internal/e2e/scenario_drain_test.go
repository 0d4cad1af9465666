package e2e

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/executor"
	"github.com/headrace/headrace/fn"
	"github.com/headrace/headrace/internal/ledger"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

// Executors are told to stop while 50 tasks run that allow one attempt. They exit in order; nothing is
// counted as a failure or loss, no attempt spent, and the last executor finishes all (B007).
func TestScenarioExecutorStopsWithFiftyTasks(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.start()
	c := ledger.Dial(t, s.listen, "acme")
	ids := ledger.SubmitAll(t, c, 50, func(int) client.Task { return client.Task{Function: "hold", Options: client.Options{MaxAttempts: 1}} })
	for i := range 3 {
		w := ledger.StartWorker(t, s.listen, fmt.Sprint("stopped-", i))
		ledger.Eventually(t, 20*time.Second, "all run", func() bool { return len(ledger.Read(t, w)) == len(ids) })
		w.Signal(syscall.SIGTERM)
		if took := w.Ends(20 * time.Second); took > 4*time.Second { // the drain of 2 s, and 2 s
			t.Errorf("round %d: the executor took %v to stop", i, took)
		}
	}
	for _, id := range ids {
		info, err := c.Get(ledger.Within(t, 10*time.Second), client.ByID(id))
		if err != nil {
			t.Fatal(err)
		}
		if info.State != task.Queued && info.State != task.Retrying || info.Attempt != 1 || info.Losses != 0 || info.Error != nil && info.Error.Class != task.Drained {
			t.Fatalf("given back: %v at attempt %d, losses %d, %v", info.State, info.Attempt, info.Losses, info.Error)
		}
	}
	last := ledger.StartWorker(t, s.listen, "last")
	last.Release()
	if states := ledger.Audit(t, c, ids, time.Minute); states[task.Succeeded] != len(ids) {
		t.Errorf("%v", states)
	}
	for _, id := range ids {
		info, err := c.Get(ledger.Within(t, 10*time.Second), client.ByID(id))
		if err != nil {
			t.Fatal(err)
		}
		if info.Attempt != 1 || info.Losses != 0 {
			t.Errorf("attempt %d, losses %d", info.Attempt, info.Losses)
		}
	}
	nothingInUse(t, s)
}

// The server is away while handlers end. Their outcomes are kept and counted when it is back: each ran once (B028).
func TestScenarioServerAwayWhileHandlersEnd(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.start()
	c := ledger.Dial(t, s.listen, "acme")
	w := ledger.StartWorker(t, s.listen, "outside")
	ids := ledger.SubmitAll(t, c, 20, func(int) client.Task {
		return client.Task{Function: "slow", Payload: []byte("3s"), Options: client.Options{MaxAttempts: 1}}
	})
	ledger.Eventually(t, 20*time.Second, "all run", func() bool { return len(ledger.Read(t, w)) == len(ids) })
	began := time.Now()
	ledger.Eventually(t, 5*time.Second, "a second has passed", func() bool { return time.Since(began) > time.Second })
	s.kill()
	ledger.Eventually(t, 10*time.Second, "4 s have passed", func() bool { return time.Since(began) > 4*time.Second })
	s.start()
	states := ledger.Audit(t, c, ids, 10*time.Second)
	l := ledger.Read(t, w)
	t.Logf("all ended %v after their start; %s", time.Since(began), ledger.Describe(states, l))
	if states[task.Succeeded] != len(ids) {
		t.Errorf("%v", states)
	}
	for _, id := range ids {
		if l[id].Starts != 1 {
			t.Errorf("%s started %d times", id, l[id].Starts)
		}
	}
	nothingInUse(t, s)
}

// The server is away for good while handlers run, fail and end, and the executor is told to stop: it does not
// wait for ever. What it could not tell is done again by another (B128).
func TestScenarioExecutorStopsWithoutServer(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.start()
	c := ledger.Dial(t, s.listen, "acme")
	w := ledger.StartWorker(t, s.listen, "alone")
	ids := ledger.SubmitAll(t, c, 20, func(int) client.Task { return client.Task{Function: "who", Payload: []byte("1s")} })
	ledger.Eventually(t, 20*time.Second, "all run", func() bool { return len(ledger.Read(t, w)) == len(ids) })
	s.kill()
	w.Signal(syscall.SIGTERM)
	began := time.Now()
	select {
	case <-w.Exited: // with which code does not matter: it was not told that its outcomes are safe
	case <-time.After(20 * time.Second):
		t.Fatalf("the executor still runs 20 s later\n%s", w.Log)
	}
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("the executor took %v to stop", took)
	}
	s.start()
	ledger.StartWorker(t, s.listen, "next")
	if states := ledger.Audit(t, c, ids, time.Minute); states[task.Succeeded] != len(ids) {
		t.Errorf("%v", states)
	}
	nothingInUse(t, s)
}

// The server is told to stop with 50 executors, 20 waits, a session that reads nothing of megabytes pushed to it,
// and a connection that says nothing. It is gone within its drain time and two seconds, with exit code 0; a second
// signal ends it at once (B074).
func TestScenarioServerStopsWithOpenStreams(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.start()
	c := ledger.Dial(t, s.listen, "acme")
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for i := range 50 {
		x, err := executor.New(executor.Config{Addr: s.listen, Tenant: "acme", Name: fmt.Sprint("x", i), Slots: 1, DrainTimeout: -1, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		x.HandleRaw("f", fn.Options{}, func(ctx context.Context, _ *executor.Task) (executor.Result, error) {
			<-ctx.Done()
			return executor.Result{}, ctx.Err()
		})
		wg.Go(func() { _ = x.Run(ctx) })
		select {
		case <-x.Ready():
		case <-time.After(20 * time.Second):
			t.Fatal("no session after 20 s")
		}
	}
	ids := ledger.SubmitAll(t, c, 20, func(int) client.Task { return client.Task{Function: "f"} })
	for _, id := range ids {
		wg.Go(func() { _, _ = c.Wait(ctx, client.ByID(id)) })
	}
	ledger.Eventually(t, 20*time.Second, "they run", func() bool {
		p, err := c.List(ledger.Within(t, 5*time.Second), client.ListOptions{State: task.Running})
		return err == nil && len(p.Tasks) == len(ids)
	})
	// A session with credit for 50 pushes of 1 MiB each, of which it reads none.
	cc, err := grpc.NewClient(s.listen, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	stream, err := headracev1.NewExecutorServiceClient(cc).Session(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&headracev1.SessionRequest{Credit: 50, Hello: &headracev1.Hello{ExecutorId: make([]byte, 16), Name: "deaf", Slots: 50,
		Functions: []*headracev1.FunctionDeclaration{{Tenant: "acme", Name: "large"}}}}); err != nil {
		t.Fatal(err)
	}
	ledger.SubmitAll(t, c, 20, func(int) client.Task { return client.Task{Function: "large", Payload: make([]byte, 1<<20)} })
	mute, err := net.Dial("tcp", s.listen)
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	_, _ = io.WriteString(mute, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")

	took := s.stop()
	t.Logf("stopped in %v", took)
	if took > 7*time.Second {
		t.Errorf("stopping took %v, want the drain of 5 s and 2 s at most", took)
	}
	s.start()
	ledger.Eventually(t, 20*time.Second, "the executors are back", func() bool {
		p, err := c.List(ledger.Within(t, 5*time.Second), client.ListOptions{State: task.Running})
		return err == nil && len(p.Tasks) == len(ids)
	})
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	began := time.Now()
	select {
	case <-s.exited:
		t.Logf("two signals: gone in %v", time.Since(began))
		s.cmd = nil
		if d := time.Since(began); d > 2*time.Second {
			t.Errorf("gone %v after the second signal", d)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("still there 20 s after a second signal")
	}
}
