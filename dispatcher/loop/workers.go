package loop

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/internal/failpoint"
	"github.com/headrace/headrace/internal/telemetry"
	"github.com/headrace/headrace/store"
)

// work is one thing to do for a generation of the core.
type work[T any] struct {
	gen uint64
	it  T
}

// queue takes work from Run without ever making it wait. It is short: the core asks for one commit
// at a time, and bounds its loads by its flows.
type queue[T any] struct {
	mu     sync.Mutex // guards following; held for an append or a swap
	items  []T
	closed bool
	ready  chan struct{} // capacity 1: there may be items, or it was closed
}

func newQueue[T any]() *queue[T] { return &queue[T]{ready: make(chan struct{}, 1)} }

func (q *queue[T]) put(item T) {
	q.mu.Lock()
	q.items = append(q.items, item)
	q.mu.Unlock()
	q.wake()
}

func (q *queue[T]) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.wake()
}

func (q *queue[T]) wake() {
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// get waits for the oldest item; false when the queue is closed. Several may call it.
func (q *queue[T]) get() (item T, ok bool) {
	for {
		q.mu.Lock()
		switch {
		case q.closed:
			q.mu.Unlock()
			q.wake() // the next one
			return item, false
		case len(q.items) > 0:
			item, q.items[0] = q.items[0], item
			q.items = q.items[1:]
			more := len(q.items) > 0
			q.mu.Unlock()
			if more {
				q.wake()
			}
			return item, true
		}
		q.mu.Unlock()
		<-q.ready
	}
}

// workers do the I/O of one database.
type workers struct {
	loop    *Loop
	db      Database
	log     *zap.Logger
	ctx     context.Context // of reads; commits are never cut off: their outcome would be unknown
	cancel  context.CancelFunc
	commits *queue[work[*core.Commit]]
	loads   *queue[work[*core.Load]]
	checks  *queue[work[*core.EpochRead]]
}

func newWorkers(l *Loop, db Database) *workers {
	ctx, cancel := context.WithCancel(context.Background())
	return &workers{loop: l, db: db, log: l.log.With(telemetry.Database(db.Name)), ctx: ctx, cancel: cancel,
		commits: newQueue[work[*core.Commit]](), loads: newQueue[work[*core.Load]](), checks: newQueue[work[*core.EpochRead]]()}
}

func (w *workers) start() {
	w.loop.wg.Go(func() { serve(w.commits, w.commit) })
	w.loop.wg.Go(func() { serve(w.checks, w.check) })
	for range w.loop.cfg.Loaders {
		w.loop.wg.Go(func() { serve(w.loads, w.load) })
	}
}

func (w *workers) stop() {
	w.cancel()
	w.commits.close()
	w.checks.close()
	w.loads.close()
}

func serve[T any](q *queue[T], do func(T)) {
	for {
		item, ok := q.get()
		if !ok {
			return
		}
		do(item)
	}
}

// slowCommit is worth a line in the log.
const slowCommit = time.Second

func (w *workers) commit(job work[*core.Commit]) {
	failpoint.Hit("loop.commit.before")
	sentAt := w.loop.cfg.Now()
	rs, err := w.db.Store.Commit(context.WithoutCancel(w.ctx), job.it.Batch)
	took := w.loop.cfg.Now().Sub(sentAt)
	failpoint.Hit("loop.commit.after")
	if took > slowCommit {
		w.log.Warn("slow commit", telemetry.Took(took))
	}
	if err != nil {
		w.log.Error("commit", telemetry.Err(err))
	}
	w.loop.post("committed", func(now time.Time) {
		w.loop.meter.commits++
		w.loop.meter.commitTime += took
		if job.gen == w.loop.gen {
			w.loop.enter("committed", func(c *core.Core) { c.Committed(now, sentAt, job.it, rs, err) })
		}
	})
}

func (w *workers) check(job work[*core.EpochRead]) {
	sentAt := w.loop.cfg.Now()
	epochs := make([]store.Epoch, len(job.it.Partitions))
	var err error
	for i, p := range job.it.Partitions {
		if epochs[i], err = w.db.Store.Epoch(w.ctx, p); err != nil {
			w.log.Warn("read an epoch", telemetry.Partition(p), telemetry.Err(err))
			break
		}
	}
	w.loop.post("epochs read", func(now time.Time) {
		if job.gen == w.loop.gen {
			w.loop.enter("epochs read", func(c *core.Core) { c.EpochsRead(now, sentAt, job.it, epochs, err) })
		}
	})
}

// otherLoaders look at other nodes. A dead one costs each a few seconds, and no database's loader.
const otherLoaders = 8

// elsewhere looks for a request in a partition that another node owns.
func (l *Loop) elsewhere(ctx context.Context, job work[*core.Load]) {
	r, a := job.it, core.LoadAnswer{Err: store.ErrNotFound}
	if l.cfg.Elsewhere != nil {
		a.Request, a.Err = l.cfg.Elsewhere(ctx, r.Partition, r.Tenant, r.RequestID)
	}
	l.post("looked elsewhere", func(now time.Time) {
		if job.gen == l.gen {
			l.enter("looked elsewhere", func(c *core.Core) { c.Loaded(now, r, a) })
		}
	})
}

func (w *workers) load(job work[*core.Load]) {
	l, a := job.it, core.LoadAnswer{}
	switch l.Kind {
	case core.LoadReady:
		a.Rows, a.More, a.Err = w.db.Store.Ready(w.ctx, l.Partition, l.Flow, l.After, l.Limit, l.MaxBytes, l.Inline)
	case core.LoadDue:
		a.Rows, a.More, a.Err = w.db.Store.Due(w.ctx, l.Partition, l.After, l.Until, l.Limit, l.MaxBytes, l.Inline)
	case core.LoadGet:
		var t *store.Task
		if t, a.Err = w.db.Store.Get(w.ctx, l.ID); a.Err == nil {
			a.Rows = []*store.Task{t}
		}
	case core.LoadRequest:
		a.Request, a.Err = w.db.Store.Request(w.ctx, l.Partition, l.Tenant, l.RequestID, w.loop.cfg.Now())
	}
	if g, ok := w.loop.guards.Load(l.Partition); ok && len(a.Rows) > 0 {
		// It waits for a registry, and a loader is for all partitions of the database.
		w.loop.wg.Go(func() {
			if n, err := g.(Guard).Admit(w.ctx, a.Rows); err != nil {
				a = core.LoadAnswer{Err: err}
			} else if n < len(a.Rows) {
				a.Rows, a.More = a.Rows[:n], true
			}
			w.loaded(job, a)
		})
		return
	}
	w.loaded(job, a)
}

// loaded hands over what was read.
func (w *workers) loaded(job work[*core.Load], a core.LoadAnswer) {
	l := job.it
	w.loop.post("loaded", func(now time.Time) {
		if job.gen == w.loop.gen {
			w.loop.enterAt("loaded", l.Partition, func(c *core.Core) { c.Loaded(now, l, a) })
		}
	})
}
