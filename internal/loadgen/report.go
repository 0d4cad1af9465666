package loadgen

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/headrace/headrace/internal/histogram"
	"github.com/headrace/headrace/internal/term"
)

// Report is what a run measured. The names in JSON are part of the command line's contract.
type Report struct {
	Mode       string  `json:"mode"` // batch, single or rate
	Tasks      int     `json:"tasks"`
	Batch      int     `json:"batch"`
	Callers    int     `json:"callers"`
	Tenants    int     `json:"tenants"`
	Payload    int     `json:"payload_bytes"`
	Rate       float64 `json:"rate,omitempty"` // submits a second, as asked
	Backlog    int64   `json:"backlog"`        // tasks that waited all the while
	TasksPerS  float64 `json:"tasks_per_s"`    // first submit sent to last outcome committed
	SubmitPerS float64 `json:"submit_per_s"`   // first submit sent to last one answered
	Seconds    float64 `json:"seconds"`

	CPUMicrosPerTask float64           `json:"cpu_us_per_task"` // of all of CPUOf
	CPUOf            []string          `json:"cpu_of"`          // load, server, postgres: of those on another machine there is none
	OwnCPUMicros     float64           `json:"load_cpu_us_per_task"`
	PostgresMicros   float64           `json:"postgres_cpu_us_per_task"`
	DiskBytesPerTask float64           `json:"disk_bytes_per_task"` // of Postgres' files too; where we may not know them, of its log
	WALBytesPerTask  float64           `json:"wal_bytes_per_task"`  // of Postgres' log; 0 without Postgres
	LoopBusyRatio    float64           `json:"loop_busy_ratio"`     // of the server's loop, as it says at the end
	SubmitMillis     Spread            `json:"submit_ms"`           // of a call: a batch, or a single submit
	StartMillis      Spread            `json:"start_ms"`            // submit sent to handler started
	Accepted         int64             `json:"accepted"`
	Refused          int64             `json:"refused"`
	Succeeded        int64             `json:"succeeded"`
	Verified         int64             `json:"verified"` // tasks that the server was asked about at the end
	Starts           int64             `json:"starts"`   // counted by the executor
	Durable          map[string]string `json:"durable"`  // settings as read from the store
	Version          string            `json:"version"`  // of the server
}

// Spread is a distribution of durations in milliseconds.
type Spread struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

func spread(h *histogram.Histogram) Spread {
	ms := func(d time.Duration) float64 { return float64(d.Round(time.Microsecond)) / float64(time.Millisecond) }
	return Spread{ms(h.Quantile(0.5)), ms(h.Quantile(0.9)), ms(h.Quantile(0.99)), ms(h.Max())}
}

func (r *Run) report(before, after glance, submit, all time.Duration) *Report {
	n := float64(max(r.Accepted.Load(), 1))
	rep := &Report{
		Mode: "batch", Tasks: r.cfg.Tasks, Batch: r.cfg.Batch, Callers: r.cfg.Callers, Tenants: r.cfg.Tenants,
		Payload: r.cfg.Payload, Rate: r.cfg.Rate, Backlog: r.Preloaded.Load(),
		TasksPerS:        n / all.Seconds(),
		SubmitPerS:       n / submit.Seconds(),
		Seconds:          all.Seconds(),
		CPUMicrosPerTask: float64((after.cpu - before.cpu + after.database.CPU - before.database.CPU).Microseconds()) / n,
		CPUOf:            []string{"load", "server"},
		PostgresMicros:   float64((after.database.CPU - before.database.CPU).Microseconds()) / n,
		OwnCPUMicros:     float64((after.own - before.own).Microseconds()) / n,
		DiskBytesPerTask: float64(stored(before, after)) / n,
		LoopBusyRatio:    after.busy,
		SubmitMillis:     spread(&r.submits),
		StartMillis:      spread(&r.starts),
		Accepted:         r.Accepted.Load(),
		Refused:          r.refused.Load(),
		Starts:           r.Starts.Load(),
		Durable:          after.durable,
		Version:          after.version,
	}
	switch {
	case r.cfg.Rate > 0:
		rep.Mode, rep.Batch, rep.Callers = "rate", 1, 0
	case r.cfg.Batch == 1:
		rep.Mode = "single"
	}
	if after.postgres {
		rep.WALBytesPerTask = rep.DiskBytesPerTask
		if before.database.Written >= 0 && after.database.Written >= 0 {
			rep.DiskBytesPerTask = float64(after.database.Written-before.database.Written) / n
		}
	}
	if r.cfg.Database != nil {
		rep.CPUOf = append(rep.CPUOf, "postgres")
	}
	return rep
}

// WriteTable writes the report for people.
func (p *Report) WriteTable(w io.Writer) error {
	t := term.Table{Width: 120}
	how := fmt.Sprintf("%d callers, batches of %d", p.Callers, p.Batch)
	switch p.Mode {
	case "single":
		how = fmt.Sprintf("%d callers, single submits", p.Callers)
	case "rate":
		how = fmt.Sprintf("%g submits/s", p.Rate)
	}
	t.Row("load", fmt.Sprintf("%d tasks of %d bytes, %d tenant(s), %s", p.Tasks, p.Payload, p.Tenants, how))
	if p.Backlog > 0 {
		t.Row("waiting meanwhile", fmt.Sprintf("%d tasks", p.Backlog))
	}
	t.Row("full cycle", fmt.Sprintf("%.0f tasks/s", p.TasksPerS))
	t.Row("submits", fmt.Sprintf("%.0f tasks/s", p.SubmitPerS))
	cpu := fmt.Sprintf("%.1f µs a task, %.1f of them of the load itself", p.CPUMicrosPerTask, p.OwnCPUMicros)
	if slices.Contains(p.CPUOf, "postgres") {
		cpu += fmt.Sprintf(", %.1f of Postgres", p.PostgresMicros)
	} else if p.WALBytesPerTask > 0 {
		cpu += "; Postgres' is not among them"
	}
	t.Row("CPU", cpu)
	t.Row("disk", fmt.Sprintf("%.0f bytes a task", p.DiskBytesPerTask))
	if p.WALBytesPerTask > 0 {
		t.Row("WAL", fmt.Sprintf("%.0f bytes a task", p.WALBytesPerTask))
	}
	t.Row("submit answered", p.SubmitMillis.String())
	t.Row("handler started", p.StartMillis.String())
	t.Row("tasks", fmt.Sprintf("%d accepted, %d started, %d succeeded (%d looked at)", p.Accepted, p.Starts, p.Succeeded, p.Verified))
	_, err := t.WriteTo(w)
	return err
}

func (s Spread) String() string {
	return fmt.Sprintf("p50 %.2f ms, p90 %.2f ms, p99 %.2f ms, max %.2f ms", s.P50, s.P90, s.P99, s.Max)
}
