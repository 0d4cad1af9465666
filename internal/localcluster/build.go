package localcluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// Root returns the directory of the repository that the working directory is in.
func Root() (string, error) {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("find the repository: %w", err)
	}
	mod := strings.TrimSpace(string(out))
	if mod == "" || mod == os.DevNull {
		return "", fmt.Errorf("find the repository: the working directory is in no Go module")
	}
	return filepath.Dir(mod), nil
}

// BuildEtcd builds etcd's server from its Go module, pinned by tools/etcd.mod, into the repository's .cluster/bin, and
// returns its path. What is there already is taken as it is, for as long as the pin is the same.
func BuildEtcd(ctx context.Context, root string) (string, error) {
	return buildTool(ctx, root, "etcd", "go.etcd.io/etcd/server/v3")
}

// BuildEtcdutl is BuildEtcd for etcd's tool that restores snapshots, pinned by tools/etcdutl.mod.
func BuildEtcdutl(ctx context.Context, root string) (string, error) {
	return buildTool(ctx, root, "etcdutl", "go.etcd.io/etcd/etcdutl/v3")
}

func buildTool(ctx context.Context, root, name, pkg string) (string, error) {
	modfile := filepath.Join("tools", name+".mod")
	pin, err := os.ReadFile(filepath.Join(root, modfile))
	if err != nil {
		return "", fmt.Errorf("build %s: %w", name, err)
	}
	sum := sha256.Sum256(pin)
	dir := filepath.Join(root, ".cluster", "bin")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("build %s: %w", name, err)
	}
	unlock, err := lock(filepath.Join(dir, "lock"))
	if err != nil {
		return "", fmt.Errorf("build %s: %w", name, err)
	}
	defer unlock()
	bin := filepath.Join(dir, name+"-"+hex.EncodeToString(sum[:4]))
	if _, err := os.Stat(bin); err == nil {
		return bin, nil
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-modfile="+modfile, "-trimpath", "-o", bin+".new", pkg)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w: %s", name, err, out)
	}
	return bin, os.Rename(bin+".new", bin)
}

// BuildHeadrace builds this repository's binary to path, with build tags such as failpoint.
func BuildHeadrace(ctx context.Context, root, path string, tags ...string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-tags", strings.Join(tags, ","), "-o", path, "./cmd/headrace")
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build headrace: %w: %s", err, out)
	}
	return nil
}

// lock waits for a lock file, which the kernel releases when we die.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { f.Close() }, nil
}
