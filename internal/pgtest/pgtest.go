// Package pgtest starts a Postgres server of a test's own: Debian's binaries, a new cluster in a
// temporary directory, a port of its own on loopback, fsync on. It is stopped and removed at the end.
// Debian's own cluster is never touched.
//
// The server is a child of a small shell that waits for our end of a pipe to close, so it ends with the
// test's process however that dies. Postgres refuses to run as root: then it runs as user postgres,
// who comes with Debian's package.
//
// The package knows no driver (pgx has its door in store/pgstore): it asks psql.
package pgtest

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/headrace/headrace/internal/proctree"
)

// Server is a running Postgres. Its methods are called by one goroutine at a time, but for Database.
type Server struct {
	Dir  string // all its files
	Port int

	settings []string
	bin      string
	cred     *syscall.Credential // nil: our own
	stdin    io.Closer           // its end is the server's
	cmd      *exec.Cmd
	dbs      atomic.Int64
}

// startTimeout bounds the start of a server, recovery included.
const startTimeout = time.Minute

// New makes a cluster and starts it. Settings are postgresql.conf lines such as "max_connections=50".
// Errors: Postgres is not installed (`make test-deps` does), or does not start.
func New(settings ...string) (*Server, error) {
	bin, err := Binaries()
	if err != nil {
		return nil, err
	}
	s := &Server{bin: bin, settings: settings}
	if s.cred, err = Credential(); err != nil {
		return nil, err
	}
	if s.Dir, err = os.MkdirTemp("", "headrace-pg-"); err != nil {
		return nil, err
	}
	if s.cred != nil {
		if err := os.Chown(s.Dir, int(s.cred.Uid), int(s.cred.Gid)); err != nil {
			return nil, err
		}
	}
	if _, err := s.run("initdb", "-D", s.data(), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-instructions"); err != nil {
		os.RemoveAll(s.Dir)
		return nil, err
	}
	if s.Port, err = freePort(); err == nil {
		err = s.Start()
	}
	if err != nil {
		os.RemoveAll(s.Dir)
		return nil, err
	}
	return s, nil
}

// Credential is whom a server runs as: nil, our own user, or user postgres when that is root.
func Credential() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, fmt.Errorf("postgres does not run as root: %w", err)
	}
	uid, _ := strconv.ParseUint(u.Uid, 10, 32) // numbers by definition on Linux
	gid, _ := strconv.ParseUint(u.Gid, 10, 32)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

// Binaries returns the directory of the newest installed Postgres.
func Binaries() (string, error) {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb") // the pattern is well-formed
	best, version := "", 0
	for _, f := range found {
		dir := filepath.Dir(f)
		if n, err := strconv.Atoi(filepath.Base(filepath.Dir(dir))); err == nil && n > version {
			best, version = dir, n
		}
	}
	if version >= 15 {
		return best, nil
	}
	if p, err := exec.LookPath("initdb"); err == nil {
		return filepath.Dir(p), nil
	}
	return "", errors.New("no Postgres 15 or newer is installed: run `make test-deps`")
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

func (s *Server) data() string { return filepath.Join(s.Dir, "data") }
func (s *Server) log() string  { return filepath.Join(s.Dir, "log") }

func (s *Server) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir = s.Dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.cred, Setpgid: true}
	cmd.Env = append(os.Environ(), "LC_ALL=C", "PGCONNECT_TIMEOUT=10")
	return cmd
}

func (s *Server) run(name string, args ...string) (string, error) {
	out, err := s.command(filepath.Join(s.bin, name), args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return string(out), nil
}

// Start starts a stopped server on the same data and port.
func (s *Server) Start() error {
	args := []string{"-c", `"$@" >>log 2>&1 & p=$!; cat >/dev/null; kill -INT $p 2>/dev/null; wait $p`, "sh",
		filepath.Join(s.bin, "postgres"), "-D", s.data(), "-k", s.Dir, "-p", strconv.Itoa(s.Port),
		"-c", "listen_addresses=127.0.0.1", "-c", "fsync=on"}
	for _, set := range s.settings {
		args = append(args, "-c", set)
	}
	s.cmd = s.command("sh", args...)
	in, err := s.cmd.StdinPipe()
	if err != nil {
		return err
	}
	s.stdin = in
	if err := s.cmd.Start(); err != nil {
		return err
	}
	deadline := time.Now().Add(startTimeout)
	for {
		if _, err = s.SQL("postgres", "SELECT 1"); err == nil {
			return nil
		}
		if time.Now().After(deadline) || s.pid() == 0 && time.Now().After(deadline.Add(-startTimeout+10*time.Second)) {
			text, _ := os.ReadFile(s.log()) // for the message only
			s.Stop()
			return fmt.Errorf("start postgres: %w; its log:\n%s", err, text)
		}
		<-time.After(50 * time.Millisecond)
	}
}

// Stop ends the server at once ("fast": transactions are aborted) and waits for it.
func (s *Server) Stop() { s.end(0) }

// Kill ends the server as a power cut would, but for the disk's cache: no checkpoint, no goodbye.
func (s *Server) Kill() { s.end(syscall.SIGQUIT) }

func (s *Server) end(sig syscall.Signal) {
	if s.cmd == nil {
		return
	}
	if pid := s.pid(); sig != 0 && pid != 0 {
		_ = syscall.Kill(pid, sig) // gone already is as good
	}
	s.stdin.Close()
	_ = s.cmd.Wait() // its status says how the server ended, which we asked for
	s.cmd = nil
}

// Close ends the server and removes its files.
func (s *Server) Close() {
	s.Stop()
	os.RemoveAll(s.Dir)
}

// pid returns the postmaster's process id, 0 if it does not run.
func (s *Server) pid() int {
	b, err := os.ReadFile(filepath.Join(s.data(), "postmaster.pid"))
	if err != nil {
		return 0
	}
	first, _, _ := bytes.Cut(b, []byte("\n"))
	pid, _ := strconv.Atoi(string(first)) // a half-written file is no process
	return pid
}

// DSN returns the connection string of a database, over TCP on loopback.
func (s *Server) DSN(database string) string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/%s?sslmode=disable", s.Port, database)
}

// SQL runs statements as superuser and returns what they print, columns apart by |.
func (s *Server) SQL(database, sql string) (string, error) {
	out, err := s.run("psql", "-h", s.Dir, "-p", strconv.Itoa(s.Port), "-U", "postgres", "-d", database, "-X", "-A", "-t", "-q",
		"-v", "ON_ERROR_STOP=1", "-c", sql)
	return strings.TrimSpace(out), err
}

// Must is SQL for tests.
func (s *Server) Must(tb testing.TB, database, sql string) string {
	tb.Helper()
	out, err := s.SQL(database, sql)
	if err != nil {
		tb.Fatal(err)
	}
	return out
}

// Database makes an empty database and returns its name. It is dropped with the test.
func (s *Server) Database(tb testing.TB) string {
	tb.Helper()
	name := fmt.Sprintf("test%d", s.dbs.Add(1))
	s.Must(tb, "postgres", "CREATE DATABASE "+name)
	tb.Cleanup(func() {
		if s.cmd != nil {
			s.Must(tb, "postgres", "DROP DATABASE "+name+" WITH (FORCE)")
		}
	})
	return name
}

// CPU returns what all processes of the server have used, those that ended included.
func (s *Server) CPU() time.Duration {
	u, _ := proctree.Of(s.pid()) // nothing, of a server that is down
	return u.CPU
}

// WAL returns what is in the log between two positions, one line a kind of record and table or index of the database, the most bytes
// first: bytes, records, bytes a record, kind, name. Full pages count as their own kind.
func (s *Server) WAL(database, from, to string) (string, error) {
	dump, err := s.run("pg_waldump", "-p", filepath.Join(s.data(), "pg_wal"), "-s", from, "-e", to)
	if err != nil {
		return "", err
	}
	out, err := s.SQL(database, "SELECT oid::regclass, pg_relation_filenode(oid) FROM pg_class WHERE relfilenode <> 0")
	if err != nil {
		return "", err
	}
	names := map[string]string{}
	for line := range strings.Lines(out) {
		name, node, _ := strings.Cut(strings.TrimSpace(line), "|")
		names[node] = name
	}
	type sum struct {
		kind           string
		bytes, records int
	}
	sums := map[string]*sum{}
	for line := range strings.Lines(dump) {
		m := walRecord.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		kind := m[1] + " " + strings.TrimSpace(m[4])
		if r := walRelation.FindStringSubmatch(line); r != nil {
			kind += " " + names[r[1]]
		}
		if strings.Contains(line, "FPW") {
			kind += " (full page)"
		}
		if sums[kind] == nil {
			sums[kind] = &sum{kind: kind}
		}
		n, _ := strconv.Atoi(m[3]) // digits by the pattern
		sums[kind].bytes += (n + 7) &^ 7
		sums[kind].records++
	}
	all := slices.SortedFunc(maps.Values(sums), func(a, b *sum) int { return cmp.Or(cmp.Compare(b.bytes, a.bytes), cmp.Compare(a.kind, b.kind)) })
	var b strings.Builder
	for _, v := range all {
		fmt.Fprintf(&b, "%10d %8d %6.0f  %s\n", v.bytes, v.records, float64(v.bytes)/float64(v.records), v.kind)
	}
	return b.String(), nil
}

var (
	walRecord   = regexp.MustCompile(`^rmgr: (\S+)\s+len \(rec/tot\):\s*(\d+)/\s*(\d+),.*desc: ([A-Z_+]+)`)
	walRelation = regexp.MustCompile(`rel \d+/\d+/(\d+)`)
)
