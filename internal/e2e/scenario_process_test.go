package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/internal/ledger"
	"github.com/headrace/headrace/task"
)

// A panic of a goroutine that nobody guards ends the executor's process. The task runs again elsewhere, as a
// loss and not as a failure; a task that ends every process is a dead letter at last (B126, B010).
func TestScenarioTaskEndsTheProcess(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.start()
	c := ledger.Dial(t, s.listen, "acme")
	crash := func() string {
		sub, err := c.Submit(ledger.Within(t, 10*time.Second), client.Task{Function: "crash", Options: client.Options{MaxAttempts: 1}})
		if err != nil {
			t.Fatal(err)
		}
		return sub.ID
	}
	dies := func(name string) *ledger.Worker {
		w := ledger.StartWorker(t, s.listen, name)
		select {
		case err := <-w.Exited:
			if err == nil || !strings.Contains(w.Log.String(), "a goroutine that nobody guards") {
				t.Errorf("%s ended with %v\n%s", name, err, w.Log)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("%s lives on\n%s", name, w.Log)
		}
		return w
	}
	id := crash()
	w := dies("first")
	sound := ledger.StartWorker(t, s.listen, "sound")
	info, err := c.Wait(ledger.Within(t, 30*time.Second), client.ByID(id))
	if err != nil {
		t.Fatal(err)
	}
	if info.State != task.Succeeded || info.Attempt != 1 || ledger.Read(t, w)[id].Starts != 1 || ledger.Read(t, sound)[id].Starts != 1 {
		t.Errorf("%+v", info)
	}
	t.Logf("a process died of it: %d losses", info.Losses)
	sound.Signal(syscall.SIGTERM)
	sound.Ends(20 * time.Second)

	id = crash()
	deaths := 0
	for ; deaths < 8; deaths++ {
		if info, err := c.Get(ledger.Within(t, 5*time.Second), client.ByID(id)); err != nil || info.State.Terminal() {
			break
		}
		dies(fmt.Sprint("mortal-", deaths))
		ledger.Eventually(t, 20*time.Second, "the task is not running any more", func() bool {
			info, err := c.Get(ledger.Within(t, 5*time.Second), client.ByID(id))
			return err == nil && info.State != task.Running
		})
	}
	info, err = c.Get(ledger.Within(t, 5*time.Second), client.ByID(id))
	t.Logf("the other task ended %d processes, %d of them as losses", deaths, info.Losses)
	if err != nil || info.State != task.Failed || info.Error.Class != task.ExecutorLost || info.Attempt != 1 {
		t.Errorf("after %d deaths: %+v, %v", deaths, info, err)
	}
	nothingInUse(t, s)
}

// What is in payloads, results and checkpoints is in no log, also at the level debug, and on no debug page
// (B143). A text with control characters forges no log line: each record is one (B145).
func TestScenarioLogsTellNoSecretsAndNoLies(t *testing.T) {
	t.Parallel()
	const marker, forged = "sEcReT-mArKeR", "forged-by-a-task"
	s := newServer(t)
	s.args = []string{"--log-level", "debug"}
	s.start()
	c := ledger.Dial(t, s.listen, "acme")
	w := ledger.StartWorker(t, s.listen, "outside")
	run := func(function string, o client.Options) string {
		sub, err := c.Submit(ledger.Within(t, 10*time.Second), client.Task{Function: function, Payload: []byte(marker), Options: o})
		if err != nil {
			t.Fatal(err)
		}
		return sub.ID
	}
	var ids []string
	for range 3 {
		ids = append(ids, run("work", client.Options{Labels: map[string]string{"k": "v"}}), run("who", client.Options{}), run("fail", client.Options{MaxAttempts: 2}))
	}
	ledger.Audit(t, c, ids, 30*time.Second)
	held, waits := run("hold", client.Options{}), run("nobody", client.Options{ID: "taken"})
	ledger.Eventually(t, 20*time.Second, "it runs", func() bool { return ledger.Read(t, w)[held] != nil })
	// Refusals that look at the payload, and at what may not be in names.
	var refusals bytes.Buffer
	for _, tk := range []client.Task{
		{Function: "nobody", Payload: []byte("other " + marker), Options: client.Options{ID: "taken"}},
		{Function: "nobody", Payload: []byte(strings.Repeat(marker, 100_000))},
		{Function: "BAD", Payload: []byte(marker)},
		{Function: "nobody", Payload: []byte(marker), ContentType: "text/\x00"},
	} {
		_, err := c.Submit(ledger.Within(t, 10*time.Second), tk)
		if err == nil {
			t.Errorf("%s was accepted", tk.Function)
		}
		fmt.Fprintln(&refusals, err)
	}
	// A program as a handler, with a forger's name and errors.
	lie := "x\r\n{\"level\":\"error\",\"msg\":\"" + forged + "\"}\n2026-01-01 ERROR " + forged + " \x1b[2J\u0085\u2028"
	worker := exec.Command(binary, "--addr", s.listen, "--tenant", "acme", "-o", "json", "worker", "--function", "liar", "--", "sh", "-c", `printf '%s' "$LIE" >&2; exit 78`)
	worker.Env = append(worker.Environ(), "LIE="+lie)
	var said ledger.Tail
	worker.Stderr = &said
	if err := worker.Start(); err != nil {
		t.Fatal(err)
	}
	liar := run("liar", client.Options{ID: `"} {"level":"error","msg":"` + forged + `"}`})
	info, err := c.Wait(ledger.Within(t, 20*time.Second), client.ByID(liar))
	if err != nil || info.State != task.Failed || !strings.Contains(info.Error.Message, forged) {
		t.Errorf("the liar: %+v, %v", info, err)
	}
	_ = worker.Process.Signal(syscall.SIGTERM)
	if err := worker.Wait(); err != nil {
		t.Errorf("worker: %v\n%s", err, said.String())
	}
	for _, name := range []string{"a\nb", "\x1b[2J", "x\u2028y", strings.Repeat("n", 64)} {
		cmd := exec.CommandContext(ledger.Within(t, 10*time.Second), binary, "--addr", s.listen, "worker", "--function", name, "--", "true")
		out, err := cmd.CombinedOutput()
		if err == nil || strings.Count(strings.TrimSpace(string(out)), "\n") > 3 || strings.ContainsAny(string(out), "\x1b\u2028") {
			t.Errorf("function %q: %v, %q", name, err, out)
		}
	}
	var pages bytes.Buffer
	for _, path := range []string{"/debug/dump", "/healthz", "/readyz", "/debug/pprof/goroutine?debug=2", "/debug/pprof/cmdline", "/no%0a" + forged} {
		res, err := http.Get("http://" + s.http + path)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(&pages, res.Body)
		res.Body.Close()
	}
	// The same for what the command line prints of a task.
	out, errs, _ := s.headrace("--tenant", "acme", "task", "get", liar)
	if strings.ContainsAny(out+errs, "\x1b\u0085\u2028") || strings.Contains(out+errs, "\n2026-01-01 ERROR") {
		t.Errorf("the command line prints %q", out+errs)
	}
	w.Release()
	ledger.Audit(t, c, []string{held}, 30*time.Second)
	s.kill()
	s.start()
	if info, err := c.Get(ledger.Within(t, 10*time.Second), client.ByID(waits)); err != nil || string(info.Payload) != marker {
		t.Errorf("%+v, %v", info, err)
	}
	s.stop()
	for name, text := range map[string]string{"the server's log": s.log.String(), "the executor's log": w.Log.String(), "the worker's log": said.String(), "refusals": refusals.String(), "pages": pages.String()} {
		if i := strings.Index(text, marker); i >= 0 {
			t.Errorf("%s tells a payload: %s", name, text[max(0, i-200):min(len(text), i+100)])
		}
	}
	for name, text := range map[string]string{"server": s.log.String(), "worker": said.String()} {
		for line := range strings.Lines(text) {
			var rec map[string]any
			if name == "server" && json.Unmarshal([]byte(line), &rec) != nil ||
				name == "worker" && !strings.HasPrefix(line, "time=") && !strings.HasPrefix(line, "headrace: ") {
				t.Errorf("%s: not one record a line: %q", name, line)
			}
			if rec["msg"] == forged {
				t.Errorf("%s: a forged record: %q", name, line)
			}
			if strings.ContainsAny(line, "\x1b\u0085\u2028") {
				t.Errorf("%s: control characters: %q", name, line)
			}
		}
	}
}
