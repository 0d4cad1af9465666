package dispatcher

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/headrace/headrace/internal/telemetry"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// errNotOpen is what a database answers that could not be opened yet.
var errNotOpen = fmt.Errorf("not open yet: %w", store.ErrUnavailable)

// Pauses between two attempts to open a database.
const (
	openPauseMin = 100 * time.Millisecond
	openPauseMax = 5 * time.Second
)

// lateStore is a store that opens when it can: a node starts although one of its databases is away.
type lateStore struct {
	name   string
	open   func(context.Context) (store.Store, error)
	log    *zap.Logger
	opened chan struct{} // closed when it is open

	is     atomic.Pointer[store.Store]
	cancel context.CancelFunc // set by start
	wg     sync.WaitGroup
}

func newLateStore(name string, open func(context.Context) (store.Store, error), log *zap.Logger) *lateStore {
	return &lateStore{name: name, open: open, log: log.With(telemetry.Database(name)), opened: make(chan struct{})}
}

// start opens it, beside the caller, until it works or Close is called.
func (l *lateStore) start(ctx context.Context) {
	ctx, l.cancel = context.WithCancel(context.WithoutCancel(ctx))
	l.wg.Go(func() {
		for pause := openPauseMin; ; pause = min(2*pause, openPauseMax) {
			s, err := l.open(ctx)
			if err == nil {
				l.is.Store(&s)
				close(l.opened)
				l.lookAfter(ctx, s)
				return
			}
			if ctx.Err() != nil {
				return
			}
			l.log.Error("open the database: trying again", telemetry.Err(err))
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return
			}
		}
	})
}

// maintainer is a store that wants to be looked after every few minutes, by any node.
type maintainer interface {
	Maintain(ctx context.Context, now time.Time, keep time.Duration) error
}

// How often databases are looked after, and how long finished tasks are kept: the default class of design's
// retention.
const (
	maintainEvery = 5 * time.Minute
	keepFinished  = 30 * 24 * time.Hour
)

// lookAfter maintains a store until ctx ends.
func (l *lateStore) lookAfter(ctx context.Context, s store.Store) {
	m, ok := s.(maintainer)
	if !ok {
		return
	}
	tick := time.NewTicker(maintainEvery)
	defer tick.Stop()
	for {
		if err := m.Maintain(ctx, time.Now(), keepFinished); err != nil && ctx.Err() == nil {
			l.log.Warn("maintain the database", telemetry.Err(err))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// get returns the store once it is open; nil before.
func (l *lateStore) get() store.Store {
	if s := l.is.Load(); s != nil {
		return *s
	}
	return nil
}

func (l *lateStore) err(what string) error {
	return fmt.Errorf("%s in %s: %w", what, l.name, errNotOpen)
}

// Close ends the attempts, and closes the store if it is open.
func (l *lateStore) Close() error {
	if l.cancel != nil {
		l.cancel()
	}
	l.wg.Wait()
	if s := l.get(); s != nil {
		return s.Close()
	}
	return nil
}

// Alarms implements store.Watched.
func (l *lateStore) Alarms(ctx context.Context) ([]store.Alarm, error) {
	if s := l.get(); s != nil {
		return ask(ctx, s)
	}
	return nil, l.err("look")
}

// The rest is store.Store's.

func (l *lateStore) Acquire(ctx context.Context, partition uint32, from store.Epoch) (store.Epoch, error) {
	if s := l.get(); s != nil {
		return s.Acquire(ctx, partition, from)
	}
	return 0, l.err("acquire")
}

func (l *lateStore) AcquireAbove(ctx context.Context, partition uint32, from, above store.Epoch) (store.Epoch, error) {
	if s := l.get(); s != nil {
		return s.AcquireAbove(ctx, partition, from, above)
	}
	return 0, l.err("acquire")
}

func (l *lateStore) Configuration(ctx context.Context, copies bool) (*store.Configuration, error) {
	if s := l.get(); s != nil {
		return s.Configuration(ctx, copies)
	}
	return nil, l.err("read the configuration's version")
}

func (l *lateStore) SawConfiguration(ctx context.Context, version uint64) error {
	if s := l.get(); s != nil {
		return s.SawConfiguration(ctx, version)
	}
	return l.err("write the configuration's version")
}

func (l *lateStore) CopyConfiguration(ctx context.Context, from, to uint64, changes []store.Configured) error {
	if s := l.get(); s != nil {
		return s.CopyConfiguration(ctx, from, to, changes)
	}
	return l.err("copy the configuration")
}

func (l *lateStore) Epoch(ctx context.Context, partition uint32) (store.Epoch, error) {
	if s := l.get(); s != nil {
		return s.Epoch(ctx, partition)
	}
	return 0, l.err("read an epoch")
}

func (l *lateStore) Commit(ctx context.Context, b *store.Batch) ([]store.PartResult, error) {
	if s := l.get(); s != nil {
		return s.Commit(ctx, b)
	}
	return nil, l.err("commit")
}

func (l *lateStore) Recover(ctx context.Context, partition uint32) (*store.Recovered, error) {
	if s := l.get(); s != nil {
		return s.Recover(ctx, partition)
	}
	return nil, l.err("recover")
}

func (l *lateStore) Flows(ctx context.Context, partition uint32) ([]store.FlowStat, error) {
	if s := l.get(); s != nil {
		return s.Flows(ctx, partition)
	}
	return nil, l.err("read flows")
}

func (l *lateStore) Ready(ctx context.Context, partition uint32, f store.Flow, after store.Key, limit, maxBytes, inline int) ([]*store.Task, bool, error) {
	if s := l.get(); s != nil {
		return s.Ready(ctx, partition, f, after, limit, maxBytes, inline)
	}
	return nil, false, l.err("read ready tasks")
}

func (l *lateStore) Due(ctx context.Context, partition uint32, after store.Key, until time.Time, limit, maxBytes, inline int) ([]*store.Task, bool, error) {
	if s := l.get(); s != nil {
		return s.Due(ctx, partition, after, until, limit, maxBytes, inline)
	}
	return nil, false, l.err("read due tasks")
}

func (l *lateStore) Get(ctx context.Context, id task.ID) (*store.Task, error) {
	if s := l.get(); s != nil {
		return s.Get(ctx, id)
	}
	return nil, l.err("get")
}

func (l *lateStore) ByClientID(ctx context.Context, tenant, clientID string) (task.ID, error) {
	if s := l.get(); s != nil {
		return s.ByClientID(ctx, tenant, clientID)
	}
	return task.ID{}, l.err("look up an id")
}

func (l *lateStore) Request(ctx context.Context, partition uint32, tenant, id string, now time.Time) (*store.Request, error) {
	if s := l.get(); s != nil {
		return s.Request(ctx, partition, tenant, id, now)
	}
	return nil, l.err("look up a request")
}

func (l *lateStore) List(ctx context.Context, f store.Filter, after store.Cursor, limit int) ([]*store.Task, bool, error) {
	if s := l.get(); s != nil {
		return s.List(ctx, f, after, limit)
	}
	return nil, false, l.err("list")
}

func (l *lateStore) Partitions(ctx context.Context) ([]store.Partition, error) {
	if s := l.get(); s != nil {
		return s.Partitions(ctx)
	}
	return nil, l.err("list partitions")
}

func (l *lateStore) Settings() map[string]string {
	if s := l.get(); s != nil {
		return s.Settings()
	}
	return map[string]string{"state": "not open"}
}

func (l *lateStore) DiskBytes() (written, occupied int64) {
	if s := l.get(); s != nil {
		return s.DiskBytes()
	}
	return 0, 0
}
