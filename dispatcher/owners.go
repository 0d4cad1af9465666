package dispatcher

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/dispatcher/loop"
	"github.com/headrace/headrace/dispatcher/ownership"
	"github.com/headrace/headrace/internal/telemetry"
	"github.com/headrace/headrace/shard"
	"github.com/headrace/headrace/shard/member"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// errKeyLost is why a partition is dropped whose key is gone.
var errKeyLost = errors.New("the owner key is gone")

// keys is what owners need of the membership.
type keys interface {
	Holds(ctx context.Context, partition uint32) (bool, error)
	Epoch(ctx context.Context, partition uint32) (uint64, error)
	Remember(ctx context.Context, partition uint32, epoch uint64) (bool, error)
	Release(ctx context.Context, partition uint32) error
	Session() int64
	Tenure(partition uint32) shard.Tenure
	Passed(ctx context.Context, partition uint32) error
	Caught(ctx context.Context, partition uint32, c shard.Caught) error
	Calm(ctx context.Context, partition uint32) error
	Hands(ctx context.Context, partition uint32) (shard.Hands, error)
	SetHands(ctx context.Context, partition uint32, h shard.Hands) error
}

// engine is what owners need of the loop.
type engine interface {
	Acquired(core.Acquired)
	Guard(partition uint32, g loop.Guard)
	Drop(partition uint32, reason error)
	Release(partition uint32)
}

// rules returns once all pause rules that the registry held when it was called, and the limits that users set before, are
// in force in the engine.
type rules func(ctx context.Context) error

// storeOf returns the store that holds a partition, and its index.
type storeOf func(partition uint32) (store.Store, core.Database, error)

// owners brings the partitions whose keys this node holds into the loop, and out of it: the goroutines around
// package ownership, which decides. One goroutine, run, owns its table; acquisitions run beside it, one for
// each partition at most.
type owners struct {
	engine engine
	keys   keys
	store  storeOf
	rules  rules
	now    func() time.Time
	log    *zap.Logger

	events  <-chan member.Event
	inbox   inbox                                                                                         // from the loop, which must not wait
	done    chan acquired                                                                                 // from acquisitions
	drain   chan struct{}                                                                                 // closed by startDrain
	ready   func(serves bool)                                                                             // told when it changes whether everything assigned is served
	news    func(context.Context)                                                                         // told after each event of the membership; must not wait
	cutOff  func()                                                                                        // told when the registry is out of reach; must not wait
	reached func()                                                                                        // told when it is, or is again, within reach; must not wait
	roster  func(partition uint32, epoch store.Epoch, session int64, raisedAt time.Time) ([]string, bool) // peer.Router.Executors
	spare   func() bool                                                                                   // whether a node that is assigned nothing serves all the same
	empty   chan struct{}                                                                                 // closed when a drain has nothing left
	wg      sync.WaitGroup                                                                                // acquisitions and releases
	table   *ownership.Table                                                                              // run's goroutine only
	cancel  map[uint32]context.CancelFunc                                                                 // run's goroutine only: of the acquisitions under way
	above   map[uint32]store.Epoch                                                                        // run's goroutine only: epochs that executors know, newer than the store's
	served  bool                                                                                          // run's goroutine only: what ready was told last

	// run's goroutine only; of those that the loop has, or is about to get:
	guards  map[uint32]*careful           // the quarantined ones
	settled map[uint32]context.CancelFunc // of what ends their tenures
	caught  map[uint32]shard.Caught       // panics over them, since they were last calm

	cut func(partition uint32) bool // whether this node can't reach the partition's database

	condemned func(partition uint32) []task.ID // what this process died of before, in the partition

	alarm func(partition uint32, message string) // raises an alarm, or "": ends it; must not wait
}

// acquired is the outcome of one acquisition.
type acquired struct {
	partition uint32
	state     core.Acquired
	careful   *careful // nil: it is not quarantined
	err       error
}

// said is what the loop told of a partition.
type said struct {
	lost      core.LostPartition
	released  bool
	calm      int // the partition is calm after that many panics
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

// acquireMax bounds one acquisition, and one try to give a key back.
const acquireMax = 10 * time.Second

func newOwners(e engine, k keys, s storeOf, r rules, now func() time.Time, log *zap.Logger, events <-chan member.Event) *owners {
	return &owners{
		engine: e, keys: k, store: s, rules: r, now: now, log: log.Named("owners"), events: events,
		inbox: inbox{ready: make(chan struct{}, 1)},
		done:  make(chan acquired), drain: make(chan struct{}), empty: make(chan struct{}),
		ready: func(bool) {}, news: func(context.Context) {}, spare: func() bool { return false }, cutOff: func() {}, reached: func() {},
		table: ownership.New(), cancel: map[uint32]context.CancelFunc{}, above: map[uint32]store.Epoch{},
		roster: func(uint32, store.Epoch, int64, time.Time) ([]string, bool) { return nil, false },
		guards: map[uint32]*careful{}, settled: map[uint32]context.CancelFunc{}, caught: map[uint32]shard.Caught{},
		cut:   func(uint32) bool { return false },
		alarm: func(uint32, string) {}, condemned: func(uint32) []task.ID { return nil },
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
			o.member(e)
			o.news(ctx)
		case <-o.inbox.ready:
			for _, s := range o.inbox.take() {
				if s.calm > 0 {
					if o.caught[s.partition].Panics == s.calm {
						o.uncaught(s.partition)
					}
					continue
				}
				o.unsettle(s.partition)
				if s.released {
					o.uncaught(s.partition)
					o.table.Released(s.partition)
				} else {
					o.above[s.partition] = max(o.above[s.partition], s.lost.Above)
					o.panicked(s.partition, s.lost.Reason)
					o.table.Lost(o.now(), s.partition, errors.Is(s.lost.Reason, loop.ErrPanic))
				}
			}
		case a := <-o.done:
			delete(o.cancel, a.partition)
			o.guards[a.partition] = a.careful
			if a.err != nil && !errors.Is(a.err, context.Canceled) {
				o.log.Warn("acquire a partition", telemetry.Partition(a.partition), telemetry.Err(a.err))
			}
			o.table.Ended(o.now(), a.partition, a.state, a.err)
		case <-drain:
			draining, drain = true, nil
			o.table.Drain()
		}
		o.perform(ctx)
		o.tell(draining)
	}
}

// perform does what the table asks for.
func (o *owners) perform(ctx context.Context) {
	fx := o.table.Take()
	for _, s := range fx.Acquire {
		o.acquire(ctx, s)
	}
	for _, id := range fx.Cancel {
		if cancel := o.cancel[id]; cancel != nil {
			cancel()
		}
	}
	for _, a := range fx.Acquired {
		id := a.Recovered.Partition.ID
		g := o.guards[id]
		if delete(o.guards, id); g != nil {
			o.engine.Guard(id, g)
		} else {
			o.engine.Guard(id, nil)
		}
		o.engine.Acquired(a)
		o.log.Debug("owns a partition", telemetry.Partition(id), telemetry.Epoch(a.Epoch))
		o.settle(ctx, id, g)
	}
	for _, id := range fx.Drop {
		o.engine.Drop(id, errKeyLost)
	}
	for _, id := range fx.Release {
		o.engine.Release(id)
	}
	for _, id := range fx.GiveBack {
		o.giveBack(ctx, id)
	}
}

// tell reports what others wait for.
func (o *owners) tell(draining bool) {
	serves, assigned := o.table.Serves()
	serves = serves && (assigned > 0 || o.spare())
	if serves != o.served {
		o.served = serves
		o.ready(serves)
	}
	if draining && o.table.Idle() {
		select {
		case <-o.empty:
		default:
			close(o.empty)
		}
	}
}

// member acts on an event of the membership.
func (o *owners) member(e member.Event) {
	switch e.Kind {
	case member.Assigned:
		o.table.Assigned(e.Partition)
	case member.Unassigned:
		if o.table.Unassigned(e.Partition); o.cut(e.Partition) {
			o.table.GiveUp(e.Partition)
		}
	case member.Won:
		o.table.Won(e.Partition)
	case member.Lost:
		o.unsettle(e.Partition)
		o.uncaught(e.Partition)
		o.table.KeyLost(e.Partition)
	case member.Isolated:
		o.log.Error("no keep-alive gets through: nothing changes owner until it does")
		o.cutOff()
	case member.Reconnected:
		o.log.Info("keep-alives get through again")
		o.reached()
	case member.Joined:
		o.reached()
	}
}

// giveBack gives the key back, as often as it takes; a Lost follows.
func (o *owners) giveBack(ctx context.Context, id uint32) {
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

// acquire runs an acquisition beside run, which hears of its end.
func (o *owners) acquire(ctx context.Context, s ownership.Start) {
	one, cancel := context.WithCancel(ctx)
	o.cancel[s.Partition] = cancel
	above, caught := o.above[s.Partition], o.caught[s.Partition]
	o.wg.Go(func() {
		defer cancel()
		if caught.Panics > 0 && !caught.Passed {
			o.noteCaught(one, s.Partition, caught, s.Pause)
		}
		if s.Pause > 0 {
			select {
			case <-time.After(s.Pause):
			case <-one.Done():
			}
		}
		a := acquired{partition: s.Partition}
		a.state, a.careful, a.err = o.take(one, s.Partition, above)
		select {
		case o.done <- a:
		case <-ctx.Done():
		}
	})
}

// take acquires a partition (R10), at an epoch above the one that executors know; with care if it is quarantined.
func (o *owners) take(ctx context.Context, id uint32, above store.Epoch) (core.Acquired, *careful, error) {
	ctx, cancel := context.WithTimeout(ctx, acquireMax)
	defer cancel()
	db, index, err := o.store(id)
	if err != nil {
		return core.Acquired{}, nil, err
	}
	session := o.keys.Session()
	d := newDoors(ctx, o, id, db, above)
	a, err := ownership.Acquire(d)
	if err != nil {
		return a, nil, err
	}
	o.log.Debug("acquired a partition", append(d.stages(), telemetry.Partition(id), telemetry.Epoch(a.Epoch))...)
	a.Database, a.Suspects = index, append(d.condemned, o.condemned(id)...)
	ownership.Complete(&a, session, o.keys.Session(), o.roster)
	return a, d.careful, nil
}
