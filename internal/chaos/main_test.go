package chaos

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/headrace/headrace/internal/ledger"
	"github.com/headrace/headrace/internal/localcluster"
)

// What TestMain builds.
var headrace, etcdServer string

// long is set for `make chaos`: rows have their full size and time.
var long = os.Getenv("HEADRACE_CHAOS") == "long"

func TestMain(m *testing.M) {
	ledger.ExecutorMain()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "headrace-chaos-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	root, err := localcluster.Root()
	if err == nil {
		etcdServer, err = localcluster.BuildEtcd(context.Background(), root)
	}
	if err == nil {
		headrace = filepath.Join(dir, "headrace")
		err = localcluster.BuildHeadrace(context.Background(), root, headrace)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// onlyLong skips a row that `make test` has no time for.
func onlyLong(t *testing.T) {
	t.Helper()
	if !long {
		t.Skip("a row of make chaos")
	}
}

// pick returns what a row's size is in `make test` or in `make chaos`.
func pick[T any](short, full T) T {
	if long {
		return full
	}
	return short
}
