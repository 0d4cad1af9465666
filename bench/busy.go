package main

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// usage is what the machine and we have used so far.
type usage struct {
	at        time.Time
	busy      time.Duration // all cores, all processes
	ours      time.Duration // this process, its ended children, and the servers
	self, all time.Duration // of ours: this process; the servers
}

// look reads the counters; servers returns the CPU time of the servers that take part.
func look(servers ...func() time.Duration) usage {
	u := usage{at: time.Now(), self: rusage(syscall.RUSAGE_SELF)}
	for _, s := range servers {
		u.all += s()
	}
	u.ours = u.self + rusage(syscall.RUSAGE_CHILDREN) + u.all
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return u
	}
	line, _, _ := strings.Cut(string(b), "\n")
	for i, f := range strings.Fields(line) {
		switch n, _ := strconv.ParseInt(f, 10, 64); i {
		case 1, 2, 3, 6, 7: // user, nice, system, interrupts
			u.busy += time.Duration(n) * (time.Second / 100)
		}
	}
	return u
}

// foreign returns how many cores others kept busy in the mean since then.
func (u usage) foreign(before usage) float64 {
	span := u.at.Sub(before.at)
	return max(0, float64(u.busy-before.busy-(u.ours-before.ours))/float64(span))
}

func rusage(who int) time.Duration {
	var r syscall.Rusage
	if syscall.Getrusage(who, &r) != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
