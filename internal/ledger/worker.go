package ledger

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// A Worker is an outside executor process that writes what it starts and ends to a file.
type Worker struct {
	Name   string
	File   string // what it writes
	Cmd    *exec.Cmd
	Log    *Tail
	Exited chan error // gets how the process ended

	t testing.TB
}

// StartWorker starts an executor against a server, with the functions of ExecutorMain.
func StartWorker(t testing.TB, addr, name string, env ...string) *Worker {
	t.Helper()
	w := &Worker{t: t, Name: name, File: filepath.Join(t.TempDir(), name+".log"), Log: &Tail{}}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	w.Cmd = exec.Command(self)
	w.Cmd.Env = append(append(os.Environ(), "HEADRACE_E2E_EXECUTOR="+name, "HEADRACE_E2E_ADDR="+addr, "HEADRACE_E2E_FILE="+w.File), env...)
	w.Cmd.Stdout, w.Cmd.Stderr = w.Log, w.Log
	if err := w.Cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan error, 1)
	w.Exited = exited
	go func() { exited <- w.Cmd.Wait() }()
	t.Cleanup(func() {
		w.Signal(syscall.SIGCONT)
		_ = w.Cmd.Process.Kill()
		if t.Failed() {
			t.Logf("%s's last lines:\n%s", name, w.Log)
		}
	})
	return w
}

// Release lets the "hold" tasks end.
func (w *Worker) Release() {
	w.t.Helper()
	if err := os.WriteFile(w.File+".release", nil, 0o644); err != nil {
		w.t.Fatal(err)
	}
}

// Signal sends it a signal, if it still runs.
func (w *Worker) Signal(sig syscall.Signal) { _ = w.Cmd.Process.Signal(sig) }

// Ends waits until the process is gone and returns how long that took. It fails unless its exit code is 0.
func (w *Worker) Ends(limit time.Duration) time.Duration {
	w.t.Helper()
	began := time.Now()
	select {
	case err := <-w.Exited:
		if err != nil {
			w.t.Errorf("%s ended with %v\n%s", w.Name, err, w.Log)
		}
	case <-time.After(limit):
		w.t.Fatalf("%s still runs %v later\n%s", w.Name, limit, w.Log)
	}
	return time.Since(began)
}

// Gone reports whether the process has ended.
func (w *Worker) Gone() bool {
	select {
	case err := <-w.Exited:
		w.Exited <- err
		return true
	default:
		return false
	}
}
