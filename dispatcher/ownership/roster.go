package ownership

import (
	"maps"
	"slices"
	"time"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/internal/mutant"
	"github.com/headrace/headrace/shard"
	"github.com/headrace/headrace/store"
)

// rosterLate is how long after a raise of the epoch a push of the owner before may start: R12's grace.
const rosterLate = 1500 * time.Millisecond

// RosterLog is how many changes a roster keeps; who is further behind gets everything.
const RosterLog = 4096

// RosterLife is how long after it was asked for a roster may be used: a takeover takes a TTL and a bit.
func RosterLife(ttl time.Duration) time.Duration { return 2 * ttl }

// Poller is a node in one session of its membership.
type Poller struct {
	Node    shard.NodeID
	Session int64
}

// Roster is what a node tells those that may take its partitions over: who may hold a push of it (ADR 24).
type Roster struct {
	life      time.Duration // RosterLife
	run       uint64
	version   uint64 // of the newest change
	log       []change
	executors map[string]bool
	held      map[uint32]store.Epoch
	pollers   map[Poller]*lastPoll // those whose roster may be used yet
	unlisted  []change             // new executors that are not told as listed, oldest first
}

type change struct {
	version uint64
	core.RosterChange
}

type lastPoll struct {
	version uint64    // what it knows
	at      time.Time // when it asked last
	joined  bool      // the directory has had it in that session
	leftAt  time.Time // when the directory had it no more; zero: it has
}

// RosterNews is what has changed since a version, in order; Full: all that there is.
type RosterNews struct {
	Version uint64
	Full    bool
	Changes []core.RosterChange
}

// NewRoster returns an empty roster. Life is RosterLife of the lease's TTL.
func NewRoster(life time.Duration) *Roster {
	return &Roster{life: life, executors: map[string]bool{}, held: map[uint32]store.Epoch{}, pollers: map[Poller]*lastPoll{}}
}

// Version returns the number of the newest change.
func (r *Roster) Version() uint64 { return r.version }

// Change takes what a core tells. With a new run nothing of the one before holds.
func (r *Roster) Change(run uint64, changes []core.RosterChange) {
	if run != r.run {
		r.run = run
		r.version++
		r.log, r.unlisted = nil, nil
		clear(r.executors)
		clear(r.held)
	}
	for _, c := range changes {
		r.version++
		ch := change{r.version, c}
		if len(r.log) == RosterLog {
			r.log = append(r.log[:0], r.log[RosterLog/2:]...)
		}
		r.log = append(r.log, ch)
		if apply(r.executors, r.held, c); c.Executor != "" && !c.Gone {
			r.unlisted = append(r.unlisted, ch)
		}
	}
}

// apply makes one change.
func apply(executors map[string]bool, held map[uint32]store.Epoch, c core.RosterChange) {
	switch {
	case c.Executor == "" && c.Gone:
		delete(held, c.Partition)
	case c.Executor == "":
		held[c.Partition] = c.Epoch
	case c.Gone:
		delete(executors, c.Executor)
	default:
		executors[c.Executor] = true
	}
}

// Polled notes that a node has asked for news, and knows the roster up to a version. There says whether the directory
// has the node in that session: whose leaving is not seen later counts until its roster is too old.
func (r *Roster) Polled(now time.Time, by Poller, version uint64, there func(Poller) bool) {
	p := r.pollers[by]
	if p == nil {
		p = &lastPoll{}
		r.pollers[by] = p
	}
	p.version, p.at = version, now
	p.joined = p.joined || there(by)
}

// Listed takes the executors off the list that everybody knows who has to: those up to a number may get pushes; 0:
// no more than before. More are left, for whom it is worth looking again in a while.
func (r *Roster) Listed(now time.Time, there func(Poller) bool) (run, upTo uint64, more bool) {
	if len(r.unlisted) == 0 {
		return r.run, 0, false
	}
	r.Look(now, there)
	most := r.version
	for _, p := range r.pollers { // the least of them, in any order
		most = min(most, p.version)
	}
	for len(r.unlisted) > 0 && r.unlisted[0].version <= most {
		upTo = r.unlisted[0].Number
		r.unlisted = r.unlisted[1:]
	}
	return r.run, upTo, len(r.unlisted) > 0
}

// Look forgets nodes whose roster can't be used any more, or to no harm: after its life, what it lets its
// user do comes too late to matter, as do pushes of ours a grace after a node has lost its session. There says
// whether the directory has a node in that session; call Look whenever it changes.
func (r *Roster) Look(now time.Time, there func(Poller) bool) {
	for id, p := range r.pollers {
		switch {
		case there(id):
			p.joined, p.leftAt = true, time.Time{}
		case p.joined && p.leftAt.IsZero():
			p.leftAt = now
		}
		gone := !p.leftAt.IsZero() && now.Sub(p.leftAt) > rosterLate+rosterLate/4
		// A quarter more for two clocks that differ.
		gone = gone || now.Sub(p.at) > r.life+r.life/4+rosterLate+rosterLate/4
		switch {
		case mutant.On("poller-passed-over"): // a node that does not answer within a moment
			gone = now.Sub(p.at) > rosterLate
		case mutant.On("poller-gone-at-once"):
			gone = gone || !p.leftAt.IsZero()
		}
		if gone {
			delete(r.pollers, id)
		}
	}
}

// Since returns what has changed since a version.
func (r *Roster) Since(version uint64) RosterNews {
	n := RosterNews{Version: r.version}
	if version == r.version {
		return n
	}
	if len(r.log) > 0 && version+1 >= r.log[0].version && version < r.version {
		for _, c := range r.log[version+1-r.log[0].version:] {
			n.Changes = append(n.Changes, c.RosterChange)
		}
		return n
	}
	n.Full = true
	for _, id := range slices.Sorted(maps.Keys(r.executors)) {
		n.Changes = append(n.Changes, core.RosterChange{Executor: id})
	}
	for _, p := range slices.Sorted(maps.Keys(r.held)) {
		n.Changes = append(n.Changes, core.RosterChange{Partition: p, Epoch: r.held[p]})
	}
	return n
}

// RosterView is what a node knows of another's roster. The zero value knows nothing.
type RosterView struct {
	version   uint64
	session   int64     // of ours, when it was asked for
	askedAt   time.Time // for the answer that said so
	executors map[string]bool
	held      map[uint32]store.Epoch
}

// Version returns up to where the roster is known.
func (v *RosterView) Version() uint64 { return v.version }

// Take takes the answer to a poll that was sent in a session of this node's, at a time.
func (v *RosterView) Take(n RosterNews, session int64, askedAt time.Time) {
	if n.Full || v.executors == nil {
		v.executors, v.held = map[string]bool{}, map[uint32]store.Epoch{}
	}
	for _, c := range n.Changes {
		apply(v.executors, v.held, c)
	}
	v.version, v.session, v.askedAt = n.Version, session, askedAt
}

// Use returns the executors if the node held a partition under an epoch, and the roster may be used at a time.
func (v *RosterView) Use(partition uint32, epoch store.Epoch, session int64, at time.Time, life time.Duration) ([]string, bool) {
	held, ok := v.held[partition]
	switch {
	case !ok || held != epoch && !mutant.On("roster-old-epoch"):
		return nil, false
	case v.session != session && !mutant.On("roster-old-session"):
		return nil, false
	case at.Sub(v.askedAt) > life && !mutant.On("roster-no-life"):
		return nil, false
	}
	return slices.Sorted(maps.Keys(v.executors)), true
}

// Complete names the executors whose answers end the grace of a takeover, if they are known: roster finds a view
// that may be used. Session is this node's before the acquisition began, now the one after its end; 0: none.
// An owner before this one that had not finished its own takeover does not know all who may hold a try.
func Complete(a *core.Acquired, session, now int64,
	roster func(partition uint32, epoch store.Epoch, session int64, raisedAt time.Time) ([]string, bool)) {
	p, from := &a.Recovered.Partition, a.Epoch-1
	settled := p.Floor == from || mutant.On("roster-unsettled")
	if session != 0 && now == session && from > 0 && settled {
		a.Executors, a.Complete = roster(p.ID, from, session, a.RaisedAt)
	}
}
