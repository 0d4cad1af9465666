package testcluster_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/executor"
	"github.com/headrace/headrace/fn"
	"github.com/headrace/headrace/internal/faketime"
	"github.com/headrace/headrace/internal/testcluster"
	"github.com/headrace/headrace/task"
)

// The scenario tests are faults that real systems of this kind have had, each with its number; docs/TESTING.md
// has the table. This file holds what they share.

// journal notes what happened when, from any goroutine.
type journal struct {
	mu  sync.Mutex // guards all
	all []note
}

type note struct {
	at   time.Time
	what string
}

func (j *journal) add(what string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.all = append(j.all, note{time.Now(), what})
}

func (j *journal) notes() []note {
	j.mu.Lock()
	defer j.mu.Unlock()
	return append([]note(nil), j.all...)
}

// texts returns the notes without their times.
func (j *journal) texts() (list []string) {
	for _, n := range j.notes() {
		list = append(list, n.what)
	}
	return list
}

// submitBatch stores tasks that must all be accepted.
func submitBatch(t *testing.T, c *client.Client, tasks []client.Task) (ids []string) {
	t.Helper()
	outs, err := c.SubmitBatch(t.Context(), tasks)
	if err != nil {
		t.Fatalf("submit: %v", err)
	}
	for i, o := range outs {
		if o.Err != nil {
			t.Fatalf("submit item %d: %v", i, o.Err)
		}
		ids = append(ids, o.ID)
	}
	return ids
}

// get returns a task that must be there.
func get(t *testing.T, c *client.Client, id string) *client.TaskInfo {
	t.Helper()
	info, err := c.Get(t.Context(), client.ByID(id))
	if err != nil {
		t.Fatalf("get: %v", err)
	}
	return info
}

// attempts returns the kept tries of a task.
func attempts(t *testing.T, c *client.Client, id string) []client.Attempt {
	t.Helper()
	kept, total, err := c.Attempts(t.Context(), client.ByID(id))
	if err != nil || total < len(kept) {
		t.Fatalf("attempts: %d of %d, %v", len(kept), total, err)
	}
	return kept
}

// nothingRuns fails unless nothing is in use a second later: no slot, no credit, no counter leaks.
func nothingRuns(t *testing.T, c *testcluster.Cluster, tenants ...string) {
	t.Helper()
	faketime.Pass(time.Second) // of the bubble
	for _, tenant := range tenants {
		p, err := c.Client(tenant).List(t.Context(), client.ListOptions{State: task.Running})
		if err != nil || len(p.Tasks) != 0 {
			t.Errorf("%s still runs %d tasks, %v", tenant, len(p.Tasks), err)
		}
	}
}

// losable runs an executor until the test ends; the returned function takes the network from it for good,
// as the death of its machine would.
func losable(t *testing.T, c *testcluster.Cluster, tenant, name string, register func(*executor.Executor)) (lose func()) {
	t.Helper()
	var mu sync.Mutex // guards what follows
	var conns []net.Conn
	lost := false
	dial := func(ctx context.Context, addr string) (net.Conn, error) {
		mu.Lock()
		defer mu.Unlock()
		if lost {
			return nil, errors.New("no network")
		}
		conn, err := c.Dial(ctx, addr)
		if err == nil {
			conns = append(conns, conn)
		}
		return conn, err
	}
	x, err := executor.New(executor.Config{Addr: "127.0.0.1:7070", Tenant: tenant, Name: name, Slots: 1, Dialer: dial,
		DrainTimeout: -1, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	register(x)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = x.Run(ctx) // unfinished, where it was lost
	}()
	t.Cleanup(func() { cancel(); <-ended })
	<-x.Ready()
	return func() {
		mu.Lock()
		defer mu.Unlock()
		lost = true
		for _, conn := range conns {
			_ = conn.Close()
		}
	}
}

// raw registers a handler of bytes.
func raw(x *executor.Executor, name string, policy fn.Options, h func(ctx context.Context, t *executor.Task) ([]byte, error)) {
	x.HandleRaw(name, policy, func(ctx context.Context, t *executor.Task) (executor.Result, error) {
		body, err := h(ctx, t)
		return executor.Result{Body: body}, err
	})
}
