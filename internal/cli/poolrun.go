package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/headrace/headrace/flowcontrol/elastic"
	"github.com/headrace/headrace/internal/clusterclient"
	"github.com/headrace/headrace/internal/poolrun"
	"github.com/headrace/headrace/internal/term"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

type poolRunFlags struct {
	function                    string
	min, max                    int
	memory                      int64
	cpu                         float64
	drain, scaleIn, targetDrain durationFlag
}

func newPoolRun(a *app) *cobra.Command {
	f := poolRunFlags{drain: durationFlag(time.Minute), scaleIn: durationFlag(5 * time.Minute), targetDrain: durationFlag(elastic.DrainDefault)}
	c := &cobra.Command{
		Use:   "run --function NAME [flags] -- COMMAND [ARG…]",
		Short: "Keep as many executors on this machine as a pool needs",
		Long: `Run starts COMMAND, an executor of the function, as often as the pool needs, from --min to --max times:

  headrace pool run --function upper --max 8 -- headrace worker --function upper --slots 2 -- tr a-z A-Z

It follows what the server says is needed (headrace pool list), and a need counts for --scale-in-delay. Who has to leave gets
SIGTERM, idle ones first, and SIGKILL only when --drain is over: give the executor's own drain less. Who ends by itself is
replaced, after a pause that grows while they die young. SIGINT drains all. Children find the server by HEADRACE_ADDR,
HEADRACE_TENANT and HEADRACE_API_KEY, and must keep the name that HEADRACE_EXECUTOR_NAME has for them.

--memory and --cpus limit each child: by a cgroup where one can be made, else its writable memory by a limit of the
process, and whole CPUs by affinity. One pool run for a pool: it does not know of others.`,
		Args: atLeast(1, "a COMMAND behind --"),
		RunE: func(c *cobra.Command, args []string) error { return a.poolRun(c.Context(), f, args) },
	}
	fl := c.Flags()
	fl.SetInterspersed(false)
	fl.StringVar(&f.function, "function", "", "`name` of a function that COMMAND runs; required")
	fl.IntVar(&f.min, "min", 0, "never fewer than `N` executors")
	fl.IntVar(&f.max, "max", 4, "never more than `N` executors, 1 to 1000")
	fl.Int64Var(&f.memory, "memory", 0, "`bytes` of memory of each, at least 16 MiB (default: any)")
	fl.Float64Var(&f.cpu, "cpus", 0, "`CPUs` of each, 0.01 to 1024 (default: any)")
	fl.Var(&f.drain, "drain", "time between SIGTERM and SIGKILL")
	fl.Var(&f.scaleIn, "scale-in-delay", "how long a need counts before executors leave")
	fl.Var(&f.targetDrain, "target-drain", "in which the backlog is to be worked off, 1s to 24h")
	return c
}

func (f *poolRunFlags) check() error {
	switch {
	case f.function == "":
		return usagef("pool run: --function is required")
	case f.max < 1 || f.max > 1000:
		return usagef("--max: %d given, want 1 to 1000", f.max)
	case f.min < 0 || f.min > f.max:
		return usagef("--min: %d given, want 0 to --max, %d", f.min, f.max)
	case f.memory != 0 && f.memory < 16<<20:
		return usagef("--memory: %d given, want at least %d bytes", f.memory, 16<<20)
	case f.cpu != 0 && !(f.cpu >= 0.01 && f.cpu <= 1024):
		return usagef("--cpus: %v given, want 0.01 to 1024", f.cpu)
	case time.Duration(f.targetDrain) < elastic.DrainMin || time.Duration(f.targetDrain) > elastic.DrainMax:
		return usagef("--target-drain: %v given, want 1s to 24h", time.Duration(f.targetDrain))
	}
	if err := task.Name("function", f.function); err != nil {
		return usageError{err}
	}
	return nil
}

func (a *app) poolRun(ctx context.Context, f poolRunFlags, command []string) error {
	if err := f.check(); err != nil {
		return err
	}
	path, err := exec.LookPath(command[0])
	if err != nil {
		return fmt.Errorf("pool run: %s is not a program that can be run: %w", term.Escape(command[0]), errors.Unwrap(err))
	}
	c, err := clusterclient.Dial(a.addr, a.apiKey)
	if err != nil {
		return err
	}
	defer c.Close()
	host, _ := os.Hostname()
	cfg := poolrun.Config{
		Path: path, Args: command[1:], Env: []string{"HEADRACE_ADDR=" + a.addr, "HEADRACE_TENANT=" + a.tenant},
		Out: os.Stderr, Err: os.Stderr, // our output is events
		Name: fmt.Sprintf("%.30s-%d", host, os.Getpid()), Min: f.min, Max: f.max,
		Drain: time.Duration(f.drain), ScaleIn: time.Duration(f.scaleIn), Memory: f.memory, CPU: f.cpu,
		Event: a.poolEvent,
	}
	if a.apiKey != "" {
		cfg.Env = append(cfg.Env, "HEADRACE_API_KEY="+a.apiKey)
	}
	cfg.Ask = func(ctx context.Context) (poolrun.Answer, error) {
		return askPool(ctx, c, &headracev1.ListPoolsRequest{Tenant: a.tenant, Function: f.function, TargetDrain: durationpb.New(time.Duration(f.targetDrain))}, cfg.Name)
	}
	return poolrun.Run(ctx, cfg)
}

// askPool asks for the pool that our executors are in; before there is one, for the one that the function waits in.
func askPool(ctx context.Context, c *clusterclient.Client, req *headracev1.ListPoolsRequest, name string) (poolrun.Answer, error) {
	var found *headracev1.Pool
	missing, err := c.Pools(ctx, req, func(p *headracev1.Pool) error {
		ours := slices.ContainsFunc(p.Executors, func(x *headracev1.PoolExecutor) bool { return strings.HasPrefix(x.Name, name+"-") })
		if found == nil || ours {
			found = p
		}
		return nil
	})
	if err != nil {
		return poolrun.Answer{}, err
	}
	if err := silentNodes(missing); err != nil { // what they have may need executors
		return poolrun.Answer{}, err
	}
	if found == nil {
		return poolrun.Answer{Why: elastic.Idle.String()}, nil
	}
	ans := poolrun.Answer{Desired: int(found.DesiredNow), Why: found.Why}
	for _, x := range found.Executors {
		ans.Order = append(ans.Order, poolrun.Executor{Name: x.Name, Idle: x.Running == 0})
	}
	return ans, nil
}

func (a *app) poolEvent(e poolrun.Event) {
	now := time.Now()
	if a.json() {
		a.writeJSON(struct {
			At       jsonTime `json:"at"`
			Event    string   `json:"event"`
			Executor string   `json:"executor,omitempty"`
			PID      int      `json:"pid,omitempty"`
			Desired  *int     `json:"desired,omitempty"`
			Children int      `json:"children"`
			Detail   string   `json:"detail"`
		}{jsonTime(now), e.Event, e.Name, e.PID, desiredOf(e), e.Running, e.Detail})
		return
	}
	what := e.Event
	if e.Event == "desired" {
		what = fmt.Sprintf("desired %d", e.Desired)
	}
	fmt.Fprintf(a.Out, "%s  %-12s %-40s %d running  %s\n", clock(now, now), what, orDash(e.Name), e.Running, term.Escape(e.Detail))
}

func desiredOf(e poolrun.Event) *int {
	if e.Event != "desired" {
		return nil
	}
	return &e.Desired
}
