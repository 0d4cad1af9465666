package loadgen

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/headrace/headrace/executor"
	"github.com/headrace/headrace/fn"
)

// drainTimeout bounds the end of an executor.
const drainTimeout = 10 * time.Second

// startExecutor starts an executor with what register registers, and returns when its first session is open, with what
// ends it.
func startExecutor(ctx context.Context, cfg executor.Config, register func(*executor.Executor)) (stop func(), err error) {
	cfg.DrainTimeout, cfg.Logger = drainTimeout, slog.New(slog.DiscardHandler)
	x, err := executor.New(cfg)
	if err != nil {
		return nil, err
	}
	register(x)
	ended := make(chan error, 1)
	go func() { ended <- x.Run(context.WithoutCancel(ctx)) }()
	stop = func() { x.Shutdown(context.WithoutCancel(ctx)) }
	timer := time.NewTimer(30 * time.Second)
	defer timer.Stop()
	select {
	case <-x.Ready():
		return stop, nil
	case err := <-ended:
		return nil, fmt.Errorf("run the executor: %w", err)
	case <-timer.C:
		err = fmt.Errorf("no server at %s has opened a session within 30s", cfg.Addr)
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	stop()
	return nil, err
}

// startExecutor runs the function for all tenants.
func (r *Run) startExecutor(ctx context.Context) (stop func(), err error) {
	return startExecutor(ctx, executor.Config{Addr: r.cfg.Addr, APIKey: r.cfg.APIKey, Slots: r.cfg.Slots, Name: r.function}, func(x *executor.Executor) {
		for i := range r.cfg.Tenants {
			x.HandleRawTenant(r.tenantName(i), r.function, fn.Options{}, r.handle)
		}
	})
}

// handle is the handler: it counts, and does nothing.
func (r *Run) handle(_ context.Context, t *executor.Task) (executor.Result, error) {
	now := time.Now()
	r.Starts.Add(1)
	r.starts.Record(r.sinceStamp(t.Payload, now))
	return executor.Result{}, nil
}
