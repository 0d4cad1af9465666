package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/headrace/headrace/internal/pgtest"
)

// headrace runs `headrace bench`.
type headrace struct {
	name string
	exe  string
	pg   *pgtest.Server // nil: the embedded store
	tune sizes
	rate float64 // of a full cycle, as last measured; 0: not yet
}

func (h *headrace) system() string { return h.name }

// best are the sizes at which a full cycle was fastest here: as the peers, of those that were tried.
var best = []string{"--callers", "8", "--batch", "1000", "--slots", "4000"}

func (h *headrace) loads() []string { return []string{cycle, single, light} }

func (h *headrace) run(ctx context.Context, load string) (*measure, error) {
	switch load {
	case cycle:
		m, err := h.bench(ctx, append([]string{"--tasks", h.tasks()}, best...)...)
		if err == nil {
			h.rate = m.TasksPerS
		}
		return m, err
	case single:
		return h.bench(ctx, "--callers", "256", "--batch", "1", "--tasks", strconv.Itoa(int(h.tune.seconds.Seconds()*20_000)))
	case light:
		return h.bench(ctx, "--rate", "50/s", "--tasks", strconv.Itoa(int(50*h.tune.seconds.Seconds())))
	}
	return nil, fmt.Errorf("no load %q", load)
}

// withBacklog measures a full cycle with that many tasks waiting.
func (h *headrace) withBacklog(ctx context.Context, backlog int) (*measure, error) {
	return h.bench(ctx, append([]string{"--tasks", h.tasks(), "--backlog", strconv.Itoa(backlog)}, best...)...)
}

// tasks returns how many a full cycle takes for about the time that it shall take.
func (h *headrace) tasks() string {
	rate := h.rate
	if rate == 0 {
		rate = 20_000
	}
	return strconv.Itoa(int(rate*h.tune.seconds.Seconds())/1000*1000 + 1000)
}

// report is what we read of the JSON of `headrace bench`.
type report struct {
	TasksPerS  float64           `json:"tasks_per_s"`
	SubmitPerS float64           `json:"submit_per_s"`
	Seconds    float64           `json:"seconds"`
	CPU        float64           `json:"cpu_us_per_task"`
	LoadCPU    float64           `json:"load_cpu_us_per_task"`
	PGCPU      float64           `json:"postgres_cpu_us_per_task"`
	CPUOf      []string          `json:"cpu_of"`
	WAL        float64           `json:"wal_bytes_per_task"`
	Disk       float64           `json:"disk_bytes_per_task"`
	Submit     spread            `json:"submit_ms"`
	Start      spread            `json:"start_ms"`
	Succeeded  int64             `json:"succeeded"`
	Durable    map[string]string `json:"durable"`
	Version    string            `json:"version"`
}

func (h *headrace) bench(ctx context.Context, args ...string) (*measure, error) {
	args = append([]string{"bench", "-o", "json"}, args...)
	servers := []func() time.Duration{}
	if h.pg != nil {
		if err := calm(h.pg); err != nil {
			return nil, err
		}
		args = append(args, "--store", h.pg.DSN("postgres"))
		servers = append(servers, h.pg.CPU)
	}
	before := look(servers...)
	cmd := exec.CommandContext(ctx, h.exe, args...)
	// A signal at the terminal is for us: we end the child in order, so that it removes its database.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = time.Minute
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("headrace %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	after := look(servers...)
	var r report
	if err := json.Unmarshal(stdout.Bytes(), &r); err != nil {
		return nil, fmt.Errorf("headrace bench: %w", err)
	}
	m := &measure{Tasks: r.Succeeded, Seconds: r.Seconds, TasksPerS: r.TasksPerS, SubmitPerS: r.SubmitPerS, CPUMicros: r.CPU, WALBytes: r.WAL,
		Submit: &r.Submit, Start: &r.Start, Foreign: after.foreign(before), version: r.Version, durable: r.Durable,
		dbMicro: r.PGCPU, serverMicro: r.CPU - r.LoadCPU - r.PGCPU}
	if h.pg == nil {
		m.WALBytes = r.Disk
	} else if len(r.CPUOf) != 3 {
		return nil, errors.New("headrace bench did not find Postgres' processes: its CPU figure is not comparable")
	}
	return m, nil
}
