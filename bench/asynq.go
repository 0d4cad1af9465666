package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headrace/headrace/internal/histogram"
)

// peerAsynq is Asynq on a Redis of its own.
type peerAsynq struct {
	redis *redisServer
	tune  sizes
}

// Settings that were best for Asynq in our study. It has no call that enqueues several.
const (
	asynqWorkers = 500
	asynqCallers = 32
	asynqCheck   = 10 * time.Millisecond
)

func (a *peerAsynq) system() string  { return "asynq_" + a.redis.fsync }
func (a *peerAsynq) loads() []string { return []string{cycle, light, lightDefault} }

func (a *peerAsynq) run(ctx context.Context, load string) (*measure, error) {
	if err := a.redis.conn.FlushAll(ctx).Err(); err != nil {
		return nil, err
	}
	runtime.GC()
	to := asynq.RedisClientOpt{Addr: a.redis.addr, PoolSize: asynqWorkers + asynqCallers}
	c := asynq.NewClient(to)
	defer c.Close()
	cfg := asynq.Config{Concurrency: asynqWorkers, LogLevel: asynq.FatalLevel, TaskCheckInterval: asynqCheck}
	if load == lightDefault {
		cfg.Concurrency, cfg.TaskCheckInterval = 0, 0
	}
	var ran, n atomic.Int64
	var starts, submits histogram.Histogram
	s := asynq.NewServer(to, cfg)
	if err := s.Start(asynq.HandlerFunc(func(_ context.Context, t *asynq.Task) error {
		starts.Record(time.Since(began) - time.Duration(binary.BigEndian.Uint64(t.Payload())))
		ran.Add(1)
		return nil
	})); err != nil {
		return nil, fmt.Errorf("asynq: %w", err)
	}
	defer s.Shutdown()
	enqueue := func() error {
		payload := make([]byte, payloadBytes)
		begin := time.Now()
		binary.BigEndian.PutUint64(payload, uint64(begin.Sub(began)))
		_, err := c.EnqueueContext(ctx, asynq.NewTask("noop", payload))
		submits.Record(time.Since(begin))
		n.Add(1)
		return err
	}
	size, err := a.redis.appended()
	if err != nil {
		return nil, err
	}
	before := look(a.redis.cpu)
	if load == cycle {
		err = together(asynqCallers, a.tune.seconds, func() error {
			if n.Load()-ran.Load() > inFlight {
				time.Sleep(time.Millisecond)
				return nil
			}
			return enqueue()
		})
	} else {
		err = atRate(ctx, 50, a.tune.seconds, enqueue)
	}
	if err != nil {
		return nil, err
	}
	inserted := time.Now()
	if err := a.done(ctx); err != nil {
		return nil, err
	}
	after := look(a.redis.cpu)
	end, err := a.redis.appended()
	if err != nil {
		return nil, err
	}
	m := peerMeasure(n.Load(), before, after, inserted, end-size)
	m.Submit, m.Start = spreadOf(&submits), spreadOf(&starts)
	return m, nil
}

// done returns when no task waits or runs.
func (a *peerAsynq) done(ctx context.Context) error {
	for {
		left, err := a.redis.conn.Exists(ctx, "asynq:{default}:pending", "asynq:{default}:active").Result()
		if err != nil || left == 0 {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
}
