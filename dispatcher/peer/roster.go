package peer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/headrace/headrace/dispatcher/core"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/shard"
	"github.com/headrace/headrace/store"
)

// Times of the roster. Life is RosterLife of the lease's TTL.
const (
	rosterWait = time.Second             // most that a poll waits for news
	rosterLate = 1500 * time.Millisecond // how long after a raise of the epoch a push of the owner before may start: R12's grace
	rosterTick = 100 * time.Millisecond  // between looks whether a node that does not answer may be passed over
	rosterLog  = 4096                    // changes that are kept; who is further behind gets everything
)

// RosterLife is how long after it was asked for a roster may be used: a takeover takes a TTL and a bit.
func RosterLife(ttl time.Duration) time.Duration { return 2 * ttl }

// RosterConfig says how a roster is kept.
type RosterConfig struct {
	Life      time.Duration // RosterLife
	Now       func() time.Time
	Directory func() *shard.Directory
	// Listed is told up to which number of a run executors may get pushes. It may block for a while.
	Listed func(run, upTo uint64)
}

// errNoRoster is what a node answers that keeps none.
var errNoRoster = errors.New("there is no roster")

// Roster is what this node tells those that may take its partitions over: see the package's doc.
type Roster struct {
	cfg  RosterConfig
	wake chan struct{} // capacity 1

	mu        sync.Mutex // guards following
	run       uint64
	version   uint64 // of the newest change
	log       []change
	executors map[string]bool
	held      map[uint32]store.Epoch
	changed   chan struct{}        // closed and replaced at each change
	pollers   map[poller]*lastPoll // those whose roster may be used yet
	unlisted  []change             // new executors that are not told as listed, oldest first
}

type change struct {
	version uint64
	core.RosterChange
}

// poller is a node in one session of its membership.
type poller struct {
	node    shard.NodeID
	session int64
}

type lastPoll struct {
	version uint64    // what it knows
	at      time.Time // when it asked last
	joined  bool      // the directory has had it in that session
	leftAt  time.Time // when the directory had it no more; zero: it has
}

// NewRoster returns an empty roster.
func NewRoster(cfg RosterConfig) *Roster {
	return &Roster{cfg: cfg, wake: make(chan struct{}, 1), executors: map[string]bool{}, held: map[uint32]store.Epoch{},
		changed: make(chan struct{}), pollers: map[poller]*lastPoll{}}
}

// Change is loop.Config.Roster.
func (r *Roster) Change(run uint64, changes []core.RosterChange) {
	r.mu.Lock()
	if run != r.run { // nothing of the run before holds
		r.run = run
		r.version++
		r.log, r.unlisted = nil, nil
		clear(r.executors)
		clear(r.held)
	}
	for _, c := range changes {
		r.version++
		ch := change{r.version, c}
		if len(r.log) == rosterLog {
			r.log = append(r.log[:0], r.log[rosterLog/2:]...)
		}
		r.log = append(r.log, ch)
		switch {
		case c.Executor == "" && c.Gone:
			delete(r.held, c.Partition)
		case c.Executor == "":
			r.held[c.Partition] = c.Epoch
		case c.Gone:
			delete(r.executors, c.Executor)
		default:
			r.executors[c.Executor] = true
			r.unlisted = append(r.unlisted, ch)
		}
	}
	close(r.changed)
	r.changed = make(chan struct{})
	r.mu.Unlock()
	r.stir()
}

// stir has Run look again.
func (r *Roster) stir() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run tells Listed until ctx ends.
func (r *Roster) Run(ctx context.Context) {
	tick := time.NewTicker(rosterTick)
	defer tick.Stop()
	for {
		run, upTo, more := r.known()
		if upTo > 0 {
			r.cfg.Listed(run, upTo)
		}
		var again <-chan time.Time
		if more {
			again = tick.C
		}
		select {
		case <-r.wake:
		case <-again:
		case <-ctx.Done():
			return
		}
	}
}

// known takes the executors off the list that everybody knows who has to, and reports whether more are left.
func (r *Roster) known() (run, upTo uint64, more bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.unlisted) == 0 {
		return r.run, 0, false
	}
	r.look()
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

// Update is called when the directory has changed.
func (r *Roster) Update() {
	r.mu.Lock()
	r.look()
	r.mu.Unlock()
	r.stir()
}

// look forgets nodes whose roster can't be used any more, or to no harm: after its life, what it lets its
// user do comes too late to matter, as do pushes of ours a grace after a node has lost its session.
func (r *Roster) look() {
	now := r.cfg.Now()
	d := r.cfg.Directory()
	for id, p := range r.pollers {
		n, there := d.Node(id.node)
		there = there && n.Session == id.session
		switch {
		case there:
			p.joined, p.leftAt = true, time.Time{}
		case p.joined && p.leftAt.IsZero():
			p.leftAt = now
		}
		gone := !p.leftAt.IsZero() && now.Sub(p.leftAt) > rosterLate+rosterLate/4
		// A quarter more for two clocks that differ.
		if gone || now.Sub(p.at) > r.cfg.Life+r.cfg.Life/4+rosterLate+rosterLate/4 {
			delete(r.pollers, id)
		}
	}
}

// poll answers PollRoster.
func (r *Roster) poll(ctx context.Context, stop <-chan struct{}, req *headracev1.PollRosterRequest) *headracev1.PollRosterResponse {
	id := poller{shard.NodeID(req.NodeId), req.Session}
	r.mu.Lock()
	p := r.pollers[id]
	if p == nil {
		p = &lastPoll{}
		r.pollers[id] = p
	}
	p.version, p.at = req.Version, r.cfg.Now()
	changed, news := r.changed, req.Version != r.version
	r.mu.Unlock()
	r.stir()
	if !news {
		t := time.NewTimer(rosterWait)
		defer t.Stop()
		select {
		case <-changed:
		case <-t.C:
		case <-stop:
		case <-ctx.Done():
		}
	}
	return r.since(req.Version)
}

// since returns what has changed since a version.
func (r *Roster) since(version uint64) *headracev1.PollRosterResponse {
	r.mu.Lock()
	defer r.mu.Unlock()
	res := &headracev1.PollRosterResponse{Version: r.version}
	if version == r.version {
		return res
	}
	if len(r.log) > 0 && version+1 >= r.log[0].version && version < r.version {
		for _, c := range r.log[version+1-r.log[0].version:] {
			res.Changes = append(res.Changes, &headracev1.RosterChange{ExecutorId: []byte(c.Executor), Partition: c.Partition, Epoch: c.Epoch, Gone: c.Gone})
		}
		return res
	}
	res.Full = true
	for id := range r.executors {
		res.Changes = append(res.Changes, &headracev1.RosterChange{ExecutorId: []byte(id)})
	}
	for p, e := range r.held {
		res.Changes = append(res.Changes, &headracev1.RosterChange{Partition: p, Epoch: e})
	}
	return res
}

// PollRoster tells which executors may hold a push of this node.
func (s *Service) PollRoster(ctx context.Context, req *headracev1.PollRosterRequest) (*headracev1.PollRosterResponse, error) {
	if s.roster == nil || req.NodeId == "" {
		return nil, fmt.Errorf("poll the roster: %w", errNoRoster)
	}
	return s.roster.poll(ctx, s.stop, req), nil
}

// rosterView is what a node knows of another's roster.
type rosterView struct {
	mu        sync.Mutex // guards following
	version   uint64
	session   int64     // of ours, when it was asked for
	askedAt   time.Time // for the answer that said so
	executors map[string]bool
	held      map[uint32]store.Epoch
}

func (v *rosterView) take(m *headracev1.PollRosterResponse, session int64, askedAt time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if m.Full || v.executors == nil {
		v.executors, v.held = map[string]bool{}, map[uint32]store.Epoch{}
	}
	for _, c := range m.Changes {
		switch id := string(c.ExecutorId); {
		case id == "" && c.Gone:
			delete(v.held, c.Partition)
		case id == "":
			v.held[c.Partition] = c.Epoch
		case c.Gone:
			delete(v.executors, id)
		default:
			v.executors[id] = true
		}
	}
	v.version, v.session, v.askedAt = m.Version, session, askedAt
}

// use returns the executors if the node held a partition under an epoch, and the roster may be used at a time.
func (v *rosterView) use(partition uint32, epoch store.Epoch, session int64, at time.Time, life time.Duration) ([]string, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if held, ok := v.held[partition]; !ok || held != epoch || v.session != session || at.Sub(v.askedAt) > life {
		return nil, false
	}
	ids := make([]string, 0, len(v.executors))
	for id := range v.executors {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids, true
}

// pollRoster follows the peer's roster until it leaves. One that has none does not matter: its partitions are
// taken over with the whole grace.
func (p *peer) pollRoster(cfg *Config) {
	pause := pauseMin
	for p.ctx.Err() == nil {
		session := cfg.Session()
		err := errNoRoster
		if session != 0 {
			askedAt := cfg.Now()
			p.roster.mu.Lock()
			version := p.roster.version
			p.roster.mu.Unlock()
			ctx, cancel := context.WithTimeout(p.ctx, readMax)
			var m *headracev1.PollRosterResponse
			if m, err = p.client.PollRoster(ctx, &headracev1.PollRosterRequest{NodeId: string(cfg.NodeID), Session: session, Version: version}); err == nil {
				p.roster.take(m, session, askedAt)
			}
			cancel()
		}
		if err == nil {
			pause = pauseMin
			continue
		}
		select {
		case <-time.After(pause):
		case <-p.ctx.Done():
		}
		pause = min(2*pause, pauseMax)
	}
}

// Executors returns all executors to which the owner of a partition before this node may have pushed, under an
// epoch; false: nobody knows, or nobody can be sure. Session is this node's since before it raised the epoch, at that
// time.
func (r *Router) Executors(partition uint32, epoch store.Epoch, session int64, raisedAt time.Time) ([]string, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, p := range r.peers {
		if ids, ok := p.roster.use(partition, epoch, session, raisedAt, r.cfg.RosterLife); ok {
			return ids, true
		}
	}
	for _, d := range r.left { // an owner that died has left the directory: that is why we are asked
		if ids, ok := d.roster.use(partition, epoch, session, raisedAt, r.cfg.RosterLife); ok {
			return ids, true
		}
	}
	return nil, false
}
