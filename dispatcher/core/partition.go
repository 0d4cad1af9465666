package core

import (
	"time"

	"github.com/headrace/headrace/store"
)

// partition is one partition that the node holds. When it is lost it is dead: whatever still points to
// it finds that and does nothing.
type partition struct {
	id    uint32
	db    *database
	epoch store.Epoch
	floor store.Epoch // as it will be on disk at the latest when anybody relies on it (R14)
	seq   uint64      // highest sequence number given
	old   uint64      // highest sequence number given by earlier owners
	known uint64      // inserts up to this sequence number are known to be on disk, or not to be; see unknown
	push  uint64      // number of the newest push
	dead  bool

	raisedAt  time.Time
	silent    map[string]time.Time // by executor: since when nobody has answered its beats, if the previous owner said so
	unheard   map[*executor]bool   // what the release says is silent, so no beat of theirs is answered any more
	checkedAt time.Time            // when the newest commit or epoch read was sent that found the epoch current
	timer     timer
	parked    []*lane // may not run until the next check of the epoch

	items map[uint64]*item // by sequence number: every task in memory whose insert is on disk
	lanes map[store.Flow]*lane
	due   dueIndex
	gets  map[uint64]*getting
	stat  PartitionStat
	usage map[*tenant]*usage

	takeover  takeover
	releasing bool // Release was called: nothing new, no pushes
	closing   bool // the last commit is queued or on its way: nothing at all
	floorDue  bool // raise the floor in the next commit
	flagged   bool // in its database's list of partitions that want a part without changes
	pending   int  // changes queued or on their way
	unsure    int  // pushes that are not confirmed, announced ones too (R13)
	recording int  // records queued or on their way
	adopting  int  // adopted tries whose record is not on disk yet
	policies  map[*function]uint64
	sweep     sweep
	settleBy  time.Time // when its takeover keeps bounds from letting anything start no longer

	part int // index of its part in the batch being built
	in   uint64
}

// unknown reports whether a row that a read has found is one whose insert is still on its way: on disk
// already, and its commit's answer not here. It is taken when that comes, not before, or it would be taken twice.
func (p *partition) unknown(seq uint64) bool { return seq > p.known }

// database is what the node knows of one database.
type database struct {
	index    Database
	held     int // partitions
	ring     fifo[*commitQueue]
	queued   int // changes
	bytes    int // of queued changes
	inFlight *Commit
	leftAt   time.Time // when it was built
	number   uint64    // of the newest commit
	applying fifo[*appliedCommit]
	flagged  []*partition
	timer    timer
	free     *Commit

	fullUntil time.Time // the disk is full: only what frees space is tried again, at that time
	fullTries int

	reading    *EpochRead
	readAt     time.Time // when the newest epoch read was asked for
	readNumber uint64
	readWanted bool
}

// slow reports whether the database has kept a commit for so long that new submits are refused and
// pushes stop.
func (db *database) slow(now time.Time) bool {
	return db.inFlight != nil && now.Sub(db.leftAt) > slowCommit
}

const (
	slowCommit     = 5 * time.Second
	epochReadEvery = time.Second
	epochReadSoon  = 20 * time.Millisecond // between two that pushes wait for
	trustByCheck   = 400 * time.Millisecond
)

func (c *Core) database(i Database) *database {
	for int(i) >= len(c.databases) {
		c.databases = append(c.databases, nil)
	}
	if c.databases[i] == nil {
		db := &database{index: i}
		db.timer.owner = db
		c.databases[i] = db
	}
	return c.databases[i]
}

// flag asks for a part in the next commit even if there are no changes.
func (c *Core) flag(p *partition) {
	if !p.flagged {
		p.flagged = true
		p.db.flagged = append(p.db.flagged, p)
	}
}

// Drop drops a partition: its state is gone, and who waits is answered. The core says so in
// Effects.Lost, too.
func (c *Core) Drop(now time.Time, partition uint32, reason error) {
	c.enter(now)
	if p := c.parts[partition]; p != nil {
		c.lose(p, reason)
	}
}

// lose drops a partition's state. Sessions that hold tries of it are closed: their executors come back
// and say what they hold, to whoever owns the partition by then (R14).
func (c *Core) lose(p *partition, reason error) {
	if p.dead {
		return
	}
	c.forget(p)
	fx := c.effects()
	fx.Lost = append(fx.Lost, LostPartition{Partition: p.id, Epoch: p.epoch, Reason: reason})
}

// loseBehind drops a partition of which an executor knows a newer epoch. The store says whether that is true; if it
// is not (a database that was restored), who still holds the key raises above it (R5).
func (c *Core) loseBehind(p *partition, known store.Epoch) {
	if p.dead {
		return
	}
	c.forget(p)
	fx := c.effects()
	fx.Lost = append(fx.Lost, LostPartition{Partition: p.id, Epoch: p.epoch, Above: known, Reason: ErrEpochBehind})
}

// forget takes a partition out of everything.
func (c *Core) forget(p *partition) {
	p.dead = true
	c.leaves(p)
	c.settled(p)
	c.unhold(p) // before executors go that are known by its tries only
	p.db.held--
	delete(c.parts, p.id)
	for i, q := range c.order {
		if q == p {
			c.order = append(c.order[:i], c.order[i+1:]...)
			break
		}
	}
	c.timers.unset(&p.timer)
	for _, it := range p.sorted() {
		c.leaveMemory(it)
		for _, w := range it.waiting {
			c.answerCancel(w, CancelAnswer{Err: ErrNotOwner})
		}
		it.waiting = nil
	}
	for _, l := range p.sortedLanes() {
		c.timers.unset(&l.timer)
		l.flow.remove(c, l)
	}
	for _, g := range p.sortedGets() {
		for _, cl := range g.cancels {
			c.answerCancel(cl, CancelAnswer{Err: ErrNotOwner})
		}
	}
	c.dropWatches(p)
	c.requests.drop(c, p)
	if p.db.held == 0 {
		c.timers.unset(&p.db.timer)
	}
}
