package loadgen

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headrace/headrace/client"
)

// stampBytes is the room for a time in a payload.
const stampBytes = 8

// stamp writes when the submit is sent.
func (r *Run) stamp(payload []byte, now time.Time) {
	binary.BigEndian.PutUint64(payload, uint64(now.Sub(r.begin)))
}

// sinceStamp returns how long ago that was.
func (r *Run) sinceStamp(payload []byte, now time.Time) time.Duration {
	if len(payload) < stampBytes {
		return 0
	}
	return now.Sub(r.begin) - time.Duration(binary.BigEndian.Uint64(payload))
}

// payload returns bytes that don't compress to nothing, yet cost nothing to make.
func (r *Run) payload() []byte {
	p := make([]byte, r.cfg.Payload)
	for i := range p {
		p[i] = byte(i*131 + i>>8)
	}
	return p
}

// preload stores the backlog: due, but of a function without executors. It expires by itself, on a
// server that goes on after us.
func (r *Run) preload(ctx context.Context) error {
	if r.cfg.Backlog == 0 {
		return nil
	}
	r.phase("backlog")
	payload := r.payload()
	return r.parallel(4, r.cfg.Backlog, 1000, func(worker, n int) error {
		tasks := make([]client.Task, n)
		for i := range tasks {
			tasks[i] = client.Task{Function: r.function + "-backlog", Payload: payload, Options: client.Options{StartTTL: 6 * time.Hour}}
		}
		out, err := r.tenants[worker%len(r.tenants)].c.SubmitBatch(ctx, tasks)
		if err != nil {
			return err
		}
		for _, o := range out {
			if o.Err != nil {
				return o.Err
			}
		}
		r.Preloaded.Add(int64(n))
		return nil
	})
}

// submit submits the tasks as configured and returns when all are answered. Refused ones are counted; an
// error ends it.
func (r *Run) submit(ctx context.Context) error {
	switch {
	case r.cfg.Rate > 0:
		return r.submitAtRate(ctx)
	case r.cfg.Batch > 1:
		buffers := make([]batchBuffer, r.cfg.Callers)
		return r.parallel(r.cfg.Callers, r.cfg.Tasks, r.cfg.Batch, func(worker, n int) error {
			return r.submitBatch(ctx, &buffers[worker], n)
		})
	}
	payloads := make([][]byte, r.cfg.Callers)
	return r.parallel(r.cfg.Callers, r.cfg.Tasks, 1, func(worker, _ int) error {
		if payloads[worker] == nil {
			payloads[worker] = r.payload()
		}
		return r.submitOne(ctx, r.tenants[worker%len(r.tenants)], payloads[worker])
	})
}

// parallel has workers take portions of total until there are none left, or one fails.
func (r *Run) parallel(workers, total, portion int, do func(worker, n int) error) error {
	var left atomic.Int64
	left.Store(int64(total))
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for {
				n := min(int64(portion), left.Add(-int64(portion))+int64(portion))
				if n <= 0 {
					return
				}
				if errs[w] = do(w, int(n)); errs[w] != nil {
					left.Store(0)
					return
				}
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *Run) submitOne(ctx context.Context, t *tenant, payload []byte) error {
	begin := time.Now()
	r.stamp(payload, begin)
	s, err := t.c.Submit(ctx, client.Task{Function: r.function, Payload: payload})
	r.submits.Record(time.Since(begin))
	return r.answered(ctx, t, s.ID, err)
}

// answered counts the answer for one task. Its error ends the run.
func (r *Run) answered(ctx context.Context, t *tenant, id string, err error) error {
	if err == nil {
		r.Accepted.Add(1)
		t.ids.add(id)
		return nil
	}
	if ctx.Err() != nil {
		return err
	}
	r.refused.Add(1)
	r.firstErr.CompareAndSwap(nil, &err)
	return nil
}

// batchBuffer is what a caller uses again for each of its batches.
type batchBuffer struct {
	tasks  []client.Task
	number int
}

func (r *Run) submitBatch(ctx context.Context, b *batchBuffer, n int) error {
	if b.tasks == nil {
		b.tasks = make([]client.Task, r.cfg.Batch)
		for i := range b.tasks {
			b.tasks[i] = client.Task{Function: r.function, Payload: r.payload()}
		}
	}
	t := r.tenants[b.number%len(r.tenants)]
	b.number++
	begin := time.Now()
	for i := range n {
		r.stamp(b.tasks[i].Payload, begin)
	}
	out, err := t.c.SubmitBatch(ctx, b.tasks[:n])
	r.submits.Record(time.Since(begin))
	if err != nil {
		return err
	}
	for i := range out {
		if err := r.answered(ctx, t, out[i].ID, out[i].Err); err != nil {
			return err
		}
	}
	return nil
}

// submitAtRate submits at fixed intervals, whether or not earlier submits were answered: a slow answer
// must not slow down the clock that measures it.
func (r *Run) submitAtRate(ctx context.Context) error {
	every := time.Duration(float64(time.Second) / r.cfg.Rate)
	timer := time.NewTimer(0)
	defer timer.Stop()
	errs := make(chan error, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	begin := time.Now()
	for i := range r.cfg.Tasks {
		timer.Reset(time.Until(begin.Add(time.Duration(i) * every)))
		select {
		case <-timer.C:
		case err := <-errs:
			return err
		case <-ctx.Done():
			return fmt.Errorf("submit: %w", context.Cause(ctx))
		}
		wg.Go(func() {
			if err := r.submitOne(ctx, r.tenants[i%len(r.tenants)], r.payload()); err != nil {
				select {
				case errs <- err:
				default:
				}
			}
		})
	}
	return nil
}
