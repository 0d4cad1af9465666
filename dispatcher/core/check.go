package core

import (
	"time"

	"github.com/headrace/headrace/internal/mutant"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/store"
)

// beat is one beat of an executor, and when it was read.
type beat struct {
	number uint64
	at     time.Time
}

// beatsKept is how many beats of a session are remembered: they come at least three a second, and none
// older than the shelf life is of use for a push. An answer of one a second finds its beat here, too.
const beatsKept = 16

// beatAge is how old the beat may be that a push names. What is left of the shelf life is for the way.
func beatAge(shelfLife time.Duration) time.Duration { return shelfLife * 4 / 5 }

// beatFor returns the newest beat that was read before the partition's epoch was last checked, if it
// is young enough for a push (R4). Naming it answers it (R8).
func (s *session) beatFor(p *partition, now time.Time, shelfLife time.Duration) (beat, bool) {
	b, ok := s.checkedBeat(p.checkedAt)
	return b, ok && now.Sub(b.at) <= beatAge(shelfLife)
}

// checkedBeat returns the newest beat that was read before a check that was sent at the given time.
func (s *session) checkedBeat(sentAt time.Time) (beat, bool) {
	for i := len(s.beats) - 1; i >= 0; i-- {
		if b := s.beats[i]; !b.at.After(sentAt) || mutant.On("beat-checked-before") {
			return b, true
		}
	}
	return beat{}, false
}

// checked notes that a partition's epoch was found current by a commit or read that was sent then.
func (c *Core) checked(p *partition, sentAt time.Time) {
	if sentAt.After(p.checkedAt) {
		p.checkedAt = sentAt
		c.unpark(p)
		if len(c.pauseWaits) > 0 {
			c.stepPauses()
		}
	}
}

// checkEpochs asks for the epochs of a database's partitions: once a second, and when a push waits for it.
func (c *Core) checkEpochs(db *database) {
	if !db.readWanted || db.reading != nil {
		return
	}
	if c.now.Sub(db.readAt) < c.readPause(db) {
		db.arm(c)
		return
	}
	ps := c.partitionsOf(db)
	if len(ps) == 0 {
		db.readWanted = false
		return
	}
	db.readWanted = false
	db.readAt = c.now
	db.readNumber++
	r := &EpochRead{Database: db.index, number: db.readNumber, Partitions: make([]uint32, len(ps)), parts: ps}
	for i, p := range ps {
		r.Partitions[i] = p.id
	}
	db.reading = r
	fx := c.effects()
	fx.EpochReads = append(fx.EpochReads, r)
	db.arm(c)
}

// readPause is how long after one epoch read the next one may follow. While the database stalls, or all pushes
// are held, they wait for something else.
func (c *Core) readPause(db *database) time.Duration {
	if db.slow(c.now) || c.heldFor != "" {
		return epochReadEvery
	}
	return epochReadSoon
}

// EpochsRead takes the epochs that were asked for. SentAt is when they were asked for at the database.
func (c *Core) EpochsRead(now, sentAt time.Time, r *EpochRead, epochs []store.Epoch, err error) {
	c.enter(now)
	db := c.database(r.Database)
	if db.reading != r {
		return
	}
	db.reading = nil
	c.endSilent()
	if err != nil || len(epochs) != len(r.parts) {
		// The database can't be reached: the lease alone says whether executors may go on (R8).
		if c.now.Before(c.trust) {
			c.answerBeats(r.parts, r.askedAt(db))
		}
		db.arm(c)
		return
	}
	current := r.parts[:0]
	for i, p := range r.parts {
		switch {
		case p.dead:
		case epochs[i] != p.epoch && !mutant.On("no-idle-check") && !mutant.On("fenced-keeps") && !mutant.On("fenced-keeps"):
			c.lose(p, store.ErrFenced)
		default:
			current = append(current, p)
			c.checked(p, sentAt)
		}
	}
	c.answerBeats(current, sentAt)
	db.arm(c)
}

// askedAt returns when the core asked for the read.
func (r *EpochRead) askedAt(db *database) time.Time { return db.readAt }

// answerBeats answers, in each session, the newest beat that was read before sentAt.
func (c *Core) answerBeats(ps []*partition, sentAt time.Time) {
	var epochs []*headracev1.PartitionEpoch
	for _, p := range ps {
		if !p.dead {
			epochs = append(epochs, &headracev1.PartitionEpoch{Partition: p.id, Epoch: p.epoch})
		}
	}
	if len(epochs) == 0 {
		return
	}
	for _, s := range c.opened {
		b, ok := s.checkedBeat(sentAt)
		if !ok {
			continue
		}
		answered := c.heard(s.executor, epochs)
		if len(answered) == 0 {
			continue
		}
		s.executor.answeredAt = c.now
		m := c.message(s)
		m.BeatAnswer = &headracev1.BeatAnswer{Number: b.number, Partitions: answered}
	}
}

// silence is how long a session may be without a beat before it counts as dead.
const silence = 10 * time.Second

// endSilent ends sessions whose streams are open but say nothing any more. Their tries are counted
// lost in time, which nobody would do while a session holds them.
func (c *Core) endSilent() {
	for i := len(c.opened) - 1; i >= 0; i-- {
		s := c.opened[i]
		last := s.openedAt
		if n := len(s.beats); n > 0 {
			last = s.beats[n-1].at
		}
		if c.now.Sub(last) > silence {
			c.endSession(s)
		}
	}
}
