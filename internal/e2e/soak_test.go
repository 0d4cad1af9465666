package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/internal/ledger"
	"github.com/headrace/headrace/task"
)

// Load, kills, restarts, pauses, dead networks and cancels for as long as HEADRACE_SOAK says, such as 30m.
func TestSoak(t *testing.T) {
	text := os.Getenv("HEADRACE_SOAK")
	if text == "" {
		t.Skip("HEADRACE_SOAK is not set: make soak")
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		t.Fatalf("HEADRACE_SOAK: %q, want a duration such as 30m", text)
	}
	soak(t, d)
}

// The same for some seconds: whatever dies between push and outcome, no slot stays in use (B010).
func TestScenarioNoSlotLeaks(t *testing.T) {
	t.Parallel()
	soak(t, 15*time.Second)
}

// post is a place where executors run, one after the other, behind a network of its own.
type post struct {
	wire   *wire
	worker *ledger.Worker
}

// soak does it for d and then holds the books against each other: every accepted task has one end that fits
// what was answered, no token was started twice, nothing is in use.
func soak(t *testing.T, d time.Duration) {
	s := newServer(t)
	s.start()
	var all []*ledger.Worker
	begin := func(p *post) {
		p.worker = ledger.StartWorker(t, p.wire.addr, fmt.Sprint("w", len(all)), "HEADRACE_E2E_SLOTS=30")
		all = append(all, p.worker)
	}
	posts := make([]*post, 3)
	for i := range posts {
		posts[i] = &post{wire: newWire(t, s.listen, 0)}
		begin(posts[i])
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var k keep
	var loads sync.WaitGroup
	for i := range 3 {
		k.load(ctx, &loads, 100*time.Millisecond, ledger.Dial(t, s.listen, "acme"), fmt.Sprint("c", i), "work", "work", "nap", "fail", "nobody-yet")
	}
	cancelled := map[string]client.CancelResult{}
	c := ledger.Dial(t, s.listen, "acme")
	events := map[string]int{}
	for end := time.Now().Add(d); time.Now().Before(end); {
		p := posts[rand.IntN(len(posts))]
		what, act := incident(s, p)
		events[what]++
		act()
		if p.worker.Gone() {
			begin(p)
		}
		k.mu.Lock()
		recent := k.ids[max(0, len(k.ids)-200):]
		var ids []string
		for range min(5, len(recent)) {
			ids = append(ids, recent[rand.IntN(len(recent))])
		}
		k.mu.Unlock()
		for _, id := range ids {
			res, _, err := c.Cancel(ledger.Within(t, 60*time.Second), client.ByID(id), "soak")
			if err != nil {
				t.Fatalf("cancel %s after %s: %v", id, what, err)
			}
			cancelled[id] = res
		}
		pause := time.Now().Add(500*time.Millisecond + rand.N(time.Second))
		ledger.Eventually(t, 2*time.Second, "a pause", func() bool { return time.Now().After(pause) })
	}
	cancel()
	loads.Wait()
	// What waits for a function that nobody has is cancelled; the rest ends by itself.
	for info, err := range c.ListAll(ledger.Within(t, 5*time.Minute), client.ListOptions{Function: "nobody-yet", PageSize: 1000}) {
		if err != nil {
			t.Fatal(err)
		}
		if info.State.Terminal() {
			continue
		}
		if _, _, err := c.Cancel(ledger.Within(t, time.Minute), client.ByID(info.ID), "the end"); err != nil {
			t.Fatal(err)
		}
	}
	states := ledger.Audit(t, c, k.ids, 5*time.Minute)
	l := ledger.Read(t, all...)
	t.Logf("%v: %d accepted, %v; %s; peak RSS %d MiB", d, len(k.ids), events, ledger.Describe(states, l), s.peakRSS()>>20)
	sum := 0
	for _, n := range states {
		sum += n
	}
	if sum != len(k.ids) {
		t.Errorf("%d ended of %d", sum, len(k.ids))
	}
	for id, res := range cancelled {
		if info, err := c.Get(ledger.Within(t, 10*time.Second), client.ByID(id)); err != nil || res == client.Cancelled && info.State != task.Cancelled {
			t.Errorf("%s: the cancel was answered with %v, it is %v, %v", id, res, info, err)
		}
	}
	for id, r := range l {
		seen := map[string]bool{}
		for _, token := range r.Tokens {
			if seen[token] {
				t.Errorf("%s started twice with the token %s", id, token)
			}
			seen[token] = true
		}
	}
	checkStored(t, c)
	nothingInUse(t, s)
	if rss := s.peakRSS(); rss > 512<<20 {
		t.Errorf("peak RSS %d MiB", rss>>20)
	}
	for _, p := range posts {
		p.worker.Signal(syscall.SIGTERM)
		p.worker.Ends(20 * time.Second)
	}
	s.stop()
}

// incident draws what happens next.
func incident(s *server, p *post) (what string, act func()) {
	pick := []struct {
		what string
		act  func()
	}{
		{"server killed", func() { s.kill(); s.start() }},
		{"server restarted", func() { s.stop(); s.start() }},
		{"executor killed", func() { p.worker.Signal(syscall.SIGKILL); <-p.worker.Exited; p.worker.Exited <- nil }},
		{"executor restarted", func() { p.worker.Signal(syscall.SIGTERM); <-p.worker.Exited; p.worker.Exited <- nil }},
		{"executor paused", func() {
			p.worker.Signal(syscall.SIGSTOP)
			w := p.worker
			time.AfterFunc(rand.N(8*time.Second), func() { w.Signal(syscall.SIGCONT) })
		}},
		{"connection cut", p.wire.cut},
		{"network dead", p.wire.hush},
		{"nothing", func() {}},
	}
	x := pick[rand.IntN(len(pick))]
	return x.what, x.act
}
