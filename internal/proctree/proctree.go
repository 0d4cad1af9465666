// Package proctree reads from /proc what a process and its children have used, those included that ended
// and were waited for: the figures of a Postgres server, which is a process a connection. Elsewhere than
// on Linux there is nothing to read.
package proctree

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Usage is what processes have used since they started. It only grows.
type Usage struct {
	CPU     time.Duration // user and system, in steps of 10 ms
	Written int64         // bytes that went to disks, or are on their way; -1: we may not know
}

// Of returns the usage of a process and its children. Its error says that the process is gone.
func Of(root int) (Usage, error) {
	var u Usage
	var ticks int64
	own, err := readStat(root)
	if err != nil {
		return u, err
	}
	ticks = own.self + own.reaped
	u.Written = written(root)
	stats, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is well-formed
	for _, name := range stats {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		child, err := readStat(pid)
		if err != nil || child.parent != root {
			continue // it ended, or is somebody else's
		}
		ticks += child.self
		if w := written(pid); w < 0 || u.Written < 0 {
			u.Written = -1
		} else {
			u.Written += w
		}
	}
	u.CPU = time.Duration(ticks) * (time.Second / 100) // USER_HZ is 100 on every Linux that Go runs on
	return u, nil
}

// Parent returns the process id of a process's parent.
func Parent(pid int) (int, error) {
	s, err := readStat(pid)
	return s.parent, err
}

// Command returns the command line of a process as it is now; servers write into it what they do.
func Command(pid int) (string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return strings.TrimSpace(string(bytes.ReplaceAll(b, []byte{0}, []byte{' '}))), err
}

type stat struct {
	parent       int
	self, reaped int64 // ticks
}

func readStat(pid int) (s stat, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return s, err
	}
	// The name, in parentheses, may hold anything: the last one ends it.
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) < 15 {
		return s, errors.New("not a line of /proc/PID/stat")
	}
	number := func(i int) int64 { n, _ := strconv.ParseInt(f[i], 10, 64); return n }
	return stat{parent: int(number(1)), self: number(11) + number(12), reaped: number(13) + number(14)}, nil
}

// written returns the bytes that a process wrote to disks, with those of its children that ended; -1 if we may not
// ask: the process is another user's.
func written(pid int) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if errors.Is(err, os.ErrNotExist) {
		return 0 // it ended just now: its parent has it
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "write_bytes: "); ok {
			if n, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64); err == nil {
				return n
			}
		}
	}
	return -1
}
