package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/headrace/headrace/executor"
	"github.com/headrace/headrace/fn"
	"github.com/headrace/headrace/internal/program"
	"github.com/headrace/headrace/internal/term"
	"github.com/headrace/headrace/task"
)

// Exit codes of a handler program, those of sysexits.h where it has one. Others mean retry.
const (
	codeThrottled    = 69 // EX_UNAVAILABLE
	codeRetry        = 75 // EX_TEMPFAIL
	codeNonRetryable = 78 // EX_CONFIG
)

type workerFlags struct {
	function, downstream           string
	slots, maxAttempts, cost       int
	labels, requires, prefers      string
	reserve, held                  []string
	timeout, backoff, grace, drain durationFlag
}

func newWorker(a *app) *cobra.Command {
	f := workerFlags{grace: durationFlag(10 * time.Second), drain: durationFlag(30 * time.Second)}
	c := &cobra.Command{
		Use:   "worker --function NAME [flags] -- COMMAND [ARG…]",
		Short: "Run any program as the handler of a function",
		Long: `Worker runs COMMAND once for every task of the function: the payload is its standard input, its standard
output is the result, and the lines of its standard error are the task's log.

  headrace worker --function upper -- tr a-z A-Z

Exit code 0 is success, 75 a failure to be retried, 78 one that is not, 69 says that a downstream throttled
us (the last line of standard error may be the seconds to wait); any other code or a signal is retried.

The environment has HEADRACE_TASK_ID, HEADRACE_ATTEMPT, HEADRACE_TOKEN (which only grows for a task),
HEADRACE_TENANT, HEADRACE_FUNCTION, and HEADRACE_ADDR, so that a handler can submit tasks itself.

The program has a process group of its own. When its task is cancelled or runs out of time the group gets
SIGTERM, and SIGKILL after --grace. SIGTERM to the worker drains it: no new tasks; what runs may go on for
--drain and is given back after that, at no cost of an attempt.`,
		Args: atLeast(1, "a COMMAND behind --"),
		RunE: func(c *cobra.Command, args []string) error { return a.work(c.Context(), f, args) },
	}
	fl := c.Flags()
	fl.SetInterspersed(false) // what follows the command is its own, also without --
	fl.StringVar(&f.function, "function", "", "`name` of the function; required")
	fl.IntVar(&f.slots, "slots", runtime.GOMAXPROCS(0), "how `many` programs run at once")
	fl.StringVar(&f.downstream, "downstream", "", "`name` of what the program calls and that may throttle (default: the function's name)")
	fl.IntVar(&f.maxAttempts, "max-attempts", 0, "attempts before a task is a dead letter, 1-1000 (default: 4)")
	fl.IntVar(&f.cost, "cost", 0, "`slots` that one program takes (default: 1)")
	fl.StringVar(&f.labels, "labels", "", "`labels` of this worker, such as gpu=true,zone=a")
	fl.StringVar(&f.requires, "requires", "", "`labels` that a worker must have to run the function; one without them is an error here")
	fl.StringVar(&f.prefers, "prefers", "", "`labels` of the workers that get its tasks while they have a slot free")
	fl.StringArrayVar(&f.reserve, "reserve", nil, "`BAND=N`: keep N of the slots for that band; may be given for each")
	fl.StringArrayVar(&f.held, "cap", nil, "`BAND=N`: that band runs on N of the slots only, which are kept for it")
	fl.Var(&f.timeout, "timeout", "of one attempt (default: none)")
	fl.Var(&f.backoff, "backoff", "pause before the first retry, doubled for each further one (default: 30s)")
	fl.Var(&f.grace, "grace", "time between SIGTERM and SIGKILL")
	fl.Var(&f.drain, "drain", "how long programs may go on after SIGTERM to the worker")
	return c
}

func (a *app) work(ctx context.Context, f workerFlags, command []string) error {
	if f.function == "" {
		return usagef("worker: --function is required")
	}
	path, err := exec.LookPath(command[0])
	if err != nil {
		return fmt.Errorf("worker: %s is not a program that can be run: %w", term.Escape(command[0]), errors.Unwrap(err))
	}
	policy := fn.Options{
		Timeout: time.Duration(f.timeout), MaxAttempts: f.maxAttempts, Downstream: f.downstream,
		Backoff: fn.Backoff{Base: time.Duration(f.backoff)}, Cost: f.cost, Requires: f.requires, Prefers: f.prefers,
	}
	labels, err := task.ParseMatch("--labels", f.labels)
	if err != nil {
		return usageError{err}
	}
	reserve, err := reserves(f.reserve, f.held)
	if err != nil {
		return err
	}
	if f.slots < 1 { // 0 is the executor's default
		return usagef("--slots: %d given, want 1 to 100000", f.slots)
	}
	if f.maxAttempts < 0 {
		return usagef("--max-attempts: %d given, want 1 to %d", f.maxAttempts, task.MaxAttemptsLimit)
	}
	if err := fn.Raw(f.function, policy).Validate(); err != nil {
		return err
	}
	drain := time.Duration(f.drain)
	if drain == 0 {
		drain = -1 // executor.Config: none
	}
	x, err := executor.New(executor.Config{
		Addr: a.addr, Tenant: a.tenant, APIKey: a.apiKey, Slots: f.slots, DrainTimeout: drain,
		Labels: labels, Reserve: reserve,
		Logger: slog.New(slog.NewTextHandler(a.Err, nil)),
	})
	if err != nil {
		return err
	}
	h := programHandler{path: path, args: command[1:], addr: a.addr, downstream: f.downstream, grace: time.Duration(f.grace)}
	x.HandleRaw(f.function, policy, h.run)
	stop := context.AfterFunc(ctx, func() { fmt.Fprintln(a.Err, "headrace: draining; once more to stop at once") })
	defer stop()
	go func() { // ends with the process at the latest
		<-x.Ready()
		a.workerReady(f)
	}()
	if err := x.Run(ctx); err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	return nil
}

// reserves reads --reserve and --cap.
func reserves(reserve, held []string) (all []executor.Reserve, err error) {
	for i, text := range append(slices.Clone(reserve), held...) {
		flag := "--reserve"
		if i >= len(reserve) {
			flag = "--cap"
		}
		band, n, _ := strings.Cut(text, "=")
		slots, err := strconv.Atoi(n)
		if _, bad := task.ParseBand(band); bad != nil || band == "" || err != nil || slots < 1 {
			return nil, usagef("%s: %s given, want high=N, normal=N or low=N, with N from 1", flag, term.Escape(text))
		}
		all = append(all, executor.Reserve{Band: band, Slots: slots, Only: flag == "--cap"})
	}
	return all, nil
}

func (a *app) workerReady(f workerFlags) {
	if a.json() {
		a.writeJSON(struct {
			Ready    bool   `json:"ready"`
			Function string `json:"function"`
			Tenant   string `json:"tenant"`
			Slots    int    `json:"slots"`
			PID      int    `json:"pid"`
		}{true, f.function, a.tenant, f.slots, os.Getpid()})
		return
	}
	fmt.Fprintf(a.Out, "running %s of tenant %s, %d at once, for %s\n", f.function, a.tenant, f.slots, a.addr)
}

// programHandler runs a program for each try.
type programHandler struct {
	path       string
	args       []string
	addr       string
	downstream string
	grace      time.Duration
}

func (h *programHandler) run(ctx context.Context, t *executor.Task) (executor.Result, error) {
	log := executor.Logger(ctx)
	res, err := program.Run(ctx, program.Spec{
		Path: h.path,
		Args: h.args,
		Env: []string{
			"HEADRACE_TASK_ID=" + t.ID.String(),
			"HEADRACE_ATTEMPT=" + strconv.Itoa(t.Attempt),
			"HEADRACE_TOKEN=" + t.Token.String(),
			"HEADRACE_TENANT=" + t.Tenant,
			"HEADRACE_FUNCTION=" + t.Function,
			"HEADRACE_ADDR=" + h.addr,
		},
		In:     t.Payload,
		Grace:  h.graceFor,
		MaxOut: task.MaxPayload,
		Line:   func(line string) { log.Info(line) },
	})
	switch {
	case err != nil:
		return executor.Result{}, err
	case res.Code == 0 && res.Truncated:
		return executor.Result{}, executor.NonRetryable(fmt.Errorf("a result of %d bytes, at most %d are possible", res.OutSize, task.MaxPayload))
	case res.Code == 0:
		return executor.Result{Body: res.Out}, nil
	case ctx.Err() != nil: // it was told to stop: the exit code is ours
		return executor.Result{}, fmt.Errorf("%w (%s)", context.Cause(ctx), ending(res))
	}
	return executor.Result{}, h.failure(res)
}

// graceFor returns the time between SIGTERM and SIGKILL. Who lost the task has no claim to more time: an
// orphan's task may soon run elsewhere, and a drained worker ends a second later.
func (h *programHandler) graceFor(cause error) time.Duration {
	switch {
	case errors.Is(cause, executor.ErrDrained):
		return min(h.grace, time.Second)
	case errors.Is(cause, executor.ErrOrphaned), errors.Is(cause, executor.ErrStale):
		return min(h.grace, 5*time.Second)
	}
	return h.grace
}

// failure is the error for an exit code.
func (h *programHandler) failure(res program.Result) error {
	last := ""
	if len(res.Last) > 0 {
		last = strings.TrimSpace(res.Last[len(res.Last)-1])
	}
	err := errors.New(ending(res))
	switch res.Code {
	case codeNonRetryable:
		return executor.NonRetryable(err)
	case codeThrottled:
		return executor.Throttled(err, h.downstream, seconds(last))
	}
	return err
}

// ending says in words how a program ended, and what it said last.
func ending(res program.Result) string {
	how := fmt.Sprintf("exit code %d", res.Code)
	if res.Signal != 0 {
		how = fmt.Sprintf("ended by signal %d (%v)", int(res.Signal), res.Signal)
	}
	if said := strings.TrimSpace(strings.Join(res.Last, "\n")); said != "" {
		how += ": " + said
	}
	return how
}

// seconds reads a number of seconds, such as "30" or "0.5"; 0 if s is anything else.
func seconds(s string) time.Duration {
	n, err := strconv.ParseFloat(s, 64)
	if err != nil || !(n > 0 && n < 1e9) {
		return 0
	}
	return time.Duration(n * float64(time.Second))
}
