package loop

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"

	"github.com/headrace/headrace/dispatcher/core"
)

// snapshot is what other goroutines may know at once. It never changes, but for the sends.
type snapshot struct {
	parts []core.PartitionStat // by partition
	sent  []atomic.Int64       // tasks sent to each since it was published
}

func (s *snapshot) find(partition uint32) (int, bool) {
	return slices.BinarySearchFunc(s.parts, partition, func(st core.PartitionStat, p uint32) int { return cmp.Compare(st.Partition, p) })
}

// Partitions returns what the core knew of its partitions a moment ago (Config.Publish), by partition. The
// caller must not change it.
func (l *Loop) Partitions() []core.PartitionStat { return l.snapshot.Load().parts }

// Backlog returns a partition's backlog by the last snapshot, and what was sent since; false: it is not held here.
func (l *Loop) Backlog(partition uint32) (int64, bool) {
	s := l.snapshot.Load()
	i, ok := s.find(partition)
	if !ok {
		return 0, false
	}
	return s.parts[i].Backlog + s.sent[i].Load(), true
}

// Sending says that n tasks are on their way to a partition, for Backlog.
func (l *Loop) Sending(partition uint32, n int) {
	s := l.snapshot.Load()
	if i, ok := s.find(partition); ok {
		s.sent[i].Add(int64(n))
	}
}

// Turned is when the loop last went round, by Config.Now: it does so every 200 ms at least, unless it hangs.
func (l *Loop) Turned() time.Time { return time.Unix(0, l.turnedAt.Load()) }

// publish makes a snapshot if the last one is old enough. It returns how long to sleep at most, so that
// the last change of a burst is published too.
func (l *Loop) publish(now time.Time) time.Duration {
	if age := now.Sub(l.meter.published); age < l.cfg.Publish && age >= 0 {
		if l.meter.quiet() {
			return maxSleep
		}
		return l.cfg.Publish - age
	}
	if l.meter.quiet() {
		return maxSleep
	}
	l.meter.published, l.meter.publishedAt = now, l.meter.events
	l.meter.dirty = false
	l.look("stats", func(c *core.Core) {
		parts := c.Stats()
		l.snapshot.Store(&snapshot{parts: parts, sent: make([]atomic.Int64, len(parts))})
	})
	return maxSleep
}

// snapshotDirty makes the next settle publish without waiting: a partition came or went.
func (l *Loop) snapshotDirty() {
	l.meter.dirty = true
	l.meter.published = time.Time{}
}

// Stats is how busy the loop is, over the last second or so.
type Stats struct {
	BusyRatio      float64 // share of time in which it did something: 1 is its limit
	MicrosPerEvent float64
	Events         uint64 // in all
	Commits        uint64 // in all
	Pushes         uint64 // in all
	Busy           time.Duration
	CommitTime     time.Duration // mean of the window; 0: no commit
	PushRate       float64       // a second, in the window
	Mailbox        int           // events that waited at the end of the window
	Sessions       int
}

// Stats returns the last window's figures. BusyRatio is also what a node's load is judged by.
func (l *Loop) Stats() Stats { return *l.stats.Load() }

// meter measures the loop. Run's goroutine only.
type meter struct {
	events, commits, pushes uint64
	busy, commitTime        time.Duration

	published   time.Time
	publishedAt uint64 // events at that time
	dirty       bool
	busySince   time.Time

	since                            time.Time // start of the window, and the counters then
	wasEvents, wasCommits, wasPushes uint64
	wasBusy, wasCommitTime           time.Duration
}

func (m *meter) start(now time.Time) { m.since, m.busySince = now, now }

// wake ends a pause, settled a piece of work.
func (m *meter) wake(now time.Time) { m.busySince = now }

func (m *meter) settled(now time.Time) {
	m.busy += now.Sub(m.busySince)
	m.busySince = now
}

// quiet reports whether nothing happened since the last snapshot.
func (m *meter) quiet() bool { return !m.dirty && m.events == m.publishedAt }

// window ends a window of a second and returns its figures; nil before.
func (m *meter) window(now time.Time) *Stats {
	long := now.Sub(m.since)
	if long < time.Second {
		return nil
	}
	s := &Stats{Events: m.events, Commits: m.commits, Pushes: m.pushes, Busy: m.busy}
	s.BusyRatio = min(float64(m.busy-m.wasBusy)/float64(long), 1)
	if n := m.events - m.wasEvents; n > 0 {
		s.MicrosPerEvent = float64((m.busy - m.wasBusy).Nanoseconds()) / 1000 / float64(n)
	}
	if n := m.commits - m.wasCommits; n > 0 {
		s.CommitTime = (m.commitTime - m.wasCommitTime) / time.Duration(n)
	}
	s.PushRate = float64(m.pushes-m.wasPushes) / long.Seconds()
	m.since, m.wasEvents, m.wasCommits, m.wasPushes = now, m.events, m.commits, m.pushes
	m.wasBusy, m.wasCommitTime = m.busy, m.commitTime
	return s
}

// Fill returns how full the mailbox is, 0 to 1.
func (l *Loop) Fill() float64 { return float64(len(l.mail)) / float64(cap(l.mail)) }

// Load says how near the loop is to refusing submits, 0 to 1, and how many tries it starts a second (0: unknown).
func (l *Loop) Load() (pressure, rate float64) { return l.Fill(), l.Stats().PushRate }
