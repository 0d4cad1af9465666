// Package headrace_test holds the rules of the architecture as a test: which package may import which.
// docs/ARCHITECTURE.md explains the rows.
package headrace_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/headrace/headrace"

// layers is the architecture, top row first. A package may import packages of lower rows only, so
// every arrow points down and none runs sideways.
var layers = [][]string{
	{"cmd/headrace", "examples/greet", "internal/localcluster/cmd/cluster"},
	{"internal/cli"},
	{"internal/demo", "internal/loadgen", "internal/poolrun"},
	{"internal/e2e", "internal/chaos"},
	{"internal/sim", "internal/testcluster", "internal/ledger", "internal/inproc"}, // the tests' harnesses
	{"dispatcher", "executor", "client", "internal/clusterclient", "internal/devserver", "internal/localcluster"},
	{"executor/engine", "dispatcher/api"},
	{"dispatcher/push", "dispatcher/peer"},
	{"dispatcher/loop", "dispatcher/ownership", "dispatcher/door", "dispatcher/pools"},
	{"dispatcher/core"},
	{"store/pgstore", "store/filestore", "shard/etcdshard", "shard/shardtest"},
	{"store/storetest", "shard/memshard", "shard/placement", "shard/limits", "shard/pause", "shard/tenants", "shard/truth"},
	{"store/memstore", "shard/member"},
	{"store"},
	{"shard", "flowcontrol/fairqueue", "flowcontrol/pressure", "flowcontrol/shares", "fn"},
	{"flowcontrol/adaptive", "flowcontrol/elastic", "flowcontrol/gcra", "flowcontrol/heavy", "flowcontrol/maxmin", "flowcontrol/retrybudget"},
	{"task", "proto/headrace/v1", "proto/headrace/store/v1", "proto/externalscaler"},
	{"internal/telemetry", "internal/clock", "internal/failpoint", "internal/mutant", "internal/grpcx", "internal/term", "internal/version", "internal/faketime", "internal/histogram", "internal/holdback", "internal/program", "internal/pgtest", "internal/localcluster/proxy"},
	{"internal/proctree"},
}

// doors names the only packages through which a library comes in.
var doors = map[string][]string{
	"github.com/jackc/pgx/v5":       {"store/pgstore"},
	"go.etcd.io/etcd":               {"shard/etcdshard"},
	"github.com/cockroachdb/pebble": {"store/filestore"},
	"google.golang.org/grpc": {"client", "executor", "dispatcher", "dispatcher/api", "dispatcher/push", "dispatcher/peer", "internal/grpcx",
		"internal/cli", "internal/demo", "internal/loadgen", "internal/clusterclient", "internal/testcluster", "internal/e2e", "proto/headrace/v1", "proto/externalscaler"},
}

// pure packages hold no clock, lock, goroutine or I/O of their own; impure is what gives that away.
var (
	pure   = []string{"task", "shard", "flowcontrol/adaptive", "flowcontrol/elastic", "flowcontrol/fairqueue", "flowcontrol/gcra", "flowcontrol/heavy", "flowcontrol/maxmin", "flowcontrol/pressure", "flowcontrol/retrybudget", "flowcontrol/shares", "internal/holdback", "dispatcher/core", "dispatcher/ownership", "executor/engine"}
	impure = []string{
		"context", "database/sql", "log", "math/rand", "math/rand/v2", "net", "os", "sync", "sync/atomic",
		"go.uber.org/zap", "google.golang.org/grpc",
	}
)

// sdks are what users link into their programs: nothing of the server comes along.
var (
	sdks      = []string{"client", "executor", "executor/engine", "fn"}
	ofServers = []string{"dispatcher", "store", "shard", "flowcontrol"}
)

func TestArchitecture(t *testing.T) {
	rows := map[string]int{}
	for i, row := range layers {
		for _, pkg := range row {
			rows[pkg] = i + 1
		}
	}
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}} {{len .Doc}} {{join .Imports " "}}`, "./...").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line) // import path, length of its doc, imports
		from, ok := strings.CutPrefix(f[0], module+"/")
		if !ok {
			continue // the root, which holds this test only
		}
		if f[1] == "0" && !strings.HasPrefix(from, "proto/") {
			t.Errorf("%s has no package doc", from)
		}
		if rows[from] == 0 {
			t.Errorf("%s: give it a row in layers", from)
		}
		for _, imp := range f[2:] {
			to, ours := strings.CutPrefix(imp, module+"/")
			if ours && rows[from] >= rows[to] {
				t.Errorf("%s imports %s: arrows point down", from, to)
			}
			for lib, allowed := range doors {
				if (imp == lib || strings.HasPrefix(imp, lib+"/")) && !slices.Contains(allowed, from) {
					t.Errorf("%s imports %s: its doors are %v", from, imp, allowed)
				}
			}
			if slices.Contains(pure, from) && slices.Contains(impure, imp) {
				t.Errorf("%s is pure but imports %s", from, imp)
			}
			if first, _, _ := strings.Cut(to, "/"); ours && slices.Contains(sdks, from) && slices.Contains(ofServers, first) {
				t.Errorf("%s imports %s: a part of the server", from, to)
			}
		}
	}
}

// A pure package reads no clock and starts no goroutine.
func TestPurity(t *testing.T) {
	for _, pkg := range pure {
		files, err := filepath.Glob(filepath.Join(filepath.FromSlash(pkg), "*.go"))
		if err != nil || len(files) == 0 {
			t.Errorf("%s: no Go files (%v)", pkg, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			text := readFile(t, file)
			for _, word := range []string{"time.Now(", "time.Since(", "time.After(", "time.NewTimer(", "\tgo func", "chan "} {
				if i := strings.Index(text, word); i >= 0 {
					t.Errorf("%s: %q in a pure package (line %d)", file, word, strings.Count(text[:i], "\n")+1)
				}
			}
		}
	}
}

// Tests let time pass in bubbles: faketime.Pass panics elsewhere.
func TestNoTestSleeps(t *testing.T) {
	out, err := exec.Command("git", "ls-files", "*_test.go").Output()
	if err != nil {
		t.Skip("not a git checkout")
	}
	sleep := "time." + "Sleep("
	for file := range strings.Lines(string(out)) {
		file = strings.TrimSpace(file)
		if strings.Contains(readFile(t, file), sleep) {
			t.Errorf("%s: %s…): wait for a condition with a bound, or let time pass in a bubble by internal/faketime", file, sleep)
		}
	}
}

// A file above 25 KB usually holds two ideas.
func TestFilesAreSmall(t *testing.T) {
	out, err := exec.Command("git", "ls-files", "*.go").Output()
	if err != nil {
		t.Skip("not a git checkout")
	}
	for file := range strings.Lines(string(out)) {
		file = strings.TrimSpace(file)
		if strings.HasSuffix(file, ".pb.go") || strings.HasSuffix(file, "_test.go") {
			continue
		}
		if n := len(readFile(t, file)); n > 25_000 {
			t.Errorf("%s has %d bytes: split it by idea", file, n)
		}
	}
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if os.IsNotExist(err) {
		return "" // deleted in the working tree, still in the index
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// The Go code of the README is that of the example test, so it compiles and runs.
func TestReadmeShowsTheExample(t *testing.T) {
	example := readFile(t, "examples/greet/greet_test.go")
	blocks := strings.Split(readFile(t, "README.md"), "```go\n")[1:]
	if len(blocks) == 0 {
		t.Fatal("no Go in the README")
	}
	for _, b := range blocks {
		code, _, _ := strings.Cut(b, "```")
		if !strings.Contains(example, code) {
			t.Errorf("not in examples/greet:\n%s", code)
		}
	}
}
