package ledger

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/headrace/headrace/executor"
	"github.com/headrace/headrace/fn"
)

// ExecutorMain is the outside executor, in a process that StartWorker has made of the test's binary: it runs until SIGTERM,
// then drains, and never returns. In any other process it does nothing: TestMain calls it first. Each start and end of a
// handler is a line of its file: "start|end <task id> <token> <unix nanoseconds>".
//
//	work   answers its payload at once
//	nap    answers its payload after 200 ms
//	hold   runs until the file <its file>.release is there
//	who    waits as long as its payload says, deaf to cancels, and answers the executor's name
//	fail   always fails
//	slow   as who, with the default policy
//	crash  ends the process soon by a panic of a goroutine of its own, but for an executor called "sound"
//
// It handles them for each of the tenants in HEADRACE_E2E_TENANT, with commas; "acme" by default. HEADRACE_E2E_SLOTS is
// 50 by default.
func ExecutorMain() {
	if os.Getenv("HEADRACE_E2E_EXECUTOR") == "" {
		return
	}
	name, path := os.Getenv("HEADRACE_E2E_EXECUTOR"), os.Getenv("HEADRACE_E2E_FILE")
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	exitOn(err)
	slots, _ := strconv.Atoi(cmp.Or(os.Getenv("HEADRACE_E2E_SLOTS"), "50"))
	tenants := strings.Split(cmp.Or(os.Getenv("HEADRACE_E2E_TENANT"), "acme"), ",")
	x, err := executor.New(executor.Config{
		Addr:         os.Getenv("HEADRACE_E2E_ADDR"),
		Tenant:       tenants[0],
		Name:         name,
		Slots:        slots,
		DrainTimeout: 2 * time.Second,
		Logger:       slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	exitOn(err)
	handle := func(function string, policy fn.Options, h executor.Handler) {
		noted := func(ctx context.Context, t *executor.Task) (executor.Result, error) {
			line := func(what string) {
				fmt.Fprintf(file, "%s %s %s %d\n", what, executor.TaskID(ctx), executor.Token(ctx), time.Now().UnixNano())
			}
			line("start")
			defer line("end")
			return h(ctx, t)
		}
		for _, tenant := range tenants {
			x.HandleRawTenant(tenant, function, policy, noted)
		}
	}
	policy := fn.Options{OrphanTimeout: 5 * time.Second, Backoff: fn.Backoff{Base: 100 * time.Millisecond, Max: time.Second}}
	handle("work", policy, func(_ context.Context, t *executor.Task) (executor.Result, error) {
		return executor.Result{Body: t.Payload}, nil
	})
	handle("nap", policy, func(ctx context.Context, t *executor.Task) (executor.Result, error) {
		select {
		case <-time.After(200 * time.Millisecond):
			return executor.Result{Body: t.Payload}, nil
		case <-ctx.Done():
			return executor.Result{}, context.Cause(ctx)
		}
	})
	handle("hold", fn.Options{}, func(ctx context.Context, _ *executor.Task) (executor.Result, error) {
		for {
			if _, err := os.Stat(path + ".release"); err == nil {
				return executor.Result{}, nil
			}
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
				return executor.Result{}, context.Cause(ctx)
			}
		}
	})
	who := func(_ context.Context, t *executor.Task) (executor.Result, error) {
		d, err := time.ParseDuration(string(t.Payload))
		if err != nil {
			return executor.Result{}, executor.NonRetryable(err)
		}
		<-time.After(d)
		return executor.Result{Body: []byte(name)}, nil
	}
	handle("who", policy, who)
	handle("slow", fn.Options{}, who)
	handle("crash", policy, func(ctx context.Context, _ *executor.Task) (executor.Result, error) {
		if name != "sound" {
			time.AfterFunc(100*time.Millisecond, func() { panic("a goroutine that nobody guards") })
			<-ctx.Done()
		}
		return executor.Result{}, nil
	})
	handle("fail", policy, func(context.Context, *executor.Task) (executor.Result, error) {
		return executor.Result{}, fmt.Errorf("boom")
	})
	ctx, _ := signal.NotifyContext(context.Background(), syscall.SIGTERM) // until the process ends
	exitOn(x.Run(ctx))
	os.Exit(0)
}

func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
