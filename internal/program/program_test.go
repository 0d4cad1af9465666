package program_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headrace/headrace/internal/program"
)

// shell returns a run of a shell script, which needs no more than POSIX.
func shell(script string) program.Spec {
	return program.Spec{Path: "/bin/sh", Args: []string{"-c", script}, MaxOut: 1 << 20, Grace: func(error) time.Duration { return 10 * time.Second }}
}

func run(t *testing.T, s program.Spec) program.Result {
	t.Helper()
	res, err := program.Run(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// Any bytes go in and come out unchanged, more than a pipe holds, both directions at once.
func TestBytesInBytesOut(t *testing.T) {
	for _, in := range [][]byte{nil, []byte("x"), bytes.Repeat([]byte{0, 0xff, '\n', '\r'}, 200_000)} {
		s := shell("cat")
		s.In = in
		res := run(t, s)
		if want := in[:min(len(in), s.MaxOut)]; res.Code != 0 || !bytes.Equal(res.Out, want) || res.OutSize != int64(len(in)) || res.Truncated {
			t.Errorf("%d bytes in: %d out, code %d", len(in), len(res.Out), res.Code)
		}
	}
	s := shell("cat")
	s.In, s.MaxOut = make([]byte, 100_000), 99_999
	if res := run(t, s); !res.Truncated || len(res.Out) != 99_999 || res.OutSize != 100_000 {
		t.Errorf("over the limit: %d of %d bytes, truncated %v", len(res.Out), res.OutSize, res.Truncated)
	}
}

// A program that reads no input ends all the same, though the pipe is full.
func TestUnreadInput(t *testing.T) {
	s := shell("exit 3")
	s.In = make([]byte, 10<<20)
	if res := run(t, s); res.Code != 3 || res.Signal != 0 {
		t.Errorf("%+v", res)
	}
}

func TestEnvironmentAndLines(t *testing.T) {
	s := shell(`printf '%s' "$HEADRACE_X"; printf 'one\r\n\ntwo\nno end' >&2; exit 75`)
	s.Env = []string{"HEADRACE_X=a b"}
	var lines []string
	s.Line = func(l string) { lines = append(lines, l) }
	res := run(t, s)
	want := []string{"one", "", "two", "no end"}
	if res.Code != 75 || string(res.Out) != "a b" || !slices.Equal(lines, want) || !slices.Equal(res.Last, want) {
		t.Errorf("%+v, lines %q", res, lines)
	}
}

// A megabyte on one line and many lines: what is kept stays bounded.
func TestLongStandardError(t *testing.T) {
	s := shell(`head -c 1000000 /dev/zero | tr '\0' x >&2; i=0; while [ $i -lt 500 ]; do echo "line $i" >&2; i=$((i+1)); done`)
	longest, total := 0, 0
	s.Line = func(l string) { longest, total = max(longest, len(l)), total+len(l) }
	res := run(t, s)
	if longest > 4<<10 || total < 1_000_000 {
		t.Errorf("longest line %d, %d bytes in all", longest, total)
	}
	if n := len(strings.Join(res.Last, "")); n > 2<<10 || res.Last[len(res.Last)-1] != "line 499" {
		t.Errorf("kept %d bytes, last %q", n, res.Last[len(res.Last)-1])
	}
}

// Cancel reaches the whole group: SIGTERM, which the program may use to tidy up.
func TestCancelIsSIGTERM(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := shell(`trap 'echo bye; exit 9' TERM; echo ready >&2; while :; do sleep 0.05; done`)
	s.Line = func(string) { cancel() }
	res, err := program.Run(ctx, s)
	if err != nil || res.Code != 9 || string(res.Out) != "bye\n" {
		t.Errorf("%+v, %v", res, err)
	}
}

// A shell dies of the signal at once; the command that it runs still has the grace.
func TestGraceIsForTheWholeGroup(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := shell(`(trap 'sleep 0.2; echo tidied; exit' TERM; echo ready >&2; while :; do sleep 0.05; done); :`)
	s.Line = func(string) { cancel() }
	res, err := program.Run(ctx, s)
	if err != nil || res.Signal != syscall.SIGTERM || string(res.Out) != "tidied\n" {
		t.Errorf("%+v, %v", res, err)
	}
}

// What ignores SIGTERM is killed after the grace, children too: the output would stay open otherwise.
func TestKillAfterGrace(t *testing.T) {
	errReason := errors.New("reason")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	s := shell(`trap '' TERM; echo ready >&2; sleep 600; sleep 600`)
	s.Grace = func(cause error) time.Duration {
		if cause != errReason {
			t.Errorf("cause %v", cause)
		}
		return 50 * time.Millisecond
	}
	s.Line = func(string) { cancel(errReason) }
	begin := time.Now()
	res, err := program.Run(ctx, s)
	if err != nil || res.Signal != syscall.SIGKILL || res.Code != -1 {
		t.Errorf("%+v, %v", res, err)
	}
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("took %v", took)
	}
}

// Background processes of a program that has ended don't keep the task running, and don't stay.
func TestLeftovers(t *testing.T) {
	s := shell(`sleep 600 & echo $!`)
	begin := time.Now()
	res := run(t, s)
	if took := time.Since(begin); res.Code != 0 || took > 20*time.Second {
		t.Fatalf("%+v after %v", res, took)
	}
	var pid int
	if _, err := fmt.Sscan(string(res.Out), &pid); err != nil {
		t.Fatal(err)
	}
	// Killed, though perhaps not reaped yet by its new parent: no process, or a zombie.
	state, err := exec.Command("ps", "-o", "stat=", "-p", fmt.Sprint(pid)).Output()
	if err == nil && !strings.HasPrefix(strings.TrimSpace(string(state)), "Z") {
		t.Errorf("process %d is left, state %s", pid, state)
	}
}

func TestNotStarted(t *testing.T) {
	if _, err := program.Run(t.Context(), program.Spec{Path: "/nowhere/to/be/found"}); err == nil {
		t.Error("ran")
	}
}
