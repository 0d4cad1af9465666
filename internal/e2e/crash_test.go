package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/internal/ledger"
	"github.com/headrace/headrace/task"
)

// The server is killed ten times while 20,000 tasks run on an outside executor. Nothing is lost, each task
// ends once, what had run for more than a second goes on over every restart with one start, and the server
// is soon back at work.
func TestKillTenTimes(t *testing.T) {
	const tasks, kills, holds = 20_000, 10, 20
	s := newServer(t)
	s.start()
	w := ledger.StartWorker(t, s.listen, "outside", "HEADRACE_E2E_SLOTS=200")
	c := ledger.Dial(t, s.listen, "acme")

	long := ledger.SubmitAll(t, c, holds, func(int) client.Task { return client.Task{Function: "hold"} })
	ledger.Eventually(t, 20*time.Second, "the long tasks have started", func() bool { return len(ledger.Read(t, w)) == holds })
	began := time.Now()

	// They are submitted and run through all the kills: 20,000 of 200 ms on 200 slots take 20 s.
	flood := make(chan []string, 1)
	go func() {
		flood <- ledger.SubmitAll(t, c, tasks, func(i int) client.Task {
			return client.Task{Function: "nap", Payload: fmt.Appendf(nil, "task %d", i)}
		})
	}()
	ledger.Eventually(t, 5*time.Second, "the long tasks are recorded", func() bool { return time.Since(began) > 2*time.Second })

	var extra []string
	var ready, served, pushed time.Duration
	for range kills {
		// One task waits in the store over the kill: it is not due before.
		waiting, err := c.Submit(ledger.Within(t, 20*time.Second), client.Task{Function: "work", Options: client.Options{Delay: 200 * time.Millisecond}})
		if err != nil {
			t.Fatal(err)
		}
		s.kill()
		restart := time.Now()
		ready = max(ready, s.start())
		fresh, err := c.Submit(ledger.Within(t, 20*time.Second), client.Task{Function: "work"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Wait(ledger.Within(t, 20*time.Second), client.ByID(fresh.ID)); err != nil {
			t.Fatal(err)
		}
		served = max(served, time.Since(restart))
		if _, err := c.Wait(ledger.Within(t, 20*time.Second), client.ByID(waiting.ID)); err != nil {
			t.Fatal(err)
		}
		l := ledger.Read(t, w)
		if l[waiting.ID] == nil {
			t.Fatalf("task %s ended and never started", waiting.ID)
		}
		pushed = max(pushed, l[waiting.ID].First.Sub(restart))
		extra = append(extra, waiting.ID, fresh.ID)
	}
	ids := append(<-flood, extra...)
	w.Release()
	states := ledger.Audit(t, c, append(ids, long...), 2*time.Minute)
	l := ledger.Read(t, w)
	t.Logf("after a restart: ready %v, a new submit served and done %v, a waiting task pushed %v; %s",
		ready, served, pushed, ledger.Describe(states, l))
	if want := len(ids) + holds; states[task.Succeeded] != want {
		t.Errorf("%d succeeded of %d", states[task.Succeeded], want)
	}
	for _, id := range long {
		if r := l[id]; r == nil || r.Starts != 1 {
			t.Errorf("long task %s: %+v, want one start", id, r)
		}
	}
	if served > 2*time.Second {
		t.Errorf("a new submit was served and done %v after the restart, want under 2 s", served)
	}
	if pushed > 4*time.Second {
		t.Errorf("a waiting task was pushed %v after the restart, want under 4 s", pushed)
	}
}

// A server that is told to stop lets go of what runs: it exits soon and with 0, the executor goes on over the
// restart, nothing is counted against the task, and the next server opens at once.
func TestDrainDisturbsNothing(t *testing.T) {
	s := newServer(t)
	s.start()
	w := ledger.StartWorker(t, s.listen, "outside")
	c := ledger.Dial(t, s.listen, "acme")
	long := ledger.SubmitAll(t, c, 5, func(int) client.Task { return client.Task{Function: "hold"} })
	ledger.Eventually(t, 20*time.Second, "they run", func() bool { return len(ledger.Read(t, w)) == len(long) })

	queued := ledger.SubmitAll(t, c, 5, func(int) client.Task { // not due before the stop
		return client.Task{Function: "work", Options: client.Options{Delay: 300 * time.Millisecond}}
	})
	took := s.stop()
	restart := time.Now()
	s.start()
	ledger.Eventually(t, 20*time.Second, "waiting tasks run", func() bool { return len(ledger.Read(t, w)) == len(long)+len(queued) })
	opened := time.Since(restart)
	w.Release()
	states := ledger.Audit(t, c, append(queued, long...), time.Minute)
	l := ledger.Read(t, w)
	t.Logf("stopped in %v, waiting tasks pushed %v after the restart; %s", took, opened, ledger.Describe(states, l))
	if opened > 1400*time.Millisecond { // an owner that was not handed its partitions waits 1.5 s
		t.Errorf("waiting tasks were pushed %v after an orderly restart: the grace was waited for", opened)
	}
	if took > 7*time.Second {
		t.Errorf("stopping took %v", took)
	}
	for _, id := range long {
		info, err := c.Get(ledger.Within(t, 5*time.Second), client.ByID(id))
		if err != nil {
			t.Fatal(err)
		}
		if r := l[id]; info.State != task.Succeeded || info.Attempt != 1 || info.Losses != 0 || r == nil || r.Starts != 1 {
			t.Errorf("%s: %v, attempt %d, losses %d, runs %+v", id, info.State, info.Attempt, info.Losses, r)
		}
	}
}
