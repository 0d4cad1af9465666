package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/dispatcher/loop"
	"github.com/headrace/headrace/internal/telemetry"
	"github.com/headrace/headrace/shard/member"
	"github.com/headrace/headrace/store"
)

// errKeyLost is why a partition is dropped whose key is gone.
var errKeyLost = errors.New("the owner key is gone")

// keys is what owners need of the membership.
type keys interface {
	Holds(ctx context.Context, partition uint32) (bool, error)
	Release(ctx context.Context, partition uint32) error
}

// engine is what owners need of the loop.
type engine interface {
	Acquired(core.Acquired)
	Drop(partition uint32, reason error)
	Release(partition uint32)
}

// storeOf returns the store that holds a partition, and its index.
type storeOf func(partition uint32) (store.Store, core.Database, error)

// owners brings the partitions whose keys this node holds into the loop, and out of it.
//
//	        key won            acquired: look, raise, look, load (R10)
//	none ────────────▶ held ───────────────────────────────────────▶ owned
//	  ▲                  ▲                                             │ fenced, unknown commit, panic
//	  │ key lost         └──────────────── again, after a pause ───────┤
//	  └────────────────────────────────────────────────────────────────┘ released, key lost
//
// One goroutine, run, owns all states; acquisitions run beside it, one for each partition at most.
type owners struct {
	engine engine
	keys   keys
	store  storeOf
	now    func() time.Time
	log    *zap.Logger

	events <-chan member.Event
	inbox  inbox                 // from the loop, which must not wait
	done   chan acquired         // from acquisitions
	drain  chan struct{}         // closed by startDrain
	ready  func(serves bool)     // told when it changes whether everything assigned is served
	news   func(context.Context) // told after each event of the membership; must not wait
	cutOff func()                // told when the registry is out of reach; must not wait
	spare  func() bool           // whether a node that is assigned nothing serves all the same
	empty  chan struct{}         // closed when a drain has nothing left
	wg     sync.WaitGroup        // acquisitions and releases
	parts  map[uint32]*ownership // run's goroutine only
	served bool                  // run's goroutine only: what ready was told last
}

// ownership is what run knows of one partition.
type ownership struct {
	assigned  bool // the leader wants it here
	held      bool // its key is ours
	owned     bool // the loop has it
	releasing bool
	cancel    context.CancelFunc // of the acquisition under way; nil: none
	failures  int                // since it was last owned for a while
	ownedAt   time.Time
}

// acquired is the outcome of one acquisition.
type acquired struct {
	partition uint32
	state     core.Acquired
	err       error
}

// said is what the loop told of a partition.
type said struct {
	lost      core.LostPartition
	released  bool
	partition uint32
}

// inbox takes what the loop says without making it wait; it holds at most a few entries a partition.
type inbox struct {
	mu    sync.Mutex // guards following
	items []said
	ready chan struct{} // capacity 1
}

func (b *inbox) put(s said) {
	b.mu.Lock()
	b.items = append(b.items, s)
	b.mu.Unlock()
	select {
	case b.ready <- struct{}{}:
	default:
	}
}

func (b *inbox) take() []said {
	b.mu.Lock()
	defer b.mu.Unlock()
	items := b.items
	b.items = nil
	return items
}

// Pauses before a lost partition is acquired again. Losing one is normal once; again and again it is not.
const (
	pauseBase  = 50 * time.Millisecond
	pauseMax   = 5 * time.Second
	calmAfter  = time.Minute // owned for this long, the count begins anew
	acquireMax = 10 * time.Second
)

func newOwners(e engine, k keys, s storeOf, now func() time.Time, log *zap.Logger, events <-chan member.Event) *owners {
	return &owners{
		engine: e, keys: k, store: s, now: now, log: log.Named("owners"), events: events,
		inbox: inbox{ready: make(chan struct{}, 1)},
		done:  make(chan acquired), drain: make(chan struct{}), empty: make(chan struct{}),
		ready: func(bool) {}, news: func(context.Context) {}, spare: func() bool { return false }, cutOff: func() {},
		parts: map[uint32]*ownership{},
	}
}

// lost and released are the loop's callbacks.
func (o *owners) lost(p core.LostPartition) { o.inbox.put(said{lost: p, partition: p.Partition}) }
func (o *owners) released(p uint32)         { o.inbox.put(said{released: true, partition: p}) }

// startDrain releases everything; empty is closed when that is done.
func (o *owners) startDrain() { close(o.drain) }

// run ends with ctx, when everything it started has ended.
func (o *owners) run(ctx context.Context) {
	ctx, stop := context.WithCancel(ctx)
	defer func() {
		stop()
		o.wg.Wait()
	}()
	drain, events := o.drain, o.events
	draining := false
	for {
		select {
		case <-ctx.Done():
			return
		case e, ok := <-events:
			if !ok {
				events = nil // the membership has ended; the node ends too
				continue
			}
			o.member(ctx, e, draining)
			o.news(ctx)
		case <-o.inbox.ready:
			for _, s := range o.inbox.take() {
				o.loop(ctx, s, draining)
			}
		case a := <-o.done:
			o.acquisition(ctx, a, draining)
		case <-drain:
			draining, drain = true, nil
			for _, id := range slices.Sorted(maps.Keys(o.parts)) {
				p := o.parts[id]
				if p.cancel != nil {
					p.cancel()
				}
				o.release(id, p)
			}
		}
		o.tell(draining)
	}
}

// tell reports what others wait for.
func (o *owners) tell(draining bool) {
	serves, idle := true, true
	assigned := 0
	for _, p := range o.parts {
		if p.assigned {
			assigned++
			serves = serves && p.owned
		}
		idle = idle && !p.owned && p.cancel == nil && !(p.held && p.releasing)
	}
	serves = serves && (assigned > 0 || o.spare()) && !draining
	if serves != o.served {
		o.served = serves
		o.ready(serves)
	}
	if draining && idle {
		select {
		case <-o.empty:
		default:
			close(o.empty)
		}
	}
}

func (o *owners) part(id uint32) *ownership {
	p := o.parts[id]
	if p == nil {
		p = &ownership{}
		o.parts[id] = p
	}
	return p
}

// member acts on an event of the membership.
func (o *owners) member(ctx context.Context, e member.Event, draining bool) {
	switch e.Kind {
	case member.Assigned:
		o.part(e.Partition).assigned = true
	case member.Unassigned:
		p := o.part(e.Partition)
		p.assigned = false
		o.release(e.Partition, p)
	case member.Won:
		p := o.part(e.Partition)
		p.held = true
		o.acquire(ctx, e.Partition, p, 0, draining)
	case member.Lost:
		p := o.part(e.Partition)
		p.held, p.releasing = false, false
		if p.cancel != nil {
			p.cancel()
		}
		if p.owned {
			o.engine.Drop(e.Partition, errKeyLost)
		}
	case member.Isolated:
		o.log.Error("no keep-alive gets through: nothing changes owner until it does")
		o.cutOff()
	case member.Reconnected:
		o.log.Info("keep-alives get through again")
	}
}

// loop acts on what the loop said.
func (o *owners) loop(ctx context.Context, s said, draining bool) {
	p := o.part(s.partition)
	p.owned = false
	if s.released || p.releasing {
		o.giveBack(ctx, s.partition)
		return
	}
	if o.now().Sub(p.ownedAt) > calmAfter {
		p.failures = 0
	}
	pause := time.Duration(0)
	if p.failures > 0 || errors.Is(s.lost.Reason, loop.ErrPanic) {
		pause = min(pauseBase<<min(p.failures, 10), pauseMax)
	}
	p.failures++
	o.acquire(ctx, s.partition, p, pause, draining)
}

// acquisition takes in what an acquisition found.
func (o *owners) acquisition(ctx context.Context, a acquired, draining bool) {
	p := o.part(a.partition)
	p.cancel = nil
	switch {
	case !p.held || ctx.Err() != nil:
	case draining:
		o.giveBack(ctx, a.partition) // the epoch may be raised; the next owner raises it again
	case a.err != nil:
		if !errors.Is(a.err, context.Canceled) {
			o.log.Warn("acquire a partition", telemetry.Partition(a.partition), telemetry.Err(a.err))
		}
		p.failures++
		o.acquire(ctx, a.partition, p, min(pauseBase<<min(p.failures, 10), pauseMax), draining)
	default:
		p.owned, p.ownedAt, p.releasing = true, o.now(), false
		o.engine.Acquired(a.state)
		o.log.Debug("owns a partition", telemetry.Partition(a.partition), telemetry.Epoch(a.state.Epoch))
		if !p.assigned { // taken away meanwhile
			o.release(a.partition, p)
		}
	}
}

// release starts the hand-over of a partition that the loop has.
func (o *owners) release(id uint32, p *ownership) {
	if p.owned && !p.releasing {
		p.releasing = true
		o.engine.Release(id)
	}
}

// giveBack gives the key back, as often as it takes; a Lost follows.
func (o *owners) giveBack(ctx context.Context, id uint32) {
	o.part(id).releasing = true
	o.wg.Go(func() {
		for ctx.Err() == nil {
			err := func() error {
				ctx, cancel := context.WithTimeout(ctx, acquireMax)
				defer cancel()
				return o.keys.Release(ctx, id)
			}()
			if err == nil || errors.Is(err, member.ErrNotHeld) {
				return
			}
			o.log.Warn("give a key back", telemetry.Partition(id), telemetry.Err(err))
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
		}
	})
}

// acquire starts an acquisition unless there is one, or no reason for it.
func (o *owners) acquire(ctx context.Context, id uint32, p *ownership, pause time.Duration, draining bool) {
	if !p.held || p.owned || p.cancel != nil || draining {
		return
	}
	one, cancel := context.WithCancel(ctx)
	p.cancel = cancel
	o.wg.Go(func() {
		defer cancel()
		if pause > 0 {
			select {
			case <-time.After(pause):
			case <-one.Done():
			}
		}
		state, err := o.take(one, id)
		select {
		case o.done <- acquired{id, state, err}:
		case <-ctx.Done():
		}
	})
}

// take is R10: look at the key, raise the epoch, look again, and only then load.
func (o *owners) take(ctx context.Context, id uint32) (core.Acquired, error) {
	ctx, cancel := context.WithTimeout(ctx, acquireMax)
	defer cancel()
	look := func() error {
		held, err := o.keys.Holds(ctx, id)
		if err == nil && !held {
			err = member.ErrNotHeld
		}
		return err
	}
	if err := look(); err != nil {
		return core.Acquired{}, fmt.Errorf("look at the key: %w", err)
	}
	db, index, err := o.store(id)
	if err != nil {
		return core.Acquired{}, err
	}
	from, err := db.Epoch(ctx, id)
	if err != nil {
		return core.Acquired{}, fmt.Errorf("read the epoch: %w", err)
	}
	epoch, err := db.Acquire(ctx, id, from)
	if err != nil {
		return core.Acquired{}, fmt.Errorf("raise the epoch: %w", err)
	}
	raisedAt := o.now()
	if err := look(); err != nil {
		return core.Acquired{}, fmt.Errorf("look at the key again: %w", err)
	}
	recovered, err := db.Recover(ctx, id)
	if err != nil {
		return core.Acquired{}, fmt.Errorf("recover: %w", err)
	}
	flows, err := db.Flows(ctx, id)
	if err != nil {
		return core.Acquired{}, fmt.Errorf("read the flows: %w", err)
	}
	return core.Acquired{Database: index, Epoch: epoch, RaisedAt: raisedAt, Recovered: recovered, Flows: flows}, nil
}
