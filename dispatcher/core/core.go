package core

import (
	"cmp"
	"slices"
	"time"

	"github.com/headrace/headrace/task"
)

// Core is the state machine of one node. All its methods belong to one goroutine.
type Core struct {
	cfg     Config
	now     time.Time // of the newest call; never goes back
	trust   time.Time // by the membership lease
	heldFor string    // why nothing is pushed; "": it is

	parts     map[uint32]*partition
	order     []*partition // by number
	databases []*database  // by index; nil: none of its partitions is held
	tenants   map[string]*tenant
	sessions  map[SessionID]*session
	opened    []*session // by opening
	executors map[string]*executor
	numbered  uint64  // executors that were new here, so far
	listedTo  uint64  // number of the last one that successors know
	pools     []*pool // by creation
	requests  requests
	watches   map[task.ID][]WatchID
	watched   map[WatchID]task.ID
	pauses    map[string][]task.Pause // by tenant, also of tenants that hold nothing here
	limits    map[string][]task.Limit // what operators say, by tenant
	limited   int                     // downstreams that have a limit
	// Bounds that users set: the rules by tenant, and what there is of them here, by creation.
	boundRules  map[string][]task.Bound
	bounds      []*bound
	settling    []*partition // whose takeover lasts: what runs is not known
	gone        []*goneTries
	forgot      []forgotten // not acquired since a panic
	settleTimer settleAlarm

	timers   timers
	young    items          // whose confirmed try shall be recorded, by when
	inbox    fifo[*session] // sessions with messages that are not handled to their end
	hellos   uint64         // messages read, for the claims of a hello
	poolTurn int            // which pool pushes first
	bytes    int            // that tasks in memory count, all together
	logBytes int
	turned   fifo[*lane] // their flow was paused or resumed
	// What windows of paused flows count, all together.
	pausedBytes int
	pauseWaits  []*pauseWait // by asking
	more        bool         // work is left that waits for no event
	draining    bool
	tries       []*try // to be used again

	fx    *Effects
	spare *Effects
	dirty bool // fx holds something

	hand struct {
		partition uint32
		id        task.ID
		set       bool
	}
}

// New returns a core that owns nothing.
func New(cfg Config) *Core {
	set := func(v *int, d int) { *v = cmp.Or(*v, d) }
	set(&cfg.WindowTasks, 1024)
	set(&cfg.WindowBytes, 1<<20)
	set(&cfg.NodeWindowBytes, 256<<20)
	set(&cfg.CommitChanges, 2000)
	set(&cfg.CommitBytes, 4<<20)
	set(&cfg.InlineBytes, 64<<10)
	set(&cfg.Slice, 256)
	set(&cfg.SessionBytes, 4<<20)
	set(&cfg.TimerTasks, 10_000)
	cfg.TimerHorizon = cmp.Or(cfg.TimerHorizon, time.Minute)
	cfg.RecordAfter = cmp.Or(cfg.RecordAfter, time.Second)
	cfg.ShelfLife = cmp.Or(cfg.ShelfLife, time.Second)
	cfg.Grace = cmp.Or(cfg.Grace, 1500*time.Millisecond)
	if cfg.Standing == nil {
		cfg.Standing = func(string) (int, task.TenantClass) { return 1, task.Standard }
	}
	c := &Core{
		cfg:       cfg,
		parts:     map[uint32]*partition{},
		tenants:   map[string]*tenant{},
		sessions:  map[SessionID]*session{},
		executors: map[string]*executor{},
		young:     items{of: youngLinks},
		requests:  requests{byKey: map[requestKey]*request{}},
		watches:   map[task.ID][]WatchID{},
		watched:   map[WatchID]task.ID{},
		pauses:    map[string][]task.Pause{},
		limits:    map[string][]task.Limit{},

		boundRules: map[string][]task.Bound{},

		fx:    &Effects{},
		spare: &Effects{},
	}
	c.settleTimer.timer.owner = &c.settleTimer
	return c
}

// Trust says until when the membership lease lets the node push and answer. Commits and epoch reads
// extend it by themselves.
func (c *Core) Trust(until time.Time) { c.trust = later(c.trust, until) }

// Hold keeps everything from being pushed, and says why; "" ends that. What runs goes on.
func (c *Core) Hold(now time.Time, why string) {
	c.enter(now)
	held := c.heldFor != ""
	c.heldFor = why
	if held && why == "" {
		for _, p := range c.order {
			c.unpark(p)
			p.db.readWanted = true
			p.db.arm(c)
		}
	}
}

// Drain ends all pushes and tells the sessions that the node goes away. Release gives each partition back.
func (c *Core) Drain(now time.Time) {
	c.enter(now)
	if c.draining {
		return
	}
	c.draining = true
	for _, s := range c.opened {
		c.message(s).GoingAway = true
	}
}

// Tick does what has come due, and a slice of what was left. Call it when Next says.
func (c *Core) Tick(now time.Time) {
	c.enter(now)
	c.more = false
	nano := c.now.UnixNano()
	for range c.cfg.Slice {
		t := c.timers.due(nano)
		if t == nil {
			break
		}
		t.owner.alarm(c)
	}
	c.recordBehind()
	c.turnLanes()
	c.readInbox()
	for _, db := range c.databases {
		if db != nil {
			c.applyCommits(db)
		}
	}
	for _, p := range c.order {
		c.recoverSlice(p)
	}
	c.hand.set = false
}

// Next returns when Tick is wanted: the zero time, not before the next call; a time that is not after
// the last call's, at once.
func (c *Core) Next() time.Time {
	if c.busy() {
		return c.now
	}
	var next time.Time
	if len(c.timers.heap) > 0 {
		next = time.Unix(0, c.timers.heap[0].at)
	}
	if c.young.first != nil {
		next = sooner(next, c.young.first.try.recordAt)
	}
	return next
}

// busy reports whether work is left that waits for no event.
func (c *Core) busy() bool {
	if c.more || c.inbox.len() > 0 || c.turned.len() > 0 {
		return true
	}
	for _, db := range c.databases {
		if db != nil && db.applying.len() > 0 {
			return true
		}
	}
	return false
}

// Take pushes what may run, builds the commits that may leave, and returns what the calls since the
// last Take ask for; nil: nothing. The slices belong to the core again at the next Take; what they
// point to belongs to the shell (a Commit until Committed).
func (c *Core) Take() *Effects {
	for _, s := range c.opened {
		if s.ask && s.message == nil { // in a message of its own: only a second welcome is always answered
			s.ask = false
			c.welcome(s)
		}
	}
	c.schedule()
	c.tellDemand()
	for _, db := range c.databases {
		if db != nil {
			c.launch(db)
			c.checkEpochs(db)
		}
	}
	if checked {
		if err := c.Check(); err != nil {
			panic(err)
		}
	}
	if !c.dirty {
		return nil
	}
	for _, s := range c.opened {
		s.message = nil
	}
	fx := c.fx
	c.fx, c.spare, c.dirty = c.spare, fx, false
	c.fx.reset()
	return fx
}

func (fx *Effects) reset() {
	clear(fx.Send)
	clear(fx.Commits)
	clear(fx.Loads)
	clear(fx.EpochReads)
	clear(fx.Submitted)
	clear(fx.Cancelled)
	clear(fx.Events)
	clear(fx.Lost)
	clear(fx.Paused)
	fx.Send, fx.Close, fx.Commits, fx.Loads = fx.Send[:0], fx.Close[:0], fx.Commits[:0], fx.Loads[:0]
	fx.EpochReads, fx.Submitted, fx.Cancelled = fx.EpochReads[:0], fx.Submitted[:0], fx.Cancelled[:0]
	fx.Events, fx.Lost, fx.Released, fx.Paused = fx.Events[:0], fx.Lost[:0], fx.Released[:0], fx.Paused[:0]
	clear(fx.Roster)
	fx.Roster = fx.Roster[:0]
}

// effects returns where to put an effect.
func (c *Core) effects() *Effects {
	c.dirty = true
	return c.fx
}

// InHand returns what the running call works on: if it panics, that is what the guard blames.
func (c *Core) InHand() (partition uint32, id task.ID, ok bool) {
	return c.hand.partition, c.hand.id, c.hand.set
}

func (c *Core) inHand(partition uint32, id task.ID) {
	c.hand.partition, c.hand.id, c.hand.set = partition, id, true
	if c.cfg.InHand != nil {
		c.cfg.InHand(id)
	}
}

// enter begins a call.
func (c *Core) enter(now time.Time) {
	c.now = later(c.now, now)
	c.hand.set = false
}

// random returns a number in [0, 1).
func (c *Core) random() float64 { return float64(c.cfg.Random()>>11) / (1 << 53) }

// partitionsOf returns the partitions that are held in a database, by number.
func (c *Core) partitionsOf(db *database) []*partition {
	var ps []*partition
	for _, p := range c.order {
		if p.db == db {
			ps = append(ps, p)
		}
	}
	return ps
}

func (c *Core) setPartition(p *partition) {
	c.parts[p.id] = p
	p.db.held++
	i, _ := slices.BinarySearchFunc(c.order, p.id, func(p *partition, id uint32) int { return cmp.Compare(p.id, id) })
	c.order = slices.Insert(c.order, i, p)
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// sooner returns the earlier of two times; a zero time is none.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
