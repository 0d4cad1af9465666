//go:build failpoint

package failpoint

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Enabled reports whether the binary was built with failpoints.
const Enabled = true

// Env is the variable that holds the actions.
const Env = "HEADRACE_FAILPOINT"

var points = sync.OnceValue(func() *table {
	t, err := parse(os.Getenv(Env))
	if err != nil {
		panic(err) // a test with a misspelt failpoint must not pass
	}
	return t
})

// Label is the label of a task that names the failpoint that handling the task hits.
const Label = "headrace-failpoint"

// Hit does what the environment says for that place.
func Hit(name string) { points().hit(name) }

type action struct {
	do    string        // kill, panic or sleep
	at    int           // the hit that counts, from 1; 0 ("*"): each
	pause time.Duration // of sleep
	hits  int           // guarded by table.mu
}

type table struct {
	mu      sync.Mutex // guards the counters
	actions map[string]*action
}

func parse(s string) (*table, error) {
	t := &table{actions: map[string]*action{}}
	for item := range strings.SplitSeq(s, ",") {
		if item = strings.TrimSpace(item); item == "" {
			continue
		}
		name, what, ok := strings.Cut(item, "=")
		if !ok {
			return nil, fmt.Errorf("failpoint %q: want place=action", item)
		}
		a := &action{at: 1}
		what, arg, _ := strings.Cut(what, ":")
		do, at, counted := strings.Cut(what, "@")
		a.do = do
		var err error
		switch do {
		case "kill", "panic":
		case "sleep":
			a.at = 0
			if a.pause, err = time.ParseDuration(arg); err != nil {
				return nil, fmt.Errorf("failpoint %q: %w", item, err)
			}
		default:
			return nil, fmt.Errorf("failpoint %q: want kill, panic or sleep", item)
		}
		switch {
		case counted && at == "*":
			a.at = 0
		case counted:
			if a.at, err = strconv.Atoi(at); err != nil || a.at < 1 {
				return nil, fmt.Errorf("failpoint %q: want a number of hits from 1", item)
			}
		}
		t.actions[name] = a
	}
	return t, nil
}

func (t *table) hit(name string) {
	a := t.actions[name]
	if a == nil {
		return
	}
	t.mu.Lock()
	a.hits++
	now := a.at == 0 || a.hits == a.at
	t.mu.Unlock()
	if !now {
		return
	}
	switch a.do {
	case "kill":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // the signal ends every thread; nothing may run on after it
	case "panic":
		panic("failpoint " + name)
	case "sleep":
		time.Sleep(a.pause)
	}
}
