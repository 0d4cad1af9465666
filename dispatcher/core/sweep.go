package core

import (
	"time"

	"github.com/headrace/headrace/store"
)

// sweep looks for tasks that have expired behind the windows of lanes that don't drain: one read of a
// slice at a time, over the partition's lanes in turn.
type sweep struct {
	lane    *lane // being read; nil: none
	lanes   []*lane
	after   store.Key
	expires bool // a row of this lane can expire
	reading *Load
	gone    []uint64
	at      time.Time // not before
	part    *partition
}

const (
	sweepEvery = 250 * time.Millisecond
	sweepAgain = time.Second // after a round over all lanes
)

func (l *lane) sweepable() bool { return l.more && l.expires }

func (c *Core) wantsSweep(p *partition) bool {
	s := &p.sweep
	if p.takeover.active || p.releasing || s.reading != nil {
		return false
	}
	if s.lane != nil || len(s.lanes) > 0 {
		return true
	}
	for _, l := range p.lanes {
		if l.sweepable() {
			return true
		}
	}
	return false
}

// sweepLanes reads the next slice.
func (c *Core) sweepLanes(p *partition) {
	s := &p.sweep
	s.part = p
	if s.at.After(c.now) || !c.wantsSweep(p) {
		return
	}
	if s.lane == nil && len(s.lanes) == 0 {
		s.lanes = p.sortedLanes()
	}
	for s.lane == nil && len(s.lanes) > 0 {
		if l := s.lanes[0]; l.sweepable() {
			s.lane, s.after, s.expires = l, l.cursor, false
		}
		s.lanes = s.lanes[1:]
	}
	if s.lane == nil {
		s.at = c.now.Add(sweepAgain)
		return
	}
	f := s.lane.flow.function
	s.gone = s.gone[:0]
	s.reading = &Load{
		Kind: LoadReady, Database: p.db.index, Partition: p.id, Epoch: p.epoch,
		Flow:  store.Flow{Tenant: f.tenant.name, Function: f.name, Band: s.lane.flow.band},
		After: s.after, Limit: c.cfg.Slice, MaxBytes: 1, Inline: 0, context: s,
	}
	c.ask(s.reading)
}

// swept ends what has expired of a slice.
func (c *Core) swept(s *sweep, ld *Load, a LoadAnswer) {
	p := s.part
	if s.reading != ld || p.dead {
		return
	}
	s.reading = nil
	s.at = c.now.Add(sweepEvery)
	defer c.armPartition(p)
	if a.Err != nil || p.releasing {
		return
	}
	for _, t := range a.Rows {
		s.after = t.Key()
		at := expiry(t)
		if at.IsZero() {
			continue
		}
		s.expires = true
		seq := t.ID.Seq()
		if at.After(c.now) || p.items[seq] != nil || contains(s.gone, seq) || p.unknown(seq) || t.Record != nil || t.Cancel != nil {
			continue
		}
		c.inHand(p.id, t.ID)
		it := c.load(p, s.lane, t)
		it.place = atCommit
		if !c.expired(it) {
			c.leaveMemory(it)
		}
	}
	if !a.More {
		s.lane.expires = s.expires || s.lane.expires && s.lane.reading != nil
		if s.lane = nil; len(s.lanes) == 0 {
			s.at = c.now.Add(sweepAgain)
		}
	}
}
