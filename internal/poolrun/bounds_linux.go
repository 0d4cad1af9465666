package poolrun

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// bounds are a child's limits.
type bounds struct {
	how string // for people
	dir string // its cgroup; "": none
}

// bind limits a child that has just started: by a cgroup (v2) below our own, where we may make one; else its writable
// memory by a limit of the process and what it starts, and its CPUs, whole ones, by affinity.
func bind(pid, number int, memory int64, cpu float64) *bounds {
	if memory == 0 && cpu == 0 {
		return &bounds{how: "no limits"}
	}
	if dir, err := group(pid, number, memory, cpu); err == nil {
		return &bounds{how: "limits by cgroup", dir: dir}
	}
	how := []string{}
	if memory > 0 {
		// Of data, not of addresses: runtimes such as Go's reserve far more of these than they use.
		l := unix.Rlimit{Cur: uint64(memory), Max: uint64(memory)}
		if err := unix.Prlimit(pid, unix.RLIMIT_DATA, &l, nil); err != nil {
			how = append(how, fmt.Sprint("memory is not limited: ", err))
		} else {
			how = append(how, "memory by rlimit")
		}
	}
	if cpu > 0 {
		var ours, its unix.CPUSet
		if err := unix.SchedGetaffinity(0, &ours); err != nil {
			return &bounds{how: fmt.Sprint("CPUs are not limited: ", err)}
		}
		var all []int
		for i := 0; len(all) < ours.Count() && i < 1024; i++ {
			if ours.IsSet(i) {
				all = append(all, i)
			}
		}
		n := min(int(math.Ceil(cpu)), len(all))
		for i := range n { // in turn, so that children don't all share the first one
			its.Set(all[(number*n+i)%len(all)])
		}
		if err := unix.SchedSetaffinity(pid, &its); err != nil {
			how = append(how, fmt.Sprint("CPUs are not limited: ", err))
		} else {
			how = append(how, fmt.Sprintf("%d of %d CPUs by affinity", n, runtime.NumCPU()))
		}
	}
	return &bounds{how: strings.Join(how, ", ")}
}

// group puts a process into a new cgroup below our own.
func group(pid, number int, memory int64, cpu float64) (dir string, err error) {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	path, ok := strings.CutPrefix(strings.TrimSpace(string(own)), "0::") // with v1 beside it there are more lines
	if !ok {
		return "", fmt.Errorf("no cgroup v2")
	}
	dir = filepath.Join("/sys/fs/cgroup", path, fmt.Sprintf("headrace-%d-%d", os.Getpid(), number))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	if _, err = os.Stat(filepath.Join(dir, "cgroup.procs")); err != nil { // a plain directory: v2 is elsewhere, or nowhere
		os.Remove(dir)
		return "", err
	}
	write := func(file, text string) {
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, file), []byte(text), 0) // it is there, in a cgroup
		}
	}
	if memory > 0 {
		write("memory.max", fmt.Sprint(memory)) // not there, where the controller is not ours to give
	}
	if cpu > 0 {
		write("cpu.max", fmt.Sprintf("%d 100000", max(int(cpu*100_000), 1000)))
	}
	write("cgroup.procs", fmt.Sprint(pid))
	if err != nil {
		os.Remove(dir)
		return "", err
	}
	return dir, nil
}

// release takes the cgroup of a child that has ended away.
func (b *bounds) release() {
	if b.dir != "" {
		_ = os.Remove(b.dir) // as long as something of it lives it stays: it costs little
	}
}
