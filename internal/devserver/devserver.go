// Package devserver runs `headrace dev`, or `headrace server`, as a child process: for the demo, the benchmark and tests, which
// shall meet a server as everybody else does, over the network and in a process of its own.
package devserver

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/headrace/headrace/internal/program"
)

// Config says what to start.
type Config struct {
	Exe  string   // the headrace program; empty: this process's own
	Data string   // data directory; required, or File
	File string   // `headrace server` with this configuration instead; no HEADRACE_… of this process reaches it
	Args []string // further flags of the command
	Env  []string // besides this process's environment
	// GRPC and HTTP are addresses to listen on; empty: any free ports of the loopback.
	GRPC, HTTP string
	Log        io.Writer // gets the server's standard error; nil: dropped, its end is in errors
	// ReadyWithin bounds the start; 0: 30 s.
	ReadyWithin time.Duration
}

// A Server is a running child. Its fields don't change.
type Server struct {
	GRPC string `json:"grpc"` // host:port
	HTTP string `json:"http"`
	PID  int    `json:"pid"`

	cmd   *exec.Cmd
	ended chan struct{} // closed when the process is gone
	err   error         // why it ended, once ended is closed
}

// Start starts a server and returns when it is ready. The child is in a process group of its own, so
// that Ctrl-C at a terminal reaches the parent only, which stops it in its turn. On Linux it dies with
// the parent.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	exe := cfg.Exe
	if exe == "" {
		var err error
		if exe, err = os.Executable(); err != nil {
			return nil, fmt.Errorf("start server: %w", err)
		}
	}
	args, env := []string{"dev", "-o", "json", "--data", cfg.Data, "--listen", orFree(cfg.GRPC), "--http", orFree(cfg.HTTP)}, os.Environ()
	if cfg.File != "" {
		args = []string{"server", "-o", "json", "--config", cfg.File}
		env = slices.DeleteFunc(env, func(s string) bool { return strings.HasPrefix(s, "HEADRACE_") })
		env = append(env, "HEADRACE_LISTEN="+orFree(cfg.GRPC), "HEADRACE_HTTP="+orFree(cfg.HTTP))
	}
	cmd := exec.Command(exe, append(args, cfg.Args...)...)
	cmd.Env = append(env, cfg.Env...)
	cmd.SysProcAttr = program.Child()
	tail := &tailWriter{next: cfg.Log}
	cmd.Stderr = tail
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start server: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start server: %w", err)
	}
	s := &Server{cmd: cmd, ended: make(chan struct{})}
	ready := make(chan error, 1)
	go func() {
		out := bufio.NewReader(stdout)
		line, err := out.ReadBytes('\n')
		if err == nil {
			err = json.Unmarshal(line, s)
		}
		ready <- err
		io.Copy(io.Discard, out)
		s.err = cmd.Wait()
		close(s.ended)
	}()
	within := cfg.ReadyWithin
	if within == 0 {
		within = 30 * time.Second
	}
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case err = <-ready:
		if err != nil {
			s.Kill()
			return nil, fmt.Errorf("start server: %s", orErr(tail.String(), err))
		}
		return s, nil
	case <-timer.C:
		err = fmt.Errorf("not ready within %v", within)
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	s.Kill()
	return nil, fmt.Errorf("start server: %w", err)
}

func orFree(addr string) string {
	if addr == "" {
		return "127.0.0.1:0"
	}
	return addr
}

// orErr prefers the program's own words to the fact that it said nothing on stdout.
func orErr(words string, err error) string {
	if words == "" {
		return err.Error()
	}
	return words
}

// Ended is closed when the server is gone, for whatever reason.
func (s *Server) Ended() <-chan struct{} { return s.ended }

// Stop asks the server to drain and waits until it is gone; when ctx ends first, it is killed. Its error
// says that the server did not end in order.
func (s *Server) Stop(ctx context.Context) error {
	s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.ended:
		if s.err != nil {
			return fmt.Errorf("stop server: %w", s.err)
		}
		return nil
	case <-ctx.Done():
		s.Kill()
		return fmt.Errorf("stop server: killed: %w", context.Cause(ctx))
	}
}

// Kill ends the server as a crash would, and waits until it is gone.
func (s *Server) Kill() {
	if err := s.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return
	}
	<-s.ended
}

// tailWriter passes writes on and keeps the last of them.
type tailWriter struct {
	next io.Writer // may be nil
	mu   sync.Mutex
	tail []byte
}

const tailBytes = 2 << 10

func (w *tailWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	w.tail = append(w.tail, p...)
	if n := len(w.tail) - tailBytes; n > 0 {
		w.tail = append(w.tail[:0], w.tail[n:]...)
	}
	w.mu.Unlock()
	if w.next != nil {
		w.next.Write(p)
	}
	return len(p), nil
}

func (w *tailWriter) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return string(w.tail)
}
