package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/internal/ledger"
	"github.com/headrace/headrace/task"
)

// 64 clients submit 200 tasks each while lists are polled and handlers end. All are accepted and done, once;
// a second server and the command line's own on the same directory are refused and harm nothing (B103).
func TestScenarioManyWriters(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.start()
	w := ledger.StartWorker(t, s.listen, "outside", "HEADRACE_E2E_SLOTS=20")
	const clients, each = 64, 200
	ctx, cancel := context.WithCancel(t.Context())
	var polls, writers sync.WaitGroup
	defer polls.Wait()
	defer cancel()
	var lists atomic.Int64
	for range 3 {
		c := ledger.Dial(t, s.listen, "acme")
		polls.Go(func() {
			for ctx.Err() == nil {
				for _, o := range []client.ListOptions{{}, {State: task.Running}, {State: task.Queued}, {Function: "work", PageSize: 1000}} {
					if _, err := c.List(ctx, o); err != nil && ctx.Err() == nil {
						t.Errorf("list: %v", err)
						return
					}
					lists.Add(1)
				}
			}
		})
	}
	ids := make([][]string, clients)
	for i := range clients {
		c := ledger.Dial(t, s.listen, "acme")
		writers.Go(func() {
			for j := range each {
				sub, err := c.Submit(ledger.Within(t, time.Minute), client.Task{Function: "work", Payload: fmt.Appendf(nil, "%d/%d", i, j)})
				if err != nil {
					t.Errorf("submit: %v", err)
					return
				}
				ids[i] = append(ids[i], sub.ID)
			}
		})
	}
	// Meanwhile somebody starts a second server on the directory.
	second := exec.CommandContext(ledger.Within(t, 20*time.Second), binary, "dev", "--data", s.data, "--listen", "127.0.0.1:0", "--http", "off")
	out, err := second.CombinedOutput()
	if err == nil || second.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), "in use by another headrace process") || !strings.Contains(string(out), s.data) {
		t.Errorf("a second server on the directory: %v, %s", err, out)
	}
	writers.Wait()
	var all []string
	for _, list := range ids {
		all = append(all, list...)
	}
	c := ledger.Dial(t, s.listen, "acme")
	states := ledger.Audit(t, c, all, time.Minute)
	l := ledger.Read(t, w)
	t.Logf("%s, %d lists meanwhile", ledger.Describe(states, l), lists.Load())
	if len(all) != clients*each || states[task.Succeeded] != len(all) || len(l) != len(all) {
		t.Errorf("%d accepted, %d succeeded, %d started", len(all), states[task.Succeeded], len(l))
	}
	for id, r := range l {
		if r.Starts != 1 {
			t.Errorf("%s started %d times", id, r.Starts)
		}
	}
	nothingInUse(t, s)
}

// keep holds what submits were answered, and goes on submitting through whatever happens to the server.
type keep struct {
	mu  sync.Mutex // guards ids
	ids []string
}

func (k *keep) add(id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ids = append(k.ids, id)
}

func (k *keep) count() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.ids)
}

// load submits tasks until ctx ends, a small batch after each pause; every answer OK is kept.
func (k *keep) load(ctx context.Context, wg *sync.WaitGroup, pause time.Duration, c *client.Client, who string, functions ...string) {
	wg.Go(func() {
		for j := 0; ctx.Err() == nil; j++ {
			batch := make([]client.Task, 1+rand.IntN(20))
			for i := range batch {
				batch[i] = client.Task{Function: functions[rand.IntN(len(functions))], Payload: fmt.Appendf(nil, "%s %d %d", who, j, i),
					Options: client.Options{ID: fmt.Sprint(who, "-", j, "-", i), Delay: time.Duration(rand.IntN(3)) * 100 * time.Millisecond}}
			}
			for i := range batch { // retries of a function have a budget of ten a second: one in ten is tried again
				if batch[i].Function == "fail" && rand.IntN(10) > 0 {
					batch[i].Options.MaxAttempts = 1
				}
			}
			outs, _ := c.SubmitBatch(ctx, batch)
			for _, o := range outs {
				if o.Err == nil && o.ID != "" {
					k.add(o.ID)
				}
			}
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
		}
	})
}

// The server is killed twenty times at random moments under load, and comes back each time. Every task that was
// answered is there and ends once; ids that were sent are there once (B105, B010).
func TestScenarioKillLoop(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.start()
	w := ledger.StartWorker(t, s.listen, "outside")
	ctx, cancel := context.WithCancel(t.Context())
	var k keep
	var wg sync.WaitGroup
	for i := range 4 {
		k.load(ctx, &wg, 20*time.Millisecond, ledger.Dial(t, s.listen, "acme"), fmt.Sprint("c", i), "work", "nap")
	}
	var slowest time.Duration
	for range 20 {
		before := k.count()
		ledger.Eventually(t, 20*time.Second, "submits are answered", func() bool { return k.count() > before+20 })
		at := time.Now().Add(rand.N(200 * time.Millisecond))
		ledger.Eventually(t, time.Second, "a random moment", func() bool { return time.Now().After(at) })
		s.kill()
		slowest = max(slowest, s.start())
	}
	before := k.count()
	ledger.Eventually(t, 20*time.Second, "submits are answered", func() bool { return k.count() > before+20 })
	cancel()
	wg.Wait()
	c := ledger.Dial(t, s.listen, "acme")
	states := ledger.Audit(t, c, k.ids, time.Minute)
	l := ledger.Read(t, w)
	t.Logf("%d answered, slowest start %v; %s", len(k.ids), slowest, ledger.Describe(states, l))
	if states[task.Succeeded] != len(k.ids) {
		t.Errorf("%v of %d", states, len(k.ids))
	}
	if slowest > 3*time.Second {
		t.Errorf("a start took %v", slowest)
	}
	checkStored(t, c)
	nothingInUse(t, s)
}

// checkStored reads everything that is stored: each client id once, each task ended once, with an outcome
// that belongs to it.
func checkStored(t *testing.T, c *client.Client) {
	t.Helper()
	seen := map[string]string{}
	n := 0
	var sample []string
	for info, err := range c.ListAll(ledger.Within(t, time.Minute), client.ListOptions{PageSize: 1000}) {
		if err != nil {
			t.Fatal(err)
		}
		if n++; n%50 == 0 {
			sample = append(sample, info.ID)
		}
		if !info.State.Terminal() {
			if _, err := c.Wait(ledger.Within(t, 30*time.Second), client.ByID(info.ID)); err != nil {
				t.Errorf("%s: %v", info.ID, err)
			}
		}
		if other := seen[info.ClientID]; info.ClientID != "" && other != "" && other != info.ID {
			t.Errorf("client id %q has tasks %s and %s", info.ClientID, other, info.ID)
		}
		seen[info.ClientID] = info.ID
	}
	for _, id := range sample {
		info, err := c.Get(ledger.Within(t, 10*time.Second), client.ByID(id))
		if err != nil {
			t.Fatal(err)
		}
		if want := strings.ReplaceAll(info.ClientID, "-", " "); info.State == task.Succeeded && want != "" && (info.Function == "work" || info.Function == "nap") && string(info.Result) != want {
			t.Errorf("%s has the result %q, want %q", id, info.Result, want)
		}
	}
}

// The disk fills up: submits are refused with a reason, nothing ends, what runs is still finished. Once there
// is space again, it all goes on by itself, and nothing that was answered is gone (B105).
func TestScenarioDiskFull(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := syscall.Mount("headrace-e2e", dir, "tmpfs", 0, "size=320m"); err != nil {
		t.Skipf("a small file system can't be mounted: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			_ = syscall.Unmount(dir, syscall.MNT_DETACH)
		}
	})
	s := newServer(t)
	s.data = filepath.Join(dir, "data")
	s.start()
	t.Cleanup(func() { // before the unmount
		if s.cmd != nil {
			s.kill()
		}
	})
	w := ledger.StartWorker(t, s.listen, "outside")
	// Somebody else's file takes a good part of the disk: some 50 MiB are left above what is kept free.
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 120<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := client.Dial(client.Config{Addr: s.listen, Tenant: "acme", FailOnBackpressure: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	running := ledger.SubmitAll(t, c, 10, func(int) client.Task { return client.Task{Function: "hold"} })
	ledger.Eventually(t, 20*time.Second, "they run", func() bool { return len(ledger.Read(t, w)) == len(running) })
	payload := make([]byte, 256<<10)
	for i := range payload {
		payload[i] = byte(rand.Uint32()) // nothing to compress
	}
	var ids []string
	var refusal error
	for i := 0; refusal == nil && i < 1000; i++ {
		sub, err := c.Submit(ledger.Within(t, 10*time.Second), client.Task{Function: "nobody", Payload: payload})
		if refusal = err; err == nil {
			ids = append(ids, sub.ID)
		}
	}
	var back *client.BackpressureError
	var refused *client.Error
	switch {
	case errors.As(refusal, &back) && back.Reason != "":
	case errors.As(refusal, &refused) && (refused.Code == codes.ResourceExhausted || refused.Code == codes.Unavailable):
	default:
		t.Errorf("%d tasks of 256 KiB fit; then: %v", len(ids), refusal)
	}
	t.Logf("after %d tasks: %v", len(ids), refusal)
	// To the last byte: now even outcomes find no room.
	filler, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = filler.Write(make([]byte, 64<<10))
	}
	for err = nil; err == nil; {
		_, err = filler.Write([]byte{0})
	}
	filler.Close()
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	w.Release()
	for range 20 {
		if _, err := c.Submit(ledger.Within(t, 2*time.Second), client.Task{Function: "nobody", Payload: payload}); err == nil {
			t.Error("a submit was answered OK on a full disk")
		}
	}
	select {
	case err := <-s.exited:
		s.cmd = nil
		t.Fatalf("the server has ended: %v\n%s", err, s.log)
	default:
	}
	if info, err := c.Get(ledger.Within(t, 10*time.Second), client.ByID(ids[0])); err != nil || len(info.Payload) != len(payload) {
		t.Errorf("reads don't work: %v", err)
	}
	// There is space again.
	for _, f := range []string{ballast, filler.Name()} {
		if err := os.Remove(f); err != nil {
			t.Fatal(err)
		}
	}
	patient := ledger.Dial(t, s.listen, "acme")
	sub, err := patient.Submit(ledger.Within(t, 30*time.Second), client.Task{Function: "work"})
	if err != nil {
		t.Fatalf("no recovery: %v\n%s", err, s.log)
	}
	if states := ledger.Audit(t, patient, append(running, sub.ID), 30*time.Second); states[task.Succeeded] != len(running)+1 {
		t.Errorf("%v", states)
	}
	for id, r := range ledger.Read(t, w) {
		if r.Starts != 1 {
			t.Errorf("%s started %d times", id, r.Starts)
		}
	}
	s.kill()
	s.start()
	for _, id := range ids {
		if info, err := patient.Get(ledger.Within(t, 10*time.Second), client.ByID(id)); err != nil || info.State != task.Queued || len(info.Payload) != len(payload) {
			t.Fatalf("%s after a restart: %v", id, err)
		}
	}
	nothingInUse(t, s)
}
