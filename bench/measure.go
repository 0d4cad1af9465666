package main

import (
	"cmp"
	"slices"
	"time"

	"github.com/headrace/headrace/internal/histogram"
)

// measure is one measurement.
type measure struct {
	System      string  `json:"system"`
	Load        string  `json:"load"`
	Round       int     `json:"round"`
	Tasks       int64   `json:"tasks"`
	Seconds     float64 `json:"seconds"`
	TasksPerS   float64 `json:"tasks_per_s"`
	SubmitPerS  float64 `json:"submit_per_s,omitempty"`
	CPUMicros   float64 `json:"cpu_us_per_task"`
	WALBytes    float64 `json:"wal_bytes_per_task"` // of Postgres' log or Redis' file; of the embedded store all that it writes
	Submit      *spread `json:"submit_ms,omitempty"`
	Start       *spread `json:"start_ms,omitempty"` // submit sent to handler started
	Foreign     float64 `json:"foreign_cores"`      // busy with what is not ours, in the mean
	serverMicro float64 // of CPUMicros: the node's
	dbMicro     float64 // of CPUMicros: Postgres' or Redis'
	version     string
	durable     map[string]string
}

// The kinds of load.
const (
	cycle        = "cycle"
	single       = "single"
	light        = "light"
	lightDefault = "light, default settings"
	waiting      = "cycle, with a backlog"
	none         = "cycle, beside it with none"
)

type spread struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

func spreadOf(h *histogram.Histogram) *spread {
	ms := func(d time.Duration) float64 { return float64(d.Round(time.Microsecond)) / float64(time.Millisecond) }
	return &spread{ms(h.Quantile(0.5)), ms(h.Quantile(0.9)), ms(h.Quantile(0.99)), ms(h.Max())}
}

// median returns the middle of what f gives for the measurements of a system under a load; 0 if there are none.
func (r *results) median(system, load string, f func(*measure) float64) float64 {
	var v []float64
	for i := range r.Measures {
		if m := &r.Measures[i]; m.System == system && m.Load == load {
			v = append(v, f(m))
		}
	}
	return middle(v)
}

func middle[T cmp.Ordered](v []T) (m T) {
	if len(v) == 0 {
		return m
	}
	slices.Sort(v)
	return v[(len(v)-1)/2] // of two the lower one
}

func rate(m *measure) float64   { return m.TasksPerS }
func submit(m *measure) float64 { return m.SubmitPerS }
func cpu(m *measure) float64    { return m.CPUMicros }
func wal(m *measure) float64    { return m.WALBytes }

func start(f func(*spread) float64) func(*measure) float64 {
	return func(m *measure) float64 {
		if m.Start == nil {
			return 0
		}
		return f(m.Start)
	}
}

func p50(s *spread) float64 { return s.P50 }
func p90(s *spread) float64 { return s.P90 }
func p99(s *spread) float64 { return s.P99 }
func top(s *spread) float64 { return s.Max }
