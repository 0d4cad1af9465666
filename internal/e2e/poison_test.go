package e2e

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/internal/failpoint"
	"github.com/headrace/headrace/internal/ledger"
	"github.com/headrace/headrace/task"
)

// A task whose handling kills the only server does so three times, if a supervisor starts it again each time; then the
// task is a dead letter that says why. Everything else, of before and of after, succeeds.
func TestPoisonOfALoneNode(t *testing.T) {
	s := newServer(t)
	s.binary = filepath.Join(t.TempDir(), "headrace")
	build := exec.Command("go", "build", "-tags", "failpoint", "-o", s.binary, "github.com/headrace/headrace/cmd/headrace")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	s.env = []string{"HEADRACE_FAILPOINT=task.poison=kill"}
	s.start()
	w := ledger.StartWorker(t, s.listen, "outside")
	c := ledger.Dial(t, s.listen, "acme")
	later := client.Options{Delay: 500 * time.Millisecond} // some wait in the store beside the poison
	ids := ledger.SubmitAll(t, c, 3000, func(i int) client.Task {
		if i%2 == 0 {
			return client.Task{Function: "work", Options: later}
		}
		return client.Task{Function: "work"}
	})
	later.Labels = map[string]string{failpoint.Label: "task.poison"}
	bad, err := c.Submit(ledger.Within(t, 20*time.Second), client.Task{Function: "work", Options: later})
	if err != nil {
		t.Fatal(err)
	}

	deaths, info := 0, (*client.TaskInfo)(nil)
	ledger.Eventually(t, time.Minute, "the poison is a dead letter", func() bool {
		select {
		case <-s.exited:
			deaths++
			s.spawn()
		default:
		}
		got, err := c.Get(ledger.Within(t, time.Second), client.ByID(bad.ID))
		if err == nil && got.State == task.Failed {
			info = got
		}
		return info != nil
	})
	t.Logf("the poison, after %d deaths: %v", deaths, info.Error)
	if deaths != 3 {
		t.Errorf("%d deaths, want 3", deaths)
	}
	if info.Error == nil || info.Error.Class != task.NonRetryable || !strings.Contains(info.Error.Message, "crashed") {
		t.Errorf("the poison: %+v", info)
	}
	ids = append(ids, ledger.SubmitAll(t, c, 2000, func(int) client.Task { return client.Task{Function: "work"} })...)
	w.Release()
	if states := ledger.Audit(t, c, ids, time.Minute); states[task.Succeeded] != len(ids) {
		t.Errorf("of %d others: %v", len(ids), states)
	}
	s.stop()
}
