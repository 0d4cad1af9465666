package localcluster

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/headrace/headrace/internal/program"
)

// command is a process to start.
type command struct {
	path string
	args []string
	env  []string // besides our own, of which HEADRACE_… is kept from it
	dir  string
	cred *syscall.Credential // nil: our own
	log  string              // file that gets what it prints, at its end
	// detached: it lives on after us; else it is killed when we die, however that is.
	detached bool
}

// start starts it. Somebody waits for it, so that it is no zombie when it has ended.
func (c command) start() (Process, error) {
	log, err := os.OpenFile(c.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return Process{}, err
	}
	defer log.Close()
	cmd := exec.Command(c.path, c.args...)
	cmd.Env, cmd.Dir = append(environ(), c.env...), c.dir
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = program.Child()
	if c.detached {
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	}
	cmd.SysProcAttr.Credential = c.cred
	if err := cmd.Start(); err != nil {
		return Process{}, err
	}
	pid := cmd.Process.Pid
	started, _, ok := stat(pid) // nobody has waited for it: at least a zombie is there
	go func() { _ = cmd.Wait() }()
	if !ok {
		_ = cmd.Process.Kill()
		return Process{}, fmt.Errorf("%s: /proc does not know process %d", filepath.Base(c.path), pid)
	}
	return Process{pid, started}, nil
}

// environ is our environment without what would override a node's configuration.
func environ() []string {
	return slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "HEADRACE_") })
}

// stat returns a process's start time and state letter.
func stat(pid int) (started int64, state byte, ok bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, false
	}
	f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])) // the name before may hold anything
	if len(f) < 20 {
		return 0, 0, false
	}
	started, err = strconv.ParseInt(f[19], 10, 64)
	return started, f[0][0], err == nil
}

// Alive reports whether this very process runs or is stopped.
func (p Process) Alive() bool {
	started, state, ok := stat(p.PID)
	return p.PID > 0 && ok && started == p.Started && state != 'Z' && state != 'X'
}

// signal sends a signal, if it is still that process.
func (p Process) signal(sig syscall.Signal) error {
	if !p.Alive() {
		return fmt.Errorf("process %d has ended", p.PID)
	}
	return syscall.Kill(p.PID, sig)
}

// ended waits until it has ended; the error is that of ctx.
func (p Process) ended(ctx context.Context) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for p.Alive() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// end asks it to end, and kills it when that takes longer than patience. It has ended when this returns, unless the
// kernel can't end it.
func (p Process) end(sig syscall.Signal, patience time.Duration) error {
	if !p.Alive() {
		return nil
	}
	_ = syscall.Kill(p.PID, sig)
	_ = syscall.Kill(p.PID, syscall.SIGCONT) // a stopped one hears nothing
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if p.ended(ctx) == nil {
		return nil
	}
	if p.Alive() {
		_ = syscall.Kill(p.PID, syscall.SIGKILL)
	}
	ctx, cancel = context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := p.ended(ctx); err != nil {
		return fmt.Errorf("process %d does not end: %w", p.PID, err)
	}
	return nil
}

// ready asks again until ok, the process has ended, or ctx has. The error has the last lines of the log.
func (p Process) ready(ctx context.Context, log string, ok func() bool) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if !p.Alive() {
			return fmt.Errorf("it ended; its log (%s) says:\n%s", log, tail(log, 2<<10))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("not ready: %w; its log (%s) says:\n%s", context.Cause(ctx), log, tail(log, 2<<10))
		}
	}
	return nil
}

// tail returns the end of a file.
func tail(path string, n int) string {
	text, _ := os.ReadFile(path) // for messages only
	if len(text) > n {
		text = text[len(text)-n:]
	}
	return string(text)
}
