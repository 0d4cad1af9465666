package e2e

import (
	"syscall"
	"testing"
	"time"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/internal/ledger"
	"github.com/headrace/headrace/task"
)

// An executor is stopped for longer than the orphan timeout of its try and woken. Its report is refused as
// stale, the task's outcome is the other executor's, and the loss has spent no attempt.
func TestStaleReportIsRefused(t *testing.T) {
	s := newServer(t)
	s.start()
	c := ledger.Dial(t, s.listen, "acme")
	first := ledger.StartWorker(t, s.listen, "first")
	sub, err := c.Submit(ledger.Within(t, 10*time.Second), client.Task{Function: "who", Payload: []byte("3s"), Options: client.Options{MaxAttempts: 1}})
	if err != nil {
		t.Fatal(err)
	}
	ledger.Eventually(t, 20*time.Second, "the first executor runs it", func() bool { return ledger.Read(t, first)[sub.ID] != nil })
	first.Signal(syscall.SIGSTOP)
	second := ledger.StartWorker(t, s.listen, "second")
	ledger.Eventually(t, 30*time.Second, "the second executor runs it", func() bool { return ledger.Read(t, second)[sub.ID] != nil })
	first.Signal(syscall.SIGCONT) // its handler ends and reports success

	info, err := c.Wait(ledger.Within(t, 30*time.Second), client.ByID(sub.ID))
	if err != nil {
		t.Fatal(err)
	}
	if info.State != task.Succeeded || string(info.Result) != "second" || info.Attempt != 1 || info.Losses != 1 {
		t.Errorf("%v with result %q, attempt %d, losses %d; want the second's success at attempt 1 after 1 loss", info.State, info.Result, info.Attempt, info.Losses)
	}
	ledger.Eventually(t, 10*time.Second, "the first executor was told that its try is stale", func() bool {
		r := ledger.Read(t, first)[sub.ID]
		return r != nil && r.Ends > 0
	})
	// Its slot is free: with the second gone, it runs the next task.
	second.Signal(syscall.SIGTERM)
	<-second.Exited
	next, err := c.Submit(ledger.Within(t, 10*time.Second), client.Task{Function: "who", Payload: []byte("1ms")})
	if err != nil {
		t.Fatal(err)
	}
	if info, err = c.Wait(ledger.Within(t, 20*time.Second), client.ByID(next.ID)); err != nil || string(info.Result) != "first" {
		t.Errorf("the next task: %+v, %v", info, err)
	}
	if info, _ := c.Get(ledger.Within(t, 5*time.Second), client.ByID(sub.ID)); string(info.Result) != "second" {
		t.Errorf("the late report changed the result to %q", info.Result)
	}
}

// An executor is killed twice amid a task that allows one attempt. The third run succeeds: losses spend none (B052).
func TestLossesSpendNoAttempt(t *testing.T) {
	s := newServer(t)
	s.start()
	c := ledger.Dial(t, s.listen, "acme")
	sub, err := c.Submit(ledger.Within(t, 10*time.Second), client.Task{Function: "who", Payload: []byte("2s"), Options: client.Options{MaxAttempts: 1}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		w := ledger.StartWorker(t, s.listen, []string{"a", "b"}[i])
		ledger.Eventually(t, 40*time.Second, "it starts", func() bool { return ledger.Read(t, w)[sub.ID] != nil })
		w.Signal(syscall.SIGKILL)
		<-w.Exited
	}
	ledger.StartWorker(t, s.listen, "c")
	info, err := c.Wait(ledger.Within(t, time.Minute), client.ByID(sub.ID))
	if err != nil {
		t.Fatal(err)
	}
	if info.State != task.Succeeded || info.Losses != 2 || info.Attempt != 1 || string(info.Result) != "c" {
		t.Errorf("%v, losses %d, attempt %d, result %q", info.State, info.Losses, info.Attempt, info.Result)
	}
}
