package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/headrace/headrace/internal/loadgen"
	"github.com/headrace/headrace/internal/term"
	"github.com/headrace/headrace/task"
)

func newBench(a *app) *cobra.Command {
	var cfg loadgen.Config
	var rate, store, data string
	c := &cobra.Command{
		Use:   "bench",
		Short: "Measure a server under load",
		Long: `Bench loads a server through the SDKs: submitters and an executor whose handler does nothing, in this
process, against a server in another: one of its own with a temporary data directory; with --store a node of its
own, in a database of its own on that Postgres server, which is dropped at the end; or with --addr (or
HEADRACE_ADDR) one that runs already.

  headrace bench                       the full cycle, with batches
  headrace bench --callers 256 --batch 1   the full cycle, each submit a call of its own
  headrace bench --rate 50/s           latency under light load: submit sent to handler started
  headrace bench --backlog 1000000     the full cycle, with a million tasks that wait all the while
  headrace bench --store postgres://USER:PASSWORD@HOST:PORT/DATABASE

Code 1 says that a task was lost, refused or not run. Times are in milliseconds, CPU is of all processes on this
machine: those of a Postgres that runs here too are counted with --store.`,
		Args: exactly(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			set := c.Flags().Changed
			switch {
			case store != storeFile && !isPostgresURL(store): // what is given may hold a password
				return usagef("--store: want file or postgres://USER:PASSWORD@HOST:PORT/DATABASE")
			case store != storeFile && set("addr"):
				return usagef("--store is for a server that bench starts, --addr for one that runs: want one of them")
			case store != storeFile && set("data"):
				return usagef("--data is for --store file")
			}
			if rate != "" {
				var err error
				if cfg.Rate, err = parseRate(rate); err != nil {
					return usageError{err}
				}
				if !set("tasks") {
					cfg.Tasks = max(int(10*cfg.Rate), 1)
				}
			}
			if set("callers") && !set("batch") { // callers without a batch: of Submit
				cfg.Batch = 1
			}
			if !set("callers") && cfg.Batch == 1 {
				cfg.Callers = 256
			}
			cfg.APIKey, cfg.Tenant = a.apiKey, a.tenant
			if set("addr") || os.Getenv("HEADRACE_ADDR") != "" && !set("store") {
				cfg.Addr = a.addr
			}
			run, err := loadgen.New(cfg)
			if err != nil {
				return err
			}
			return a.bench(c.Context(), cfg, run, store, data)
		},
	}
	c.AddCommand(newBenchThrottle(a), newBenchNoisy(a), newBenchPriority(a), newBenchPressure(a))
	fl := c.Flags()
	fl.IntVar(&cfg.Tasks, "tasks", 200_000, "`number` of tasks (default with --rate: of 10 seconds)")
	fl.IntVar(&cfg.Batch, "batch", 500, "tasks of a submit; 1: single submits")
	fl.IntVar(&cfg.Callers, "callers", 4, "submitters at once (default with single submits: 256)")
	fl.IntVar(&cfg.Payload, "payload", 200, "`bytes` of a payload, at least 8")
	fl.IntVar(&cfg.Tenants, "tenants", 1, "`number` of tenants that submit")
	fl.StringVar(&rate, "rate", "", "single submits at a fixed rate, as `N/s`")
	fl.IntVar(&cfg.Backlog, "backlog", 0, "`number` of tasks that are stored before and wait all the while")
	fl.IntVar(&cfg.Slots, "slots", 2000, "tries that the executor runs at once")
	fl.StringVar(&store, "store", storeFile, "`store` of the server that is started: file, or the URL of a Postgres database")
	fl.StringVar(&data, "data", "", "data `directory` of the server that is started (default: a temporary one)")
	return c
}

// parseRate reads "50/s" or "50".
func parseRate(s string) (float64, error) {
	v, err := strconv.ParseFloat(strings.TrimSuffix(s, "/s"), 64)
	if err != nil || !(v > 0 && v <= 1e6) {
		return 0, fmt.Errorf("--rate: %s given, want a number of submits a second such as 50/s", task.Shorten(s))
	}
	return v, nil
}

func (a *app) bench(ctx context.Context, cfg loadgen.Config, run *loadgen.Run, store, data string) (err error) {
	if cfg.Addr == "" {
		server, startErr := startBenchServer(ctx, store, data)
		if startErr != nil {
			return startErr
		}
		defer func() { err = errors.Join(err, server.stop(ctx)) }()
		run.SetServer(server.addr, server.database)
	}
	// The load shares the machine with the server: it trades memory for CPU.
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	bar := term.StartProgress(a.Err, func() term.Status {
		s := term.Status{Done: run.Starts.Load(), Total: int64(cfg.Tasks), Text: *run.Phase.Load()}
		if s.Text == "backlog" {
			s.Done, s.Total = run.Preloaded.Load(), int64(cfg.Backlog)
		}
		return s
	})
	rep, err := run.Do(ctx)
	bar.Stop()
	if rep == nil {
		return err
	}
	if a.json() {
		return errors.Join(a.writeJSON(rep), err)
	}
	return errors.Join(rep.WriteTable(a.Out), err)
}
