//go:build failpoint

package failpoint

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// The third hit kills the process, as a power cut would: no deferred call, no exit code.
func TestKillAtTheThirdHit(t *testing.T) {
	if os.Getenv(Env) != "" {
		for i := range 4 {
			os.Stdout.WriteString(strings.Repeat("x", i+1) + "\n")
			Hit("test.place")
		}
		return
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=TestKillAtTheThirdHit")
	cmd.Env = append(os.Environ(), Env+"=test.place=kill@3, other=panic")
	out, err := cmd.Output()
	if string(out) != "x\nxx\nxxx\n" {
		t.Errorf("wrote %q", out)
	}
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !ok || !status.Signaled() || status.Signal() != syscall.SIGKILL {
		t.Errorf("ended with %v, %v", cmd.ProcessState, err)
	}
}

// A place with @* is hit each time.
func TestEveryHit(t *testing.T) {
	p, err := parse("x=panic@*")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("hit %d: no panic", i)
				}
			}()
			p.hit("x")
		}()
	}
}

func TestParseRefusesWhatItDoesNotKnow(t *testing.T) {
	for _, bad := range []string{"x", "x=", "x=boom", "x=kill@0", "x=kill@y", "x=sleep", "x=sleep:soon"} {
		if _, err := parse(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}
