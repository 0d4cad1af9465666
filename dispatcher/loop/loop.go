package loop

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/internal/telemetry"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// Errors that callers act on. Those of the core come through as they are.
var (
	ErrStopped = errors.New("the node has stopped")                   // nothing was done, or nobody knows
	ErrPanic   = errors.New("the core panicked")                      // reason of a lost partition
	ErrSlow    = errors.New("the peer does not read what it is sent") // reason of a closed session
)

// Database is one store with its name, for people.
type Database struct {
	Name  string
	Store store.Store
}

// Config says how a loop runs. The zero value of a field is its documented default.
type Config struct {
	Core      core.Config
	Databases []Database       // core.Database is the index. Required
	Now       func() time.Time // a clock that counts suspends; time.Now
	// Trust returns until when the membership lease allows pushes and answers; nil: the store's word
	// alone. It is called often and must be cheap.
	Trust func() time.Time
	// Held returns why nothing may be pushed; "": it may. Called as often as Trust; nil: nothing is ever held.
	Held func() string
	// Elsewhere looks for a request in a partition that this node does not own: its owner says what it took.
	// Errors: store.ErrNotFound; any other means that nobody knows. Nil: no other node takes submits.
	Elsewhere func(ctx context.Context, partition uint32, tenant, requestID string) (*store.Request, error)
	// Lost and Released tell what became of partitions. They are called by Run's goroutine and must
	// not block. Who still holds the key of a lost one acquires it again.
	Lost     func(core.LostPartition)
	Released func(partition uint32)
	// Roster is told what successors have to know (Core.Roster), and must not block. A new run begins with
	// nothing: what was told in the one before holds no more. Listed answers it.
	Roster func(run uint64, changes []core.RosterChange)

	// Hand remembers which task the core works on, should the process end; nil: nobody does.
	Hand Hand

	Mailbox int           // events that wait; 4,096
	Slice   int           // most events between two looks at the effects; 64
	Loaders int           // concurrent reads of a database; 4
	Publish time.Duration // least time between two snapshots; 2 ms
	Logger  *zap.Logger   // nil: silent
}

func (c Config) withDefaults() Config {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Mailbox == 0 {
		c.Mailbox = 4096
	}
	if c.Slice == 0 {
		c.Slice = 64
	}
	if c.Loaders == 0 {
		c.Loaders = 4
	}
	if c.Publish == 0 {
		c.Publish = 2 * time.Millisecond
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	return c
}

// Hand remembers a task, or none. It is called by Run's goroutine, often.
type Hand interface {
	Set(task.ID)
	Clear()
}

// maxSleep bounds how long an idle loop sleeps: trust that the lease renewed is noticed by then.
const maxSleep = 200 * time.Millisecond

// Loop runs a node's core. Its exported methods may be called from any goroutine.
type Loop struct {
	cfg     Config
	log     *zap.Logger
	mail    chan event    // written by anybody, read by Run; full: the writer waits
	stopped chan struct{} // closed when Run takes no more
	wg      sync.WaitGroup

	lastID   atomic.Uint64 // of sessions, replies and watches
	snapshot atomic.Pointer[snapshot]
	stats    atomic.Pointer[Stats]
	turnedAt atomic.Int64 // when Run last settled, by Config.Now, in nanoseconds

	// Run's goroutine only:
	core     *core.Core
	gen      uint64 // of the core: grows when a new one begins; answers to an older one are dropped
	entered  uint64 // calls of the core
	draining bool
	trusted  time.Time
	held     string
	workers  []*workers               // by database
	others   *queue[work[*core.Load]] // look-ups at other nodes
	sessions map[core.SessionID]Outbox
	submits  map[core.ReplyID]chan core.SubmitAnswer
	cancels  map[core.ReplyID]chan core.CancelAnswer
	watches  map[core.WatchID]*watch
	pausing  map[core.ReplyID]chan core.PauseAnswer
	pauses   map[string][]task.Pause // by tenant, for a new core
	limits   map[string][]task.Limit // the same
	bounds   map[string][]task.Bound // the same
	owned    map[uint32]bool
	suspects map[task.ID]int // times that a panic had it in hand
	guards   sync.Map        // uint32 → Guard; written by Guard, read by loaders
	meter    meter
}

// New returns a loop that owns no partition yet.
func New(cfg Config) (*Loop, error) {
	cfg = cfg.withDefaults()
	if len(cfg.Databases) == 0 {
		return nil, errors.New("new loop: no databases")
	}
	if cfg.Core.Random == nil {
		return nil, errors.New("new loop: core.Config.Random is required")
	}
	if cfg.Hand != nil {
		cfg.Core.InHand = cfg.Hand.Set
	}
	l := &Loop{
		cfg:      cfg,
		log:      cfg.Logger.Named("loop"),
		mail:     make(chan event, cfg.Mailbox),
		stopped:  make(chan struct{}),
		core:     core.New(cfg.Core),
		sessions: map[core.SessionID]Outbox{},
		submits:  map[core.ReplyID]chan core.SubmitAnswer{},
		cancels:  map[core.ReplyID]chan core.CancelAnswer{},
		watches:  map[core.WatchID]*watch{},
		pausing:  map[core.ReplyID]chan core.PauseAnswer{},
		pauses:   map[string][]task.Pause{},
		limits:   map[string][]task.Limit{},
		bounds:   map[string][]task.Bound{},
		owned:    map[uint32]bool{},
		suspects: map[task.ID]int{},
	}
	for _, db := range cfg.Databases {
		if db.Store == nil {
			return nil, fmt.Errorf("new loop: database %q has no store", db.Name)
		}
		l.workers = append(l.workers, newWorkers(l, db))
	}
	l.others = newQueue[work[*core.Load]]()
	l.snapshot.Store(&snapshot{})
	l.stats.Store(&Stats{})
	l.turnedAt.Store(cfg.Now().UnixNano())
	return l, nil
}

// Run owns the core until ctx is done. Then it answers whoever waits with ErrStopped, ends the sessions,
// lets the commit in flight finish, and returns once everything it started has ended. It does not
// hand partitions over: Drain and Release do, before.
func (l *Loop) Run(ctx context.Context) error {
	for _, w := range l.workers {
		w.start()
	}
	asking, stopAsking := context.WithCancel(context.Background())
	defer stopAsking()
	for range otherLoaders {
		l.wg.Go(func() { serve(l.others, func(job work[*core.Load]) { l.elsewhere(asking, job) }) })
	}
	timer := time.NewTimer(maxSleep)
	defer timer.Stop()
	l.meter.start(time.Now())
	for pause := time.Duration(0); ; {
		if pause > 0 {
			timer.Reset(pause)
			select {
			case <-ctx.Done():
			case ev := <-l.mail:
				l.meter.wake(time.Now())
				l.handle(ev)
			case <-timer.C:
				l.meter.wake(time.Now())
			}
		}
		if ctx.Err() != nil {
			stopAsking()
			l.stop()
			return nil
		}
		l.drain()
		pause = l.settle()
	}
}

// drain handles what else waits, up to a slice.
func (l *Loop) drain() {
	for range l.cfg.Slice - 1 {
		select {
		case ev := <-l.mail:
			l.handle(ev)
		default:
			return
		}
	}
}

// settle lets the core's timers run, does what it asks for, and returns how long nothing is to be done
// unless an event comes.
func (l *Loop) settle() time.Duration {
	now := l.cfg.Now()
	if l.cfg.Trust != nil {
		if until := l.cfg.Trust(); until.After(l.trusted) {
			l.trusted = until
			l.enter("trust", func(c *core.Core) { c.Trust(until) })
		}
	}
	l.checkHold()
	l.enter("tick", func(c *core.Core) {
		if next := c.Next(); !next.IsZero() && !next.After(now) {
			c.Tick(now)
		}
	})
	l.takeEffects()

	sleep := maxSleep
	l.enter("next", func(c *core.Core) {
		if next := c.Next(); !next.IsZero() {
			sleep = min(sleep, max(next.Sub(now), 0))
		}
	})
	l.turnedAt.Store(now.UnixNano())
	end := time.Now()
	sleep = min(sleep, l.publish(end))
	l.meter.settled(end)
	if s := l.meter.window(end); s != nil {
		s.Mailbox, s.Sessions = len(l.mail), len(l.sessions)
		l.stats.Store(s)
	}
	return sleep
}

// checkHold tells the core whether pushes are held. It comes before the effects are taken, in which the core decides what to
// push: an event that says that a rule is gone may follow from a registry that is not to be believed.
func (l *Loop) checkHold() {
	if l.cfg.Held == nil {
		return
	}
	if why := l.cfg.Held(); why != l.held {
		l.held = why
		now := l.cfg.Now()
		l.enter("hold", func(c *core.Core) { c.Hold(now, why) })
	}
}

// stop answers everybody and waits for what Run started.
func (l *Loop) stop() {
	close(l.stopped)
	for _, w := range l.workers {
		w.stop()
	}
	l.others.close()
	l.wg.Wait()
	for {
		select {
		case <-l.mail: // nobody acts on what came too late; posts end by l.stopped
			continue
		default:
		}
		break
	}
	l.abandon(ErrStopped)
}

// abandon ends all that waits for the core.
func (l *Loop) abandon(reason error) {
	for id, ch := range l.submits {
		ch <- core.SubmitAnswer{Reply: id, Err: reason}
	}
	for id, ch := range l.cancels {
		ch <- core.CancelAnswer{Reply: id, Err: reason}
	}
	for id, ch := range l.pausing {
		ch <- core.PauseAnswer{Reply: id} // for no partition
	}
	for _, w := range l.watches {
		close(w.events)
	}
	for _, out := range l.sessions {
		out.Close(reason)
	}
	clear(l.submits)
	clear(l.cancels)
	clear(l.pausing)
	clear(l.watches)
	clear(l.sessions)
}

// Acquired hands over a partition whose key was won, epoch raised and state read, and returns when it is served
// (or the loop has stopped). Tasks that made the core panic twice are added to its suspects.
func (l *Loop) Acquired(a core.Acquired) {
	done := make(chan struct{})
	l.post("acquired", func(now time.Time) {
		defer close(done)
		p := a.Recovered.Partition.ID
		for id, n := range l.suspects {
			if n > 1 && id.Partition() == p {
				a.Suspects = append(a.Suspects, id)
				delete(l.suspects, id)
			}
		}
		slices.SortFunc(a.Suspects, task.ID.Compare)
		l.owned[p] = true
		l.enterAt("acquired", p, func(c *core.Core) { c.Acquired(now, a) })
		l.snapshotDirty()
		l.publish(time.Now())
	})
	select {
	case <-done:
	case <-l.stopped:
	}
}

// Drop gives up a partition at once; Config.Lost follows.
func (l *Loop) Drop(partition uint32, reason error) {
	l.post("drop", func(now time.Time) {
		l.enterAt("drop", partition, func(c *core.Core) { c.Drop(now, partition, reason) })
	})
}

// Listed says that successors know the executors of a run's roster up to a number.
func (l *Loop) Listed(run, upTo uint64) {
	l.post("listed", func(now time.Time) {
		if run == l.gen {
			l.enter("listed", func(c *core.Core) { c.Listed(now, upTo) })
		}
	})
}

// Release hands over a partition in an orderly way (R13); Config.Released follows, or Lost.
func (l *Loop) Release(partition uint32) {
	l.post("release", func(now time.Time) {
		l.enterAt("release", partition, func(c *core.Core) { c.Release(now, partition) })
	})
}

// Drain tells the sessions that the node goes away, and stops pushing.
func (l *Loop) Drain() {
	l.post("drain", func(now time.Time) {
		l.draining = true
		l.enter("drain", func(c *core.Core) { c.Drain(now) })
	})
}

func (l *Loop) nextID() uint64 { return l.lastID.Add(1) }

// lost forgets what waited for a partition that the core has dropped.
func (l *Loop) lost(p core.LostPartition) {
	delete(l.owned, p.Partition)
	l.snapshotDirty()
	for id, w := range l.watches {
		if w.id.Partition() == p.Partition {
			close(w.events)
			delete(l.watches, id)
			l.enter("unwatch", func(c *core.Core) { c.Unwatch(id) })
		}
	}
	l.log.Warn("lost a partition", telemetry.Partition(p.Partition), telemetry.Epoch(p.Epoch), telemetry.Err(p.Reason))
	if l.cfg.Lost != nil {
		l.cfg.Lost(p)
	}
}
