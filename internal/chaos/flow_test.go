package chaos

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/internal/localcluster"
)

// patience is how long one submit may take, retries of the SDK included: longer than any outage.
const patience = 2 * time.Minute

// nap is the task of most flows: its handler takes 200 ms.
func nap(i int) client.Task { return client.Task{Function: "nap", Payload: fmt.Appendf(nil, "%d", i)} }

// work is a task that takes no time.
func work(i int) client.Task {
	return client.Task{Function: "work", Payload: fmt.Appendf(nil, "%d", i)}
}

// flow is a steady stream of submits, each a call of its own through the SDK.
type flow struct {
	w      *world
	cancel context.CancelFunc
	ended  chan struct{}

	mu     sync.Mutex // guards what follows
	asked  int
	failed []error
	calls  []call // that were accepted
}

// call is one submit.
type call struct {
	via   string // the node
	asked time.Time
	took  time.Duration
}

// flow submits so many tasks a second, over the tenants and the nodes in turn, until it is stopped.
func (w *world) flow(rate int, via []*localcluster.Node, task func(i int) client.Task, tenants ...string) *flow {
	if len(tenants) == 0 {
		tenants = w.tenants
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	f := &flow{w: w, cancel: cancel, ended: make(chan struct{})}
	type door struct {
		c   *client.Client
		via string
	}
	var doors []door
	for _, tenant := range tenants {
		for _, n := range via {
			doors = append(doors, door{w.client(n, tenant), n.Name})
		}
	}
	go func() {
		defer close(f.ended)
		var calls sync.WaitGroup
		defer calls.Wait()
		began := time.Now()
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ; {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			for ; i < int(time.Since(began).Seconds()*float64(rate)); i++ {
				d := doors[i%len(doors)]
				calls.Go(func() { f.submit(d.c, d.via, task(i)) })
			}
		}
	}()
	w.t.Cleanup(func() { f.stop() })
	return f
}

func (f *flow) submit(c *client.Client, via string, t client.Task) {
	f.mu.Lock()
	f.asked++
	f.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(context.Background(), patience, errors.New("the caller's patience ended"))
	defer cancel()
	asked := time.Now()
	s, err := c.Submit(ctx, t)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		f.failed = append(f.failed, err)
		return
	}
	f.calls = append(f.calls, call{via, asked, time.Since(asked)})
	f.w.took(c.Tenant(), s.ID, asked)
}

// stop ends the flow and waits for the submits that are under way.
func (f *flow) stop() {
	f.cancel()
	<-f.ended
}

// report prints what the callers saw, and fails if a submit failed.
func (f *flow) report(name string) {
	f.w.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	gap, from := f.gap()
	f.w.t.Logf("%s: %d submits, %d failed; %s; longest time without an accepted one %v%s",
		name, f.asked, len(f.failed), quantiles(f.calls), gap.Round(time.Millisecond), from)
	kinds := map[string]int{}
	for _, err := range f.failed {
		kinds[err.Error()]++
	}
	for i, text := range slices.SortedFunc(maps.Keys(kinds), func(a, b string) int { return cmp.Or(kinds[b]-kinds[a], cmp.Compare(a, b)) }) {
		if i == 5 {
			break
		}
		f.w.t.Errorf("%s: %d submits failed: %s", name, kinds[text], text)
	}
}

// between prints what those callers saw who asked in a time, and returns their median.
func (f *flow) between(name string, from, to time.Time) (median time.Duration) {
	f.w.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	calls := slices.DeleteFunc(slices.Clone(f.calls), func(c call) bool { return c.asked.Before(from) || c.asked.After(to) })
	f.w.t.Logf("%s: %d accepted submits; %s", name, len(calls), quantiles(calls))
	if len(calls) == 0 {
		return 0
	}
	return calls[len(calls)/2].took
}

// quantiles sorts calls by how long they took, and describes them.
func quantiles(calls []call) string {
	slices.SortFunc(calls, func(a, b call) int { return cmp.Compare(a.took, b.took) })
	at := func(q float64) time.Duration {
		if len(calls) == 0 {
			return 0
		}
		return calls[int(q*float64(len(calls)-1))].took.Round(time.Millisecond)
	}
	text := fmt.Sprintf("took p50 %v, p99 %v, max %v", at(0.5), at(0.99), at(1))
	if len(calls) > 0 {
		last := calls[len(calls)-1]
		text += fmt.Sprintf(" (by %s, asked at %s)", last.via, last.asked.Format("15:04:05.000"))
	}
	return text
}

// gap returns the longest time without an accepted submit; under mu.
func (f *flow) gap() (longest time.Duration, from string) {
	var at []time.Time
	for _, c := range f.calls {
		at = append(at, c.asked.Add(c.took))
	}
	slices.SortFunc(at, time.Time.Compare)
	for i := 1; i < len(at); i++ {
		if d := at[i].Sub(at[i-1]); d > longest {
			longest, from = d, fmt.Sprintf(" after %v", at[i-1].Sub(at[0]).Round(time.Millisecond))
		}
	}
	return longest, from
}

// submitAll submits n tasks in batches over the tenants and nodes, several at once. A batch is small: all of it goes to one
// partition, and each partition shall have old tasks and young ones.
func (w *world) submitAll(n int, via []*localcluster.Node, task func(i int) client.Task, tenants ...string) []string {
	w.t.Helper()
	if len(tenants) == 0 {
		tenants = w.tenants
	}
	const batch, callers = 25, 8
	var mu sync.Mutex // guards what follows
	ids, failed := []string{}, error(nil)
	var calls sync.WaitGroup
	turns := make(chan int)
	for range callers {
		calls.Go(func() {
			for turn := range turns {
				tenant, tasks := tenants[turn%len(tenants)], []client.Task{}
				for i := turn * batch; i < min(n, (turn+1)*batch); i++ {
					tasks = append(tasks, task(i))
				}
				ctx, cancel := context.WithTimeout(w.t.Context(), patience)
				asked := time.Now()
				outs, err := w.client(via[turn/len(tenants)%len(via)], tenant).SubmitBatch(ctx, tasks)
				cancel()
				for _, o := range outs {
					if err == nil {
						err = o.Err
					}
				}
				mu.Lock()
				if err != nil {
					failed = fmt.Errorf("submit a batch of %s: %w", tenant, err)
				} else {
					for _, o := range outs {
						w.took(tenant, o.ID, asked)
						ids = append(ids, o.ID)
					}
				}
				mu.Unlock()
			}
		})
	}
	for turn := range (n + batch - 1) / batch {
		turns <- turn
	}
	close(turns)
	calls.Wait()
	if failed != nil {
		w.t.Fatal(failed)
	}
	return ids
}
