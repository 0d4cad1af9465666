package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/headrace/headrace/internal/histogram"
	"github.com/headrace/headrace/internal/pgtest"
)

// peerRiver is River on a database of its own.
type peerRiver struct {
	pg   *pgtest.Server
	tune sizes
	pool *pgxpool.Pool
}

// Settings that were best for River in our study: the library's least cool-down, and as many workers as helped.
const (
	riverCooldown = time.Millisecond
	riverWorkers  = 2000
	riverConns    = 34
	riverBatch    = 1000
	riverCallers  = 32   // that insert one by one
	inFlight      = 5000 // inserted and not yet run, at most
)

func newRiver(ctx context.Context, pg *pgtest.Server, tune sizes) (*peerRiver, error) {
	if _, err := pg.SQL("postgres", "CREATE DATABASE river"); err != nil {
		return nil, err
	}
	cfg, err := pgxpool.ParseConfig(pg.DSN("river"))
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = riverConns
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	r := &peerRiver{pg: pg, tune: tune, pool: pool}
	m, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	if err == nil {
		_, err = m.Migrate(ctx, rivermigrate.DirectionUp, nil)
	}
	if err != nil {
		pool.Close()
		return nil, fmt.Errorf("river: %w", err)
	}
	return r, nil
}

func (r *peerRiver) system() string  { return "river" }
func (r *peerRiver) loads() []string { return []string{cycle, single, light, lightDefault} }

type job struct {
	P string `json:"p"`
	T int64  `json:"t"` // since began, in nanoseconds
}

func (job) Kind() string { return "noop" }

// filler makes a job's arguments 200 bytes long.
var filler = func() string {
	b, _ := json.Marshal(job{T: 1_000_000_000}) // a struct of text and number can't fail
	return strings.Repeat("x", payloadBytes-len(b))
}()

var began = time.Now()

func newJob() job { return job{P: filler, T: int64(time.Since(began))} }

type worker struct {
	river.WorkerDefaults[job]
	ran    atomic.Int64
	starts histogram.Histogram
}

func (w *worker) Work(_ context.Context, j *river.Job[job]) error {
	w.starts.Record(time.Since(began) - time.Duration(j.Args.T))
	w.ran.Add(1)
	return nil
}

func (r *peerRiver) run(ctx context.Context, load string) (*measure, error) {
	if _, err := r.pool.Exec(ctx, "TRUNCATE river_job"); err != nil {
		return nil, err
	}
	if err := calm(r.pg); err != nil {
		return nil, err
	}
	runtime.GC()
	w := &worker{}
	workers := river.NewWorkers()
	river.AddWorker(workers, w)
	cfg := &river.Config{
		Logger:  slog.New(slog.DiscardHandler),
		Queues:  map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: riverWorkers}},
		Workers: workers, FetchCooldown: riverCooldown, FetchPollInterval: time.Second,
	}
	if load == lightDefault {
		cfg.FetchCooldown, cfg.FetchPollInterval = 0, 0
		cfg.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 100}}
	}
	c, err := river.NewClient(riverpgxv5.New(r.pool), cfg)
	if err != nil {
		return nil, err
	}
	if load != single {
		if err := c.Start(ctx); err != nil {
			return nil, err
		}
		defer func() {
			stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
			defer cancel()
			c.StopAndCancel(stop)
		}()
	}
	wal, err := written(r.pg)
	if err != nil {
		return nil, err
	}
	before := look(r.pg.CPU)
	var n atomic.Int64
	var submits histogram.Histogram
	switch load {
	case cycle:
		err = r.bulk(ctx, c, &n, w)
	case single:
		err = together(riverCallers, r.tune.seconds, func() error {
			begin := time.Now()
			_, err := c.Insert(ctx, newJob(), nil)
			submits.Record(time.Since(begin))
			n.Add(1)
			return err
		})
	default:
		err = atRate(ctx, 50, r.tune.seconds, func() error {
			begin := time.Now()
			_, err := c.Insert(ctx, newJob(), nil)
			submits.Record(time.Since(begin))
			n.Add(1)
			return err
		})
	}
	if err != nil {
		return nil, err
	}
	inserted := time.Now()
	if load != single {
		if err := r.done(ctx); err != nil {
			return nil, err
		}
	}
	after := look(r.pg.CPU)
	end, err := written(r.pg)
	if err != nil {
		return nil, err
	}
	m := peerMeasure(n.Load(), before, after, inserted, end-wal)
	m.Submit = spreadOf(&submits)
	if load != single {
		m.Start = spreadOf(&w.starts)
	}
	return m, nil
}

// bulk inserts in batches for a while, as long as not too much is on its way.
func (r *peerRiver) bulk(ctx context.Context, c *river.Client[pgx.Tx], n *atomic.Int64, w *worker) error {
	return together(4, r.tune.seconds, func() error {
		if n.Load()-w.ran.Load() > inFlight {
			time.Sleep(time.Millisecond)
			return nil
		}
		batch := make([]river.InsertManyParams, riverBatch)
		for i := range batch {
			batch[i].Args = newJob()
		}
		_, err := c.InsertManyFast(ctx, batch)
		n.Add(riverBatch)
		return err
	})
}

// done returns when every job is stored as completed.
func (r *peerRiver) done(ctx context.Context) error {
	for {
		var left bool
		if err := r.pool.QueryRow(ctx, "SELECT EXISTS (SELECT 1 FROM river_job WHERE state IN ('available', 'running'))").Scan(&left); err != nil || !left {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (r *peerRiver) close() { r.pool.Close() }
