package e2e

import (
	"bufio"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/task"
)

// worker is an outside executor process that writes what it starts and ends to a file.
type worker struct {
	t      testing.TB
	name   string
	file   string
	cmd    *exec.Cmd
	log    *tail
	exited chan error
}

// startWorker starts an executor against a server, with the functions of executor_test.go.
func startWorker(t testing.TB, addr, name string, env ...string) *worker {
	t.Helper()
	w := &worker{t: t, name: name, file: filepath.Join(t.TempDir(), name+".log"), log: &tail{}}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	w.cmd = exec.Command(self)
	w.cmd.Env = append(append(os.Environ(), "HEADRACE_E2E_EXECUTOR="+name, "HEADRACE_E2E_ADDR="+addr, "HEADRACE_E2E_FILE="+w.file), env...)
	w.cmd.Stdout, w.cmd.Stderr = w.log, w.log
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan error, 1)
	w.exited = exited
	go func() { exited <- w.cmd.Wait() }()
	t.Cleanup(func() {
		w.signal(syscall.SIGCONT)
		_ = w.cmd.Process.Kill()
		if t.Failed() {
			t.Logf("%s's last lines:\n%s", name, w.log)
		}
	})
	return w
}

// release lets the "hold" tasks end.
func (w *worker) release() {
	w.t.Helper()
	if err := os.WriteFile(w.file+".release", nil, 0o644); err != nil {
		w.t.Fatal(err)
	}
}

func (w *worker) signal(sig syscall.Signal) { _ = w.cmd.Process.Signal(sig) }

// runs is what a worker's file says of one task.
type runs struct {
	starts, ends int
	first        time.Time // of the first start
	tokens       []string
}

// ledger reads the files of workers: what ran, by task id.
func ledger(t testing.TB, ws ...*worker) map[string]*runs {
	t.Helper()
	out := map[string]*runs{}
	for _, w := range ws {
		f, err := os.Open(w.file)
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		sc := bufio.NewScanner(f)
		for sc.Scan() {
			var what, id, token string
			var ns int64
			if n, err := fmt.Sscan(sc.Text(), &what, &id, &token, &ns); n != 4 || err != nil {
				continue // the line that a kill cut off
			}
			r := out[id]
			if r == nil {
				r = &runs{}
				out[id] = r
			}
			switch what {
			case "start":
				r.starts++
				r.tokens = append(r.tokens, token)
				if at := time.Unix(0, ns); r.first.IsZero() || at.Before(r.first) {
					r.first = at
				}
			case "end":
				r.ends++
			}
		}
		f.Close()
	}
	return out
}

// audit waits until every task has ended, and returns how many ended in each state. It fails for a task
// that the server doesn't know any more.
func audit(t testing.TB, c *client.Client, ids []string, limit time.Duration) map[task.State]int {
	t.Helper()
	ctx := within(t, limit)
	states := map[task.State]int{}
	open := map[string]bool{}
	for _, id := range ids {
		open[id] = true
	}
	if len(open) != len(ids) {
		t.Errorf("%d submits got %d different ids", len(ids), len(open))
	}
	for len(open) > 0 {
		var waiting string
		for info, err := range c.ListAll(ctx, client.ListOptions{PageSize: 1000}) {
			if err != nil {
				t.Fatalf("list: %v (%d tasks still open, such as %s)", err, len(open), waiting)
			}
			if !open[info.ID] {
				continue
			}
			if info.State.Terminal() {
				states[info.State]++
				delete(open, info.ID)
			} else {
				waiting = info.ID
			}
		}
		if waiting == "" && len(open) > 0 {
			t.Fatalf("%d accepted tasks are in no list, such as %v", len(open), slices.Sorted(maps.Keys(open))[0])
		}
		if waiting != "" {
			if _, err := c.Wait(ctx, client.ByID(waiting)); err != nil {
				info, _ := c.Get(t.Context(), client.ByID(waiting))
				t.Fatalf("wait: %v (%d tasks still open; %s: %+v)", err, len(open), waiting, info)
			}
		}
	}
	return states
}

// eventually asks again until ok, at most for d.
func eventually(t testing.TB, d time.Duration, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(d)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("not within %v: %s", d, what)
		}
	}
}

// submitAll submits n tasks in batches and returns their ids.
func submitAll(t testing.TB, c *client.Client, n int, make func(i int) client.Task) []string {
	t.Helper()
	ids := []string{}
	for len(ids) < n {
		batch := []client.Task{}
		for i := len(ids); i < min(n, len(ids)+1000); i++ {
			batch = append(batch, make(i))
		}
		outs, err := c.SubmitBatch(within(t, time.Minute), batch)
		if err != nil {
			t.Fatalf("submit: %v", err)
		}
		for i, o := range outs {
			if o.Err != nil {
				t.Fatalf("submit item %d: %v", i, o.Err)
			}
			ids = append(ids, o.ID)
		}
	}
	return ids
}

// describe prints a ledger as a line.
func describe(states map[task.State]int, l map[string]*runs) string {
	var b strings.Builder
	for s := task.Scheduled; s <= task.Expired; s++ {
		if states[s] > 0 {
			fmt.Fprintf(&b, "%v %d, ", s, states[s])
		}
	}
	starts, again := 0, 0
	for _, r := range l {
		starts += r.starts
		if r.starts > 1 {
			again++
		}
	}
	fmt.Fprintf(&b, "%d starts, %d tasks started more than once", starts, again)
	return b.String()
}
