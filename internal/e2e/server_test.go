package e2e

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headrace/headrace/internal/ledger"
)

// binary is the built headrace; TestMain makes it.
var binary string

func TestMain(m *testing.M) {
	ledger.ExecutorMain()
	dir, err := os.MkdirTemp("", "headrace-e2e-")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "headrace")
	build := exec.Command("go", "build", "-o", binary, "github.com/headrace/headrace/cmd/headrace")
	build.Stdout, build.Stderr = os.Stdout, os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build headrace:", err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// server is a `headrace dev` process that can be killed and started again on the same data and ports.
type server struct {
	t      testing.TB
	data   string
	listen string // host:port, fixed after the first start
	http   string
	env    []string
	args   []string // further flags
	binary string   // "": the one that TestMain made
	cmd    *exec.Cmd
	log    *ledger.Tail
	exited chan error
}

func newServer(t testing.TB) *server {
	t.Helper()
	s := &server{t: t, data: filepath.Join(t.TempDir(), "data"), listen: freeAddr(t), http: freeAddr(t)}
	t.Cleanup(func() {
		if s.cmd != nil {
			s.kill()
		}
		if t.Failed() && s.log != nil {
			t.Logf("the server's last lines:\n%s", s.log)
		}
	})
	return s
}

// freeAddr returns a loopback address that nobody listens on now.
func freeAddr(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// start brings the server up and returns how long it took until it said that it is ready.
func (s *server) start() time.Duration {
	s.t.Helper()
	began := time.Now()
	s.cmd = exec.Command(cmp.Or(s.binary, binary), append([]string{"dev", "-o", "json", "--data", s.data, "--listen", s.listen, "--http", s.http}, s.args...)...)
	s.cmd.Env = append(os.Environ(), s.env...)
	s.log = &ledger.Tail{}
	s.cmd.Stderr = s.log
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	ready := make(chan error, 1)
	go func() {
		line, err := bufio.NewReader(out).ReadBytes('\n')
		var first struct {
			Ready bool   `json:"ready"`
			GRPC  string `json:"grpc"`
			PID   int    `json:"pid"`
		}
		if err == nil {
			err = json.Unmarshal(line, &first)
		}
		if err == nil && (!first.Ready || first.GRPC != s.listen || first.PID != s.cmd.Process.Pid) {
			err = fmt.Errorf("first line of stdout: %s", line)
		}
		ready <- err
		_, _ = bufio.NewReader(out).WriteTo(&bytes.Buffer{})
	}()
	select {
	case err := <-ready:
		if err != nil {
			s.t.Fatalf("server start: %v\n%s", err, s.log)
		}
	case <-time.After(30 * time.Second):
		s.t.Fatalf("server not ready after 30 s\n%s", s.log)
	}
	exited, cmd := make(chan error, 1), s.cmd
	s.exited = exited
	go func() { exited <- cmd.Wait() }()
	return time.Since(began)
}

// spawn starts the server again as a supervisor does, and waits for nothing.
func (s *server) spawn() {
	s.t.Helper()
	next := exec.Command(s.cmd.Path, s.cmd.Args[1:]...)
	s.log = &ledger.Tail{}
	next.Env, next.Stderr = s.cmd.Env, s.log
	if err := next.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.cmd = next
	exited := make(chan error, 1)
	s.exited = exited
	go func() { exited <- next.Wait() }()
}

// kill ends the server as a power cut would end its process.
func (s *server) kill() {
	_ = s.cmd.Process.Signal(syscall.SIGCONT)
	_ = s.cmd.Process.Kill()
	<-s.exited
	s.cmd = nil
}

// stop asks the server to drain, and returns how long that took. It fails on an exit code other than 0.
func (s *server) stop() time.Duration {
	s.t.Helper()
	began := time.Now()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		s.t.Fatal(err)
	}
	select {
	case err := <-s.exited:
		if err != nil {
			s.t.Errorf("server stopped by SIGTERM: %v\n%s", err, s.log)
		}
	case <-time.After(60 * time.Second):
		s.t.Fatalf("server still runs 60 s after SIGTERM\n%s", s.log)
	}
	s.cmd = nil
	return time.Since(began)
}

// peakRSS returns the process's peak resident set in bytes.
func (s *server) peakRSS() int64 {
	s.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		s.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				s.t.Fatal(err)
			}
			return kib << 10
		}
	}
	s.t.Fatal("no VmHWM")
	return 0
}
