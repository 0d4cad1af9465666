package etcdshard

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/headrace/headrace/shard/member"
	"github.com/headrace/headrace/shard/shardtest"
)

// The same through a port and etcd's own client, as in a cluster.
func TestConformanceOverNetwork(t *testing.T) {
	shardtest.Run(t, shardtest.Subject{
		TTL: 2 * time.Second, Slack: 3 * time.Second,
		New: func(t *testing.T) func() member.KV {
			addr := serve(t, embedded(t, filepath.Join(t.TempDir(), "etcd")))
			return func() member.KV {
				kv, err := Dial(ClientConfig{Endpoints: []string{addr}})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = kv.Close() })
				return kv
			}
		},
	})
}

// serve opens a port to an embedded server, which has none, until the test ends.
func serve(t *testing.T, e *Embedded) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := v3rpc.Server(e.server, nil, nil)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		<-done
	})
	return l.Addr().String()
}

func writeKey(t *testing.T, kv *KV, key, value string) {
	t.Helper()
	if _, _, err := kv.Commit(t.Context(), member.Txn{Then: []member.Op{{Key: key, Value: []byte(value)}}}); err != nil {
		t.Fatal(err)
	}
}

func readKey(t *testing.T, kv *KV, key string) string {
	t.Helper()
	items, _, err := kv.List(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if len(items) == 0 {
		return ""
	}
	return string(items[0].Value)
}

// What was written is there after a restart; start and stop are quick, also with a watch open; no port is
// opened; the directory is small; and no goroutine stays.
func TestRestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("deep/", 30), "etcd") // longer than a unix socket's name may be
	before := runtime.NumGoroutine()
	for i := range 3 {
		startedAt := time.Now()
		e, err := StartEmbedded(t.Context(), EmbeddedConfig{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		started := time.Since(startedAt)
		if i > 0 && readKey(t, e.KV(), "/k") != fmt.Sprint(i-1) {
			t.Errorf("read %q after restart %d", readKey(t, e.KV(), "/k"), i)
		}
		writeKey(t, e.KV(), "/k", fmt.Sprint(i))
		if n := listening(t); n != 0 {
			t.Errorf("%d sockets are open", n)
		}
		watch := e.KV().Watch(t.Context(), "/k", 1)
		<-watch
		stoppedAt := time.Now()
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		for range watch { // ends with the client
		}
		stopped := time.Since(stoppedAt)
		t.Logf("start %v, stop %v", started, stopped)
		if started > 2*time.Second || stopped > time.Second {
			t.Errorf("start took %v, stop %v", started, stopped)
		}
	}
	var size int64
	for _, f := range files(t, dir) {
		if info, err := os.Stat(f); err == nil {
			size += info.Size()
		}
	}
	if size > 24<<20 { // 16 MB of them are what bbolt grows its file by
		t.Errorf("the directory has %d bytes", size)
	}
	deadline := time.After(5 * time.Second)
	for tick := time.NewTicker(10 * time.Millisecond); runtime.NumGoroutine() > before; {
		select {
		case <-tick.C:
		case <-deadline:
			buf := make([]byte, 1<<20)
			t.Fatalf("%d goroutines before, %d after:\n%s", before, runtime.NumGoroutine(), buf[:runtime.Stack(buf, true)])
		}
	}
}

// listening counts this process's sockets.
func listening(t *testing.T) (n int) {
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("no /proc here")
	}
	for _, fd := range fds {
		if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && strings.HasPrefix(to, "socket:") {
			n++
		}
	}
	return n
}

func files(t *testing.T, dir string) (fs []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			fs = append(fs, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return fs
}

// A healthy life, from an empty directory on and with a lease revoked twice, says nothing.
func TestQuiet(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "etcd")
	core, logs := observer.New(zapcore.DebugLevel)
	for range 3 {
		e, err := StartEmbedded(t.Context(), EmbeddedConfig{Dir: dir, Logger: zap.New(core)})
		if err != nil {
			t.Fatal(err)
		}
		lease, err := e.KV().Grant(t.Context(), time.Minute)
		for range 2 {
			if err == nil {
				err = e.KV().Revoke(t.Context(), lease)
			}
		}
		if err == nil {
			err = e.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, l := range logs.All() {
		t.Errorf("%s %s %v", l.Level, l.Message, l.ContextMap())
	}
}

// filled returns a stopped directory with some history in it.
func filled(t *testing.T) string {
	dir := filepath.Join(t.TempDir(), "etcd")
	e, err := StartEmbedded(t.Context(), EmbeddedConfig{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 300 {
		writeKey(t, e.KV(), fmt.Sprintf("/k/%03d", i%100), strings.Repeat("v", 100+i))
	}
	lease, err := e.KV().Grant(t.Context(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := e.KV().Commit(t.Context(), member.Txn{Then: []member.Op{{Key: "/k/leased", Lease: lease}}}); err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

func copyDir(t *testing.T, from string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "etcd")
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return to
}

// usedEnd is where a file's contents end: etcd's log and pages are allocated ahead and end in zeros.
func usedEnd(b []byte) int {
	n := len(b)
	for n > 0 && b[n-1] == 0 {
		n--
	}
	return n
}

// Whatever is cut off or scribbled over, the server starts and works; if it had to begin anew it says so
// once, and the old directory is still there.
func TestDamage(t *testing.T) {
	source := filled(t)
	var names []string
	for _, f := range files(t, source) {
		name, _ := filepath.Rel(source, f)
		names = append(names, name)
	}
	if len(names) < 2 {
		t.Fatalf("files: %v", names)
	}
	r := rand.New(rand.NewPCG(1, 2))
	scribble := func(b []byte, from, to int) []byte {
		for i := max(from, 0); i < to; i++ {
			b[i] = byte(r.Uint32())
		}
		return b
	}
	kinds := map[string]func(b []byte) []byte{
		"cut the last KBs":              func(b []byte) []byte { return b[:max(0, len(b)-4000)] },
		"cut the last used KBs":         func(b []byte) []byte { return b[:max(0, usedEnd(b)-3000)] },
		"cut to one page":               func(b []byte) []byte { return b[:min(len(b), 4096)] },
		"cut to nothing":                func(b []byte) []byte { return b[:0] },
		"scribble over the last KBs":    func(b []byte) []byte { return scribble(b, len(b)-4096, len(b)) },
		"scribble over the used end":    func(b []byte) []byte { n := usedEnd(b); return scribble(b, n-4096, n) },
		"scribble over the start":       func(b []byte) []byte { return scribble(b, 0, min(len(b), 4096)) },
		"scribble over the second page": func(b []byte) []byte { return scribble(b, 4096, min(len(b), 8192)) },
		"scribble over everything":      func(b []byte) []byte { return scribble(b, 0, len(b)) },
		"zero the used end":             func(b []byte) []byte { n := usedEnd(b); clear(b[max(0, n-4096):n]); return b },
		"delete":                        nil,
	}
	few := 12
	if testing.Short() {
		few = 2
	}
	for i := range few {
		kinds[fmt.Sprintf("scribble over a few bytes %d", i)] = func(b []byte) []byte {
			for range 8 {
				at := r.IntN(max(1, usedEnd(b)-16))
				scribble(b, at, min(len(b), at+8))
			}
			return b
		}
	}
	moved := 0
	for _, name := range names {
		for _, kind := range slices.Sorted(maps.Keys(kinds)) {
			t.Run(strings.ReplaceAll(kind, " ", "_")+"/"+filepath.Base(name), func(t *testing.T) {
				dir := copyDir(t, source)
				path := filepath.Join(dir, name)
				if f := kinds[kind]; f == nil {
					if err := os.Remove(path); err != nil {
						t.Fatal(err)
					}
				} else {
					b, err := os.ReadFile(path)
					if err == nil {
						err = os.WriteFile(path, f(b), 0o600)
					}
					if err != nil {
						t.Fatal(err)
					}
				}
				if startDamaged(t, dir) {
					moved++
				}
			})
		}
	}
	t.Logf("%d times begun anew", moved)
	if moved == 0 {
		t.Error("no damage was found at all")
	}
}

// startDamaged starts a directory, checks that it works and reports whether it began anew.
func startDamaged(t *testing.T, dir string) bool {
	t.Helper()
	core, logs := observer.New(zapcore.WarnLevel)
	e, err := StartEmbedded(t.Context(), EmbeddedConfig{Dir: dir, Logger: zap.New(core)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}()
	writeKey(t, e.KV(), "/works", "yes")
	if got := readKey(t, e.KV(), "/works"); got != "yes" {
		t.Errorf("read %q", got)
	}
	warned := logs.FilterMessageSnippet("moved aside").Len()
	if e.MovedTo() == "" {
		if warned != 0 {
			t.Error("warned of damage, and nothing was moved")
		}
		return false
	}
	if warned != 1 {
		t.Errorf("%d warnings", warned)
	}
	if _, err := os.Stat(e.MovedTo()); err != nil {
		t.Errorf("the old directory: %v", err)
	}
	return true
}

// A log that was cut below what the pages have is found at once, and not by a timeout.
func TestCutLog(t *testing.T) {
	dir := filled(t)
	for _, f := range files(t, dir) {
		if strings.HasSuffix(f, ".wal") {
			if err := os.Truncate(f, 4096); err != nil {
				t.Fatal(err)
			}
		}
	}
	core, logs := observer.New(zapcore.WarnLevel)
	e, err := StartEmbedded(t.Context(), EmbeddedConfig{Dir: dir, Logger: zap.New(core)})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	aside := logs.FilterMessageSnippet("moved aside").All()
	if len(aside) != 1 || !strings.Contains(fmt.Sprint(aside[0].ContextMap()["damage"]), "the log ends at entry") {
		t.Errorf("warnings: %v", aside)
	}
}

// A start that ended the process is found by its marker.
func TestMarkerOfADeadStart(t *testing.T) {
	dir := filled(t)
	if err := os.WriteFile(dir+".starting", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if !startDamaged(t, dir) {
		t.Error("started the same directory again")
	}
	if _, err := os.Stat(dir + ".starting"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("marker after a good start: %v", err)
	}
	if startDamaged(t, dir) {
		t.Error("began anew after a good start")
	}
}

// Damage again and again does not fill the disk.
func TestFewDamagedAreKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "etcd")
	for range keepDamaged + 2 {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if _, err := moveAside(dir); err != nil {
			t.Fatal(err)
		}
	}
	if kept, _ := filepath.Glob(dir + ".damaged-*"); len(kept) != keepDamaged {
		t.Errorf("%d are kept", len(kept))
	}
}

// A directory in use is refused and left alone.
func TestLocked(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "etcd")
	e := embedded(t, dir)
	writeKey(t, e.KV(), "/k", "1")
	if _, err := StartEmbedded(t.Context(), EmbeddedConfig{Dir: dir}); !errors.Is(err, ErrLocked) {
		t.Errorf("second start = %v", err)
	}
	if got := readKey(t, e.KV(), "/k"); got != "1" {
		t.Errorf("the first server reads %q", got)
	}
}

// A fatal message of etcd ends its goroutine, not the process, and is told.
func TestFatalIsTold(t *testing.T) {
	e := embedded(t, filepath.Join(t.TempDir(), "etcd"))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		e.server.Logger().Fatal("no space left", zap.String("file", "db"))
		t.Error("went on after a fatal message")
	}()
	<-ended
	<-e.Failed()
	if err := e.Err(); err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("Err = %v", err)
	}
}

func BenchmarkStart(b *testing.B) {
	dir := filepath.Join(b.TempDir(), "etcd")
	for b.Loop() {
		e, err := StartEmbedded(b.Context(), EmbeddedConfig{Dir: dir})
		if err != nil {
			b.Fatal(err)
		}
		if err := e.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
