package demo

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/internal/term"
	"github.com/headrace/headrace/task"
)

// Report is the end of a tour. Its JSON is part of the command line's contract. Counts of tasks are of
// both tenants, as the server tells them; files, bytes and digest are those of the index service.
type Report struct {
	Files     int64   `json:"files"`
	Bytes     int64   `json:"bytes"`
	Digest    string  `json:"digest"`
	Submitted int     `json:"submitted"` // tasks whose submit was answered OK
	Succeeded int     `json:"succeeded"`
	Failed    int     `json:"failed"` // ended otherwise, or not at all
	Attempts  int     `json:"attempts"`
	Throttled int     `json:"throttled"` // tries; they spend no attempt
	Seconds   float64 `json:"seconds"`

	WaitP50       float64 `json:"wait_p50_ms"` // acme's: accepted to first start
	WaitP99       float64 `json:"wait_p99_ms"`
	GlobexWaitP50 float64 `json:"globex_wait_p50_ms"`
	GlobexWaitP99 float64 `json:"globex_wait_p99_ms"`

	FilesFound int      `json:"files_found"` // regular and readable when the tour began
	Unreadable int      `json:"unreadable"`  // left out
	Errors     []string `json:"errors,omitempty"`

	tenants []tenantReport
}

// OK says that nothing was lost.
func (r *Report) OK() bool {
	return r.Succeeded == r.Submitted && r.Files == int64(r.FilesFound) && len(r.Errors) == 0
}

type tenantReport struct {
	name                                      string
	submitted, succeeded, attempts, throttled int
	p50, p99                                  time.Duration
}

// untilFinished asks the server what became of the tasks until each has ended, or nothing moves any
// more. It returns what the server knows, by tenant and id.
func (t *Tour) untilFinished(ctx context.Context) (map[string]map[string]*client.TaskInfo, error) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	last, moved := -1, time.Now()
	for {
		known, unfinished := map[string]map[string]*client.TaskInfo{}, 0
		for tenant, c := range map[string]*client.Client{acme: t.client, globex: t.globex} {
			tasks, n, err := t.tasksOf(ctx, c)
			if err != nil {
				return nil, err
			}
			known[tenant] = tasks
			unfinished += n
		}
		if unfinished != last {
			last, moved = unfinished, time.Now()
		}
		if unfinished == 0 || time.Since(moved) > stallTimeout {
			return known, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// tasksOf lists the tour's tasks of a tenant. Unfinished are those that live and those that the server
// does not know.
func (t *Tour) tasksOf(ctx context.Context, c *client.Client) (map[string]*client.TaskInfo, int, error) {
	t.mu.Lock()
	ids := t.submitted[c.Tenant()]
	t.mu.Unlock()
	known, ended := make(map[string]*client.TaskInfo, len(ids)), 0
	for info, err := range c.ListAll(ctx, client.ListOptions{PageSize: 1000}) {
		if err != nil {
			return nil, 0, err
		}
		if !ids[info.ID] {
			continue // of an earlier tour, or submitted by hand
		}
		if known[info.ID] == nil && info.State.Terminal() {
			ended++
		}
		known[info.ID] = info
	}
	return known, len(ids) - ended, nil
}

func (t *Tour) report(tasks map[string]map[string]*client.TaskInfo, took time.Duration) *Report {
	r := &Report{Seconds: took.Seconds(), FilesFound: len(t.files), Unreadable: t.unreadable}
	r.Files, r.Bytes, r.Digest = t.index.totals()
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	for _, name := range []string{acme, globex} {
		tr := tenantReport{name: name, submitted: len(t.submitted[name])}
		var waits []time.Duration
		for _, info := range tasks[name] {
			if info.State == task.Succeeded {
				tr.succeeded++
			}
			tr.attempts += info.Attempt
			tr.throttled += info.Throttles
			if !info.StartedAt.IsZero() {
				waits = append(waits, info.StartedAt.Sub(info.CreatedAt))
			}
		}
		slices.Sort(waits)
		tr.p50, tr.p99 = quantile(waits, 0.5), quantile(waits, 0.99)
		r.Submitted += tr.submitted
		r.Succeeded += tr.succeeded
		r.Attempts += tr.attempts
		r.Throttled += tr.throttled
		r.tenants = append(r.tenants, tr)
	}
	r.Failed = r.Submitted - r.Succeeded
	r.WaitP50, r.WaitP99 = ms(r.tenants[0].p50), ms(r.tenants[0].p99)
	r.GlobexWaitP50, r.GlobexWaitP99 = ms(r.tenants[1].p50), ms(r.tenants[1].p99)
	for _, err := range t.errs {
		r.Errors = append(r.Errors, err.Error())
	}
	return r
}

// quantile returns the value that a share q of the sorted ones does not exceed; 0 of none.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(max(int(q*float64(len(sorted))+0.5), 1), len(sorted))-1]
}

// WriteTable writes the report for people.
func (r *Report) WriteTable(w io.Writer) error {
	var t term.Table
	t.Row("TENANT", "TASKS", "SUCCEEDED", "ATTEMPTS", "THROTTLED", "WAIT P50", "WAIT P99")
	for _, tr := range r.tenants {
		t.Row(tr.name, fmt.Sprint(tr.submitted), fmt.Sprint(tr.succeeded), fmt.Sprint(tr.attempts), fmt.Sprint(tr.throttled),
			tr.p50.Round(10*time.Microsecond).String(), tr.p99.Round(10*time.Microsecond).String())
	}
	if _, err := t.WriteTo(w); err != nil {
		return err
	}
	t = term.Table{Width: 100}
	t.Row("files", fmt.Sprintf("%d, %d bytes", r.Files, r.Bytes))
	if r.Unreadable > 0 {
		t.Row("left out", fmt.Sprintf("%d that can't be read", r.Unreadable))
	}
	t.Row("speed", fmt.Sprintf("%.0f tasks/s, %.1f s in all", float64(r.Submitted)/r.Seconds, r.Seconds))
	t.Row("digest", r.Digest)
	for _, e := range r.Errors {
		t.Row("error", e)
	}
	fmt.Fprintln(w)
	_, err := t.WriteTo(w)
	return err
}
