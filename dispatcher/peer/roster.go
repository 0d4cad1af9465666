package peer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/dispatcher/ownership"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/shard"
	"github.com/headrace/headrace/store"
)

// Times of the roster.
const (
	rosterWait = time.Second            // most that a poll waits for news
	rosterTick = 100 * time.Millisecond // between looks whether a node that does not answer may be passed over
)

// RosterConfig says how a roster is kept.
type RosterConfig struct {
	Life      time.Duration // ownership.RosterLife
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

	mu      sync.Mutex // guards following
	roster  *ownership.Roster
	changed chan struct{} // closed and replaced at each change
}

// NewRoster returns an empty roster.
func NewRoster(cfg RosterConfig) *Roster {
	return &Roster{cfg: cfg, wake: make(chan struct{}, 1), roster: ownership.NewRoster(cfg.Life), changed: make(chan struct{})}
}

// Change is loop.Config.Roster.
func (r *Roster) Change(run uint64, changes []core.RosterChange) {
	r.mu.Lock()
	r.roster.Change(run, changes)
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

// known returns up to which number executors are listed newly, and whether more are left.
func (r *Roster) known() (run, upTo uint64, more bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.roster.Listed(r.cfg.Now(), r.there())
}

// Update is called when the directory has changed.
func (r *Roster) Update() {
	r.mu.Lock()
	r.roster.Look(r.cfg.Now(), r.there())
	r.mu.Unlock()
	r.stir()
}

// there says whether the directory, as it is now, has a node in a session.
func (r *Roster) there() func(ownership.Poller) bool {
	d := r.cfg.Directory()
	return func(p ownership.Poller) bool {
		n, there := d.Node(p.Node)
		return there && n.Session == p.Session
	}
}

// poll answers PollRoster.
func (r *Roster) poll(ctx context.Context, stop <-chan struct{}, req *headracev1.PollRosterRequest) *headracev1.PollRosterResponse {
	r.mu.Lock()
	r.roster.Polled(r.cfg.Now(), ownership.Poller{Node: shard.NodeID(req.NodeId), Session: req.Session}, req.Version, r.there())
	changed, news := r.changed, req.Version != r.roster.Version()
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
	r.mu.Lock()
	defer r.mu.Unlock()
	return newsToProto(r.roster.Since(req.Version))
}

func newsToProto(n ownership.RosterNews) *headracev1.PollRosterResponse {
	m := &headracev1.PollRosterResponse{Version: n.Version, Full: n.Full}
	for _, c := range n.Changes {
		m.Changes = append(m.Changes, &headracev1.RosterChange{ExecutorId: []byte(c.Executor), Partition: c.Partition, Epoch: c.Epoch, Gone: c.Gone})
	}
	return m
}

func newsFromProto(m *headracev1.PollRosterResponse) ownership.RosterNews {
	n := ownership.RosterNews{Version: m.Version, Full: m.Full}
	for _, c := range m.Changes {
		n.Changes = append(n.Changes, core.RosterChange{Executor: string(c.ExecutorId), Partition: c.Partition, Epoch: c.Epoch, Gone: c.Gone})
	}
	return n
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
	mu   sync.Mutex
	view ownership.RosterView // guarded by mu
}

func (v *rosterView) version() uint64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.view.Version()
}

func (v *rosterView) take(m *headracev1.PollRosterResponse, session int64, askedAt time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.view.Take(newsFromProto(m), session, askedAt)
}

func (v *rosterView) use(partition uint32, epoch store.Epoch, session int64, at time.Time, life time.Duration) ([]string, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.view.Use(partition, epoch, session, at, life)
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
			version := p.roster.version()
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
