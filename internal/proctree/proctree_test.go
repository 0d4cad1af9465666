package proctree

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A process is asked about with its living child, and after the child's end with what that had used.
func TestChildrenCount(t *testing.T) {
	if _, err := os.Stat("/proc/self/io"); err != nil {
		t.Skip("no /proc here")
	}
	file := filepath.Join(t.TempDir(), "f")
	// The child works, says so, and waits to be let go; then its parent does, until its input ends.
	cmd := exec.Command("sh", "-c", `sh -c 'i=0; while [ $i -lt 400000 ]; do i=$((i+1)); done
		dd if=/dev/zero of="$0" bs=64k count=16 conv=fsync 2>/dev/null; echo worked; read x' "$0"; echo gone; read x`, file)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { in.Close(); cmd.Wait() }()
	lines := bufio.NewScanner(out)
	expect := func(want string) Usage {
		t.Helper()
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("%q, want %q", lines.Text(), want)
		}
		u, err := Of(cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		if u.CPU < 50*time.Millisecond {
			t.Errorf("%s: %v of CPU for 400,000 rounds of a shell", want, u.CPU)
		}
		return u
	}
	alive := expect("worked")
	in.Write([]byte("\n"))
	if after := expect("gone"); after.CPU < alive.CPU || after.Written < alive.Written {
		t.Errorf("%+v after %+v: the child was forgotten", after, alive)
	}
	if parent, err := Parent(cmd.Process.Pid); err != nil || parent != os.Getpid() {
		t.Errorf("its parent is %d, not %d (%v)", parent, os.Getpid(), err)
	}
	if line, err := Command(cmd.Process.Pid); err != nil || !strings.HasPrefix(line, "sh -c ") {
		t.Errorf("its command is %q (%v)", line, err)
	}
	if _, err := Of(1 << 30); err == nil {
		t.Error("a process that there can't be")
	}
}
