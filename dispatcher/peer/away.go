package peer

import (
	"cmp"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/headrace/headrace/dispatcher/core"
)

// awayLife is how long a refusal speaks against a partition whose owner has told nothing newer.
const awayLife = time.Second

// away are the partitions that did not take a submit lately. There are as many as are known at most.
type away struct {
	mu    sync.Mutex // guards following
	parts map[uint32]outage
}

// outage is how long a partition has not taken what it was sent, as far as that was noticed.
type outage struct{ since, last time.Time }

// note takes how a submit to a partition ended.
func (a *away) note(now time.Time, partition uint32, err error) {
	refused := errors.Is(err, core.ErrNotOwner) || errors.Is(err, core.ErrStoreSlow) || errors.Is(err, core.ErrUnknownOutcome)
	a.mu.Lock()
	defer a.mu.Unlock()
	o, there := a.parts[partition]
	switch {
	case !refused:
		delete(a.parts, partition)
	case !there:
		if a.parts == nil {
			a.parts = map[uint32]outage{}
		}
		a.parts[partition] = outage{now, now}
	default:
		o.last = now
		a.parts[partition] = o
	}
}

func (a *away) get(partition uint32) (o outage, there bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	o, there = a.parts[partition]
	return o, there
}

func (a *away) end(partition uint32, of outage) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.parts[partition] == of {
		delete(a.parts, partition)
	}
}

// standing is what a submit to a partition may expect, the best first.
type standing uint8

const (
	up      standing = iota // its owner has it, and has refused nothing since it said so
	unheard                 // its owner has not said that it has it
	refuses                 // a submit was refused lately
	ownerless
)

// stand returns how a partition stands, what waits in it, and what to tell about tasks that are sent there.
func (r *Router) stand(partition uint32) (st standing, backlog int64, sent func(int)) {
	st, sent = unheard, func(int) {}
	var heard time.Time // when the owner told that it has the partition
	if n, here := r.local.Backlog(partition); here {
		st, backlog, sent = up, n, func(n int) { r.local.Sending(partition, n) }
	} else {
		p := r.peer(r.cfg.Directory().Owners[partition])
		if p == nil {
			return ownerless, 0, sent
		}
		s := p.stats.Load()
		i, found := slices.BinarySearchFunc(s.parts, partition, func(q core.PartitionStat, id uint32) int { return cmp.Compare(q.Partition, id) })
		if found {
			backlog, sent = s.parts[i].Backlog+s.sent[i].Load(), func(n int) { s.sent[i].Add(int64(n)) }
			if s.fresh() {
				st, heard = up, s.at
			}
		}
	}
	if o, there := r.away.get(partition); there {
		switch old := time.Since(o.last) > awayLife; {
		case st == up && (old || heard.After(o.last.Add(statsEvery))): // it has come back since
			r.away.end(partition, o)
		case st == up || !old:
			st = max(st, refuses)
		}
	}
	return st, backlog, sent
}

// Up reports whether a partition is likely to take a submit now.
func (r *Router) Up(partition uint32) bool {
	st, _, _ := r.stand(partition)
	return st == up
}

// Away reports since when a partition has taken no submit, as far as this node noticed; false: it took the last one, or
// its owner has told since that it has it.
func (r *Router) Away(partition uint32) (since time.Time, away bool) {
	if r.Up(partition) {
		return time.Time{}, false
	}
	o, away := r.away.get(partition)
	return o.since, away
}

// Pick chooses between two candidate partitions for n tasks: the one that is more likely to take them; of two that are, the
// one with the shorter backlog, by what its owner told last and what was sent from here since; a where they are
// equal. False: nobody can be asked for either.
func (r *Router) Pick(a, b uint32, n int) (uint32, bool) {
	standA, backlogA, sentA := r.stand(a)
	standB, backlogB, sentB := r.stand(b)
	switch {
	case standA == ownerless && standB == ownerless:
		return 0, false
	case standB < standA, standB == standA && backlogB < backlogA:
		sentB(n)
		return b, true
	}
	sentA(n)
	return a, true
}
