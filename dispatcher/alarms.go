package dispatcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/headrace/headrace/internal/telemetry"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/store"
)

// The kinds of alarms that the node itself raises; a store has its own (store.Alarm).
const (
	alarmStoreDown = "store_down"       // a database does not answer
	alarmStoreSlow = "store_slow"       // a database takes long to answer, or to commit
	alarmRestored  = "registry_behind"  // it was restored or lost: nothing is pushed until somebody accepts that
	alarmEtcd      = "etcd_unreachable" // no keep-alive gets through: nothing changes owner
	alarmPanic     = "core_panic"       // the core panicked over a partition: it is opened again with a back-off
)

// alarms are what is wrong with the node now. An alarm is logged when it is raised and when it is cleared,
// not in between, and shown by ListNodes until it is cleared.
type alarms struct {
	now func() time.Time
	log *zap.Logger

	mu  sync.Mutex // guards following
	set map[alarmKey]alarm
}

// alarmKey is one alarm: of one kind there is one for each subject, such as a database.
type alarmKey struct{ kind, subject string }

type alarm struct {
	message string // for people: who or what, in one line
	since   time.Time
}

func newAlarms(now func() time.Time, log *zap.Logger) *alarms {
	return &alarms{now: now, log: log.Named("alarms"), set: map[alarmKey]alarm{}}
}

// raise adds an alarm; one that is there gets the newer message.
func (a *alarms) raise(kind, subject, message string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	k := alarmKey{kind, subject}
	old, there := a.set[k]
	if !there {
		old.since = a.now()
		a.log.Error("alarm", zap.String("kind", kind), telemetry.Text("subject", subject), telemetry.Text("alarm", message))
	}
	a.set[k] = alarm{message, old.since}
}

// clear takes an alarm away, if it is there.
func (a *alarms) clear(kind, subject string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	k := alarmKey{kind, subject}
	if old, there := a.set[k]; there {
		delete(a.set, k)
		a.log.Info("alarm is over", zap.String("kind", kind), telemetry.Text("subject", subject), zap.Duration("after", a.now().Sub(old.since)))
	}
}

// list returns the alarms by kind and subject.
func (a *alarms) list() []*headracev1.Alarm {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make([]*headracev1.Alarm, 0, len(a.set))
	for k, v := range a.set {
		out = append(out, &headracev1.Alarm{Kind: k.kind, Subject: k.subject, Message: v.message, SinceTime: timestamppb.New(v.since)})
	}
	slices.SortFunc(out, func(x, y *headracev1.Alarm) int {
		return cmp.Or(cmp.Compare(x.Kind, y.Kind), cmp.Compare(x.Subject, y.Subject))
	})
	return out
}

// How often a database is looked at, how long a look may take, and what is slow.
const (
	lookEvery   = 2 * time.Second
	lookTimeout = 5 * time.Second
	slowLook    = time.Second
	slowCommit  = 3 * time.Second
)

// watchedStore notes how the commits to a store go, for the watch that keeps its alarms.
type watchedStore struct {
	store.Store
	now     func() time.Time
	reaches *reaches // nil: not wanted

	mu    sync.Mutex // guards following
	began time.Time  // of the commit under way; zero: none
	full  error      // of the last commit, if the disk was full
}

// Commit implements store.Store.
func (w *watchedStore) Commit(ctx context.Context, b *store.Batch) ([]store.PartResult, error) {
	sentAt := w.now()
	w.mu.Lock()
	w.began = sentAt
	w.mu.Unlock()
	rs, err := w.Store.Commit(ctx, b)
	w.reaches.ended(sentAt, err)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.began, w.full = time.Time{}, nil
	if errors.Is(err, store.ErrFull) {
		w.full = err
	}
	return rs, err
}

// Epoch implements store.Store.
func (w *watchedStore) Epoch(ctx context.Context, partition uint32) (store.Epoch, error) {
	sentAt := w.now()
	e, err := w.Store.Epoch(ctx, partition)
	w.reaches.ended(sentAt, err)
	return e, err
}

// state returns for how long the commit under way has been, and why the last one found no room.
func (w *watchedStore) state() (busy time.Duration, full error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.began.IsZero() {
		busy = w.now().Sub(w.began)
	}
	return busy, w.full
}

// watch looks at a database every two seconds until ctx ends, and keeps its alarms.
func (a *alarms) watch(ctx context.Context, name string, s *watchedStore) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	told := map[string]bool{} // kinds that the store itself raised
	for {
		a.look(ctx, name, s, told)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (a *alarms) look(ctx context.Context, name string, s *watchedStore, told map[string]bool) {
	call, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	began := a.now()
	found, err := ask(call, s.Store)
	took := a.now().Sub(began)
	if ctx.Err() != nil {
		return
	}
	busy, full := s.state()
	if err != nil {
		a.raise(alarmStoreDown, name, err.Error())
		return // what else it would say is not known
	}
	a.clear(alarmStoreDown, name)
	switch {
	case busy > slowCommit:
		a.raise(alarmStoreSlow, name, fmt.Sprintf("a commit has taken %v so far", busy.Round(100*time.Millisecond)))
	case took > slowLook:
		a.raise(alarmStoreSlow, name, fmt.Sprintf("a look-up took %v", took.Round(100*time.Millisecond)))
	default:
		a.clear(alarmStoreSlow, name)
	}
	if full != nil {
		found = append(found, store.Alarm{Kind: store.AlarmDisk, Message: full.Error()})
	}
	for kind := range told {
		if !slices.ContainsFunc(found, func(f store.Alarm) bool { return f.Kind == kind }) {
			a.clear(kind, name)
			delete(told, kind)
		}
	}
	for _, f := range found {
		a.raise(f.Kind, name, f.Message)
		told[f.Kind] = true
	}
}

// ask asks a store how it is: one that can't say is asked for something cheap.
func ask(ctx context.Context, s store.Store) ([]store.Alarm, error) {
	if w, ok := s.(store.Watched); ok {
		return w.Alarms(ctx)
	}
	_, err := s.Epoch(ctx, 0)
	return nil, err
}
