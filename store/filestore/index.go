package filestore

import (
	"github.com/headrace/headrace/store"
)

// later collects a part's index changes, to write them space by space and in key order: the engine's
// table in memory is a skip list, and finds the next place fast if it is near the last one.
type later struct {
	on                                     bool
	dropIndex, putIndex, dropList, putList []*store.Task
}

// apart reports whether each change concerns a task of its own, so that those to the indexes may be
// written in another order: what is inserted has a number above the partition's, what is finished
// one up to it, and there are no updates.
func apart(changes []store.Change, seq uint64) bool {
	for i := range changes {
		switch c := &changes[i]; c.Op {
		case store.Insert:
			if c.Task.ID.Seq() <= seq {
				return false
			}
		case store.Finish:
			if c.Task.ID.Seq() > seq {
				return false
			}
		case store.Update:
			return false
		}
	}
	return true
}

// writeLater writes what was put off.
func (c *commit) writeLater(p *partition) error {
	l := &c.later
	l.on = false
	for _, t := range l.dropIndex {
		if err := c.dropIndex(p, t); err != nil {
			return err
		}
	}
	for _, t := range l.putIndex {
		if err := c.putIndex(p, t); err != nil {
			return err
		}
	}
	for i := range l.dropList { // lists are newest first
		if err := c.dropList(l.dropList[len(l.dropList)-1-i]); err != nil {
			return err
		}
	}
	for i := range l.putList {
		if err := c.putList(l.putList[len(l.putList)-1-i]); err != nil {
			return err
		}
	}
	l.dropIndex, l.putIndex, l.dropList, l.putList = l.dropIndex[:0], l.putIndex[:0], l.dropList[:0], l.putList[:0]
	return nil
}

// indexKey is the place of a hot row in the ready or the due index.
func (c *commit) indexKey(p *partition, t *store.Task) []byte {
	if t.Ready() {
		c.s.key = appendIndex(appendFlow(c.s.key[:0], readySpace, p.ID, t.Flow()), t.Key())
	} else {
		c.s.key = appendIndex(appendPart(c.s.key[:0], dueSpace, p.ID), dueKey(t))
	}
	return c.s.key
}

func (c *commit) listKey(t *store.Task) []byte {
	k := appendText(appendList(c.s.key[:0], t.Tenant, t.State), t.Function)
	c.s.key = appendPlace(k, t.CreatedAt, t.ID)
	return c.s.key
}

func (c *commit) putIndex(p *partition, t *store.Task) error {
	if c.later.on {
		c.later.putIndex = append(c.later.putIndex, t)
		return nil
	}
	return c.b.Set(c.indexKey(p, t), nil, nil)
}

// dropIndex takes a row out of its index. An entry is set once and deleted once, so that the two can
// vanish together instead of leaving a tombstone: that saves most of the work of flushes and
// compactions.
func (c *commit) dropIndex(p *partition, t *store.Task) error {
	if c.later.on {
		c.later.dropIndex = append(c.later.dropIndex, t)
		return nil
	}
	return c.b.SingleDelete(c.indexKey(p, t), nil)
}

func (c *commit) putList(t *store.Task) error {
	if c.later.on {
		c.later.putList = append(c.later.putList, t)
		return nil
	}
	return c.b.Set(c.listKey(t), nil, nil)
}

// dropList is to lists what dropIndex is to indexes.
func (c *commit) dropList(t *store.Task) error {
	if c.later.on {
		c.later.dropList = append(c.later.dropList, t)
		return nil
	}
	return c.b.SingleDelete(c.listKey(t), nil)
}

func (c *commit) moveList(old, t *store.Task) error {
	if err := c.dropList(old); err != nil {
		return err
	}
	return c.putList(t)
}
