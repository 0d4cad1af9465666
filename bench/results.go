package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/headrace/headrace/internal/pgtest"
)

// results is what a run has measured: results/latest.json.
type results struct {
	When         time.Time                    `json:"when"`
	Command      string                       `json:"command"`
	Machine      string                       `json:"machine"`
	Rounds       int                          `json:"rounds"`
	Seconds      float64                      `json:"seconds_a_load"`
	PayloadBytes int                          `json:"payload_bytes"`
	Backlog      int                          `json:"backlog"`
	Foreign      float64                      `json:"foreign_cores"` // in the mean of all measurements
	Versions     map[string]string            `json:"versions"`
	Settings     map[string]map[string]string `json:"settings"`
	Bars         []bar                        `json:"bars"`
	Measures     []measure                    `json:"measures"`

	HeadracePostgres *summary `json:"headrace_postgres,omitempty"`
	HeadraceEmbedded *summary `json:"headrace_embedded,omitempty"`
	River            *summary `json:"river,omitempty"`
	AsynqEverysec    *summary `json:"asynq_everysec,omitempty"`
	AsynqAlways      *summary `json:"asynq_always,omitempty"`

	sizes sizes
}

// summary is a system's medians over the rounds.
type summary struct {
	TasksPerS  float64           `json:"tasks_per_s"`        // full cycle
	CPUMicros  float64           `json:"cpu_us_per_task"`    // full cycle, all processes
	WALBytes   float64           `json:"wal_bytes_per_task"` // full cycle; of the embedded store all that it writes
	SubmitPerS float64           `json:"single_submit_per_s,omitempty"`
	SubmitP50  float64           `json:"single_submit_p50_ms,omitempty"`
	Start      spread            `json:"start_ms"`                         // at 50 tasks a second and default settings
	StartBest  *spread           `json:"start_ms_best_settings,omitempty"` // at those of the full cycle
	Versions   map[string]string `json:"versions"`
	Settings   map[string]string `json:"settings"`
}

// names are the systems in the order of the page.
var names = []string{"headrace_postgres", "headrace_embedded", "river", "asynq_everysec", "asynq_always"}

func newResults(s sizes, command string) *results {
	r := &results{When: time.Now().UTC().Truncate(time.Second), Command: command, Machine: machine(), Rounds: s.rounds, Seconds: s.seconds.Seconds(),
		PayloadBytes: payloadBytes, Backlog: s.backlog, Versions: map[string]string{"go": runtime.Version()}, sizes: s}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, d := range info.Deps {
			switch d.Path {
			case "github.com/riverqueue/river":
				r.Versions["river"] = d.Version
			case "github.com/hibiken/asynq":
				r.Versions["asynq"] = d.Version
			case "github.com/jackc/pgx/v5":
				r.Versions["pgx"] = d.Version
			}
		}
	}
	if out, err := exec.Command("git", "describe", "--always", "--dirty").Output(); err == nil {
		r.Versions["headrace"] = strings.TrimSpace(string(out))
	}
	callers := strings.Join(best, " ")
	r.Settings = map[string]map[string]string{
		"headrace_postgres": {"bench": callers, "partitions": "8", "light": "default"},
		"headrace_embedded": {"bench": callers, "partitions": "8", "light": "default"},
		"river": {"insert": fmt.Sprintf("InsertManyFast of %d, 4 callers; single: Insert, %d callers", riverBatch, riverCallers), "max_workers": fmt.Sprint(riverWorkers),
			"fetch_cooldown": riverCooldown.String(), "connections": fmt.Sprint(riverConns), "light": "default: fetch_cooldown 100ms, fetch_poll_interval 1s, max_workers 100"},
	}
	return r
}

func machine() string {
	model := runtime.GOARCH
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if v, ok := strings.CutPrefix(line, "model name\t: "); ok {
				model = strings.TrimSpace(v)
				break
			}
		}
	}
	return fmt.Sprintf("%d cores of %s", runtime.NumCPU(), model)
}

// postgres notes what the server says of itself.
func (r *results) postgres(pg *pgtest.Server) {
	out, err := pg.SQL("postgres", "SELECT name || '=' || current_setting(name) FROM pg_settings WHERE name IN ('server_version', 'fsync', 'synchronous_commit', "+
		"'shared_buffers', 'max_wal_size', 'min_wal_size', 'wal_buffers', 'wal_compression', 'checkpoint_timeout', 'autovacuum_naptime', 'autovacuum_vacuum_cost_delay')")
	if err != nil {
		return
	}
	for line := range strings.Lines(out) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if name == "server_version" {
			r.Versions["postgres"] = value
			continue
		}
		for _, s := range []string{"headrace_postgres", "river"} {
			r.Settings[s][name] = value
		}
	}
}

func (r *results) add(m *measure) {
	if m.version != "" && r.Versions["headrace"] == "" {
		r.Versions["headrace"] = m.version
	}
	if s := r.Settings[m.System]; m.durable != nil && m.System == "headrace_embedded" {
		for k, v := range m.durable {
			s[k] = v
		}
	}
	r.Measures = append(r.Measures, *m)
}

// of returns where a system's summary is.
func (r *results) of(name string) **summary {
	switch name {
	case "headrace_postgres":
		return &r.HeadracePostgres
	case "headrace_embedded":
		return &r.HeadraceEmbedded
	case "river":
		return &r.River
	case "asynq_everysec":
		return &r.AsynqEverysec
	}
	return &r.AsynqAlways
}

// versionsOf are those that matter for a system.
var versionsOf = map[string][]string{
	"headrace_postgres": {"headrace", "go", "postgres"}, "headrace_embedded": {"headrace", "go"},
	"river": {"river", "pgx", "go", "postgres"}, "asynq_everysec": {"asynq", "go", "redis"}, "asynq_always": {"asynq", "go", "redis"},
}

// conclude fills in the summaries and the bars.
func (r *results) conclude() {
	r.Foreign = 0
	for _, m := range r.Measures {
		r.Foreign += m.Foreign / float64(len(r.Measures))
	}
	for _, name := range names {
		if r.median(name, cycle, rate) == 0 {
			continue // it was left out
		}
		startOf := func(load string) spread {
			at := func(f func(*spread) float64) float64 { return r.median(name, load, start(f)) }
			return spread{at(p50), at(p90), at(p99), at(top)}
		}
		s := &summary{
			TasksPerS: r.median(name, cycle, rate), CPUMicros: r.median(name, cycle, cpu), WALBytes: r.median(name, cycle, wal),
			SubmitPerS: r.median(name, single, submit),
			SubmitP50:  r.median(name, single, func(m *measure) float64 { return m.Submit.P50 }),
			Start:      startOf(light), Versions: map[string]string{}, Settings: r.Settings[name],
		}
		if d := startOf(lightDefault); d.P50 > 0 {
			tuned := s.Start
			s.Start, s.StartBest = d, &tuned
		}
		for _, v := range versionsOf[name] {
			s.Versions[v] = r.Versions[v]
		}
		*r.of(name) = s
	}
	r.Bars = r.bars()
}

func (r *results) write(file string) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(b, '\n'), 0o644)
}

func readResults(file string) (*results, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	r := &results{}
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return r, nil
}
