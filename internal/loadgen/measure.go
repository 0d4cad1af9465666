package loadgen

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/internal/proctree"
	"github.com/headrace/headrace/task"
)

const (
	stallTimeout  = 30 * time.Second // ends a run in which nothing happens
	settleTimeout = 2 * time.Second
)

// glance is what processes and server say at one moment.
type glance struct {
	cpu      time.Duration // of this process and the nodes
	own      time.Duration // of this process alone
	database proctree.Usage
	written  map[string]int64 // by node: what its store says that was written, bytes; on Postgres the log
	postgres bool
	durable  map[string]string
	live     int64 // tasks in the server that have not finished
	version  string
	busy     float64
}

func (r *Run) look(ctx context.Context) (glance, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	own := ownCPU()
	g := glance{cpu: own, own: own, database: proctree.Usage{Written: -1}, written: map[string]int64{}, durable: map[string]string{}}
	nodes, err := r.cluster.Nodes(ctx)
	if err != nil {
		return g, err
	}
	for _, n := range nodes { // other nodes than the one that answers are as they told a moment ago
		g.cpu += time.Duration(n.CpuMicros) * time.Microsecond
		g.written[n.Id] = n.DiskWrittenBytes
		maps.Copy(g.durable, n.StoreSettings)
		g.version = n.Version
		g.busy = max(g.busy, n.LoopBusyRatio)
	}
	for name, value := range g.durable { // of several databases the names have the database's before them
		g.postgres = g.postgres || value == "postgres" && (name == "engine" || strings.HasSuffix(name, ".engine"))
	}
	if r.cfg.Database != nil {
		if g.database, err = r.cfg.Database(); err != nil {
			return g, fmt.Errorf("look at the database's processes: %w", err)
		}
	}
	g.live, err = r.live(ctx)
	return g, err
}

// stored returns how much the stores have written from one glance to the next. Nodes of a cluster share their
// databases and each tells of all: the most that one has seen is right.
func stored(before, after glance) (bytes int64) {
	for id, n := range after.written {
		if was, there := before.written[id]; there {
			bytes = max(bytes, n-was)
		}
	}
	return bytes
}

// live returns how many tasks have not finished, by the counts of the partitions.
func (r *Run) live(ctx context.Context) (n int64, err error) {
	parts, err := r.cluster.Partitions(ctx)
	for _, p := range parts {
		n += p.Backlog + p.Scheduled + p.Running
	}
	return n, err
}

// settle waits until the counts of the partitions, which are published now and then, show the tasks that
// must be there: drain compares with them. On a server with other work they may never do so exactly.
func (r *Run) settle(ctx context.Context, want int64) error {
	tick, late := time.NewTicker(10*time.Millisecond), time.After(settleTimeout)
	defer tick.Stop()
	for {
		if n, err := r.live(ctx); err != nil || n == want {
			return err
		}
		select {
		case <-tick.C:
		case <-late:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// ownCPU returns the CPU time of this process, user and system.
func ownCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// settledFor is how long the counts must stay at what they were: they are published now and then, so that a
// look right after the last start may show what was before it.
const settledFor = 300 * time.Millisecond

// drain returns when the server had no more live tasks than before for the first time: every outcome is committed.
func (r *Run) drain(ctx context.Context, before glance) (time.Time, error) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	progress := time.Now()
	var lastStarts, lastLive int64
	var settled time.Time
	for {
		starts, live := r.Starts.Load(), int64(-1)
		if starts >= r.Accepted.Load() { // ask only when it can be over: asking costs CPU
			var err error
			if live, err = r.live(ctx); err != nil {
				return time.Time{}, err
			}
			switch {
			case live > before.live:
				settled = time.Time{}
			case settled.IsZero():
				settled = time.Now()
			case time.Since(settled) > settledFor:
				return settled, nil
			}
		}
		if starts != lastStarts || live != lastLive {
			lastStarts, lastLive, progress = starts, live, time.Now()
		}
		if time.Since(progress) > stallTimeout {
			return time.Time{}, fmt.Errorf("nothing has moved for %v; the server has %d unfinished tasks (-1: not asked), %d before",
				stallTimeout, live, before.live)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return time.Time{}, context.Cause(ctx)
		}
	}
}

// verifyAll bounds the number of tasks that are all looked at; of more, a sample is.
const verifyAll = 500_000

// verify asks the server what became of the tasks. It returns how many succeeded and how many were
// looked at; where that is a sample without fault, all have succeeded.
func (r *Run) verify(ctx context.Context) (succeeded, looked int64, err error) {
	if r.Accepted.Load() <= verifyAll {
		for _, t := range r.tenants {
			for info, err := range t.c.ListAll(ctx, client.ListOptions{Function: r.function, PageSize: 1000}) {
				if err != nil {
					return 0, 0, err
				}
				looked++
				if info.State == task.Succeeded {
					succeeded++
				}
			}
		}
		return succeeded, looked, nil
	}
	for _, t := range r.tenants {
		for _, id := range t.ids.kept {
			info, err := t.c.Get(ctx, client.ByID(id))
			if err != nil && !errors.Is(err, client.ErrNotFound) {
				return 0, 0, err
			}
			looked++
			if err == nil && info.Succeeded() {
				succeeded++
			}
		}
	}
	if succeeded == looked {
		return r.Accepted.Load(), looked, nil
	}
	return r.Accepted.Load() * succeeded / looked, looked, nil
}

// idSample keeps about a thousand ids of those that were added, evenly spread.
type idSample struct {
	every int

	mu   sync.Mutex // guards following
	seen int
	kept []string
}

func newIDSample(total int) *idSample { return &idSample{every: max(total/1000, 1)} }

func (s *idSample) add(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen%s.every == 0 {
		s.kept = append(s.kept, id)
	}
	s.seen++
}
