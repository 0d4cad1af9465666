package member

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/headrace/headrace/shard"
)

// errMemberGone means that somebody deleted this node's member key.
var errMemberGone = errors.New("member key is gone")

// session is the life of one lease. Its loop (run) owns all fields; what runs beside the loop gets
// copies and answers over done.
type session struct {
	m     *Member
	lease LeaseID

	view  *view
	held  map[uint32]int64 // partition → revision of its owner key, as told by Won
	want  map[uint32]bool  // as told by Assigned
	again map[uint32]bool  // Reacquire that waits for its look

	done        chan jobDone // answers of jobs; has room for one of each kind
	busy        [numJobs]bool
	retryAt     [numJobs]time.Time // not before; zero: at once
	failed      [numJobs]bool      // the last answer was an error: news do not shorten the wait
	rebalanceAt time.Time          // when a move to a new member is due; zero: none is
	quarantine  quarantine         // the leader's
	cuts        shard.Cuts         // the leader's
	cutsAt      time.Time          // when to look at them again; zero: when the view changes
}

// join starts a session: it makes sure that the old lease is gone, gets a new one and announces the
// node. If a lease was granted the session is returned also with an error.
func (m *Member) join(ctx context.Context, old LeaseID) (*session, error) {
	call, cancel := m.callTimeout(ctx)
	defer cancel()
	if m.cfg.Sole && !m.evicted {
		if err := m.evict(call); err != nil {
			return nil, fmt.Errorf("revoke the leases of predecessors: %w", err)
		}
		m.evicted = true
	}
	// Keys of our own old lease would look like ours by name, and nobody would keep them alive.
	if old != 0 {
		if err := m.kv.Revoke(call, old); err != nil {
			return nil, fmt.Errorf("revoke the old lease: %w", err)
		}
	}
	if m.cfg.Healthy != nil {
		if err := m.cfg.Healthy(); err != nil { // it would win keys that it can't serve, and lose them a TTL later
			return nil, fmt.Errorf("the node is not healthy: %w", err)
		}
	}
	sentAt := time.Now()
	lease, err := m.kv.Grant(call, m.cfg.TTL)
	if err != nil {
		return nil, fmt.Errorf("grant a lease: %w", err)
	}
	s := &session{
		m: m, lease: lease, view: newView(m.keys),
		held: map[uint32]int64{}, want: map[uint32]bool{}, again: map[uint32]bool{},
		done: make(chan jobDone, numJobs),
	}
	if err := m.announce(call, lease); err != nil {
		return s, err
	}
	m.trust.Store(&sentAt)
	m.lease.Store(int64(lease))
	m.cfg.Logger.Info("joined", zap.String("node", string(m.cfg.Node.ID)), zap.Int64("lease", int64(lease)))
	m.pump.send(ctx, Event{Kind: Joined})
	return s, nil
}

// evict revokes every lease that a key of ours hangs on.
func (m *Member) evict(ctx context.Context) error {
	items, _, err := m.kv.List(ctx, m.cfg.Prefix)
	if err != nil {
		return err
	}
	gone := map[LeaseID]bool{0: true}
	for _, it := range items {
		if !gone[it.Lease] {
			gone[it.Lease] = true
			if err := m.kv.Revoke(ctx, it.Lease); err != nil {
				return err
			}
		}
	}
	return nil
}

// run is the session's loop. It returns why the session ended, after all that it started has ended and the
// node was told what it lost.
func (s *session) run(ctx context.Context) error {
	m := s.m
	sctx, stop := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	lists := make(chan list)
	wg.Go(func() { m.keepAlive(sctx, s.lease, stop) })
	wg.Go(func() { m.watch(sctx, lists) })

	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for sctx.Err() == nil {
		select {
		case <-sctx.Done():
			continue
		case l := <-lists:
			if l.items != nil || l.changes == nil {
				s.view.reset(l.items, l.revision)
			} else {
				s.view.apply(l.changes)
			}
			if it := s.view.items[m.keys.member(m.cfg.Node.ID)]; it.Lease != s.lease {
				stop(errMemberGone)
				continue
			}
			for j, failed := range s.failed {
				if !failed {
					s.retryAt[j] = time.Time{} // what the job met or did is in the view now
				}
			}
			s.tell(ctx)
		case d := <-s.done:
			s.jobDone(ctx, d)
		case <-m.poke:
			m.mu.Lock()
			maps.Copy(s.again, m.asked)
			clear(m.asked)
			m.mu.Unlock()
		case <-timer.C:
		}
		if s.view.revision != 0 { // nothing is decided before the first list
			timer.Reset(s.decide(sctx, &wg))
		}
	}
	err := context.Cause(sctx)
	stop(nil)
	m.endTrust()
	for _, p := range slices.Sorted(maps.Keys(s.held)) {
		m.pump.send(ctx, Event{Kind: Lost, Partition: p, Reason: LeaseGone})
	}
	for _, p := range slices.Sorted(maps.Keys(s.want)) {
		m.pump.send(ctx, Event{Kind: Unassigned, Partition: p})
	}
	m.pump.send(ctx, Event{Kind: LeaseLost})
	wg.Wait()
	return err
}

// tell compares the view with what the node was told and tells the difference: losses first, so that a key
// that was lost and won again between two looks comes as both.
func (s *session) tell(ctx context.Context) {
	m := s.m
	if s.view.bad != nil {
		m.log.warn("value", "a value in the registry can't be read and counts as missing", zap.Error(s.view.bad))
	}
	mine := map[uint32]int64{}
	for p, id := range s.view.owners {
		if it := s.view.items[m.keys.owner(p)]; id == m.cfg.Node.ID && it.Lease == s.lease {
			mine[p] = it.Revision
		}
	}
	d := s.view.directory()
	changed := d.Version != m.directory.Load().Version
	m.directory.Store(d) // before the events, whose readers look at it
	for _, p := range slices.Sorted(maps.Keys(s.held)) {
		if mine[p] != s.held[p] {
			m.pump.send(ctx, Event{Kind: Lost, Partition: p, Reason: m.whyLost(p, s.held[p])})
			delete(s.held, p)
		}
	}
	for _, p := range slices.Sorted(maps.Keys(s.want)) {
		if s.view.assignment.Owners[p] != m.cfg.Node.ID {
			m.pump.send(ctx, Event{Kind: Unassigned, Partition: p})
			delete(s.want, p)
		}
	}
	for _, p := range slices.Sorted(maps.Keys(s.view.assignment.Owners)) {
		if s.view.assignment.Owners[p] == m.cfg.Node.ID && !s.want[p] {
			m.pump.send(ctx, Event{Kind: Assigned, Partition: p})
			s.want[p] = true
		}
	}
	for _, p := range slices.Sorted(maps.Keys(mine)) {
		if _, ok := s.held[p]; !ok {
			m.pump.send(ctx, Event{Kind: Won, Partition: p, Revision: mine[p]})
			s.held[p] = mine[p]
		}
	}
	if changed {
		m.pump.send(ctx, Event{Kind: Directory})
	}
}

func (m *Member) whyLost(partition uint32, revision int64) Reason {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.released[partition] == revision {
		delete(m.released, partition)
		return Released
	}
	return Taken
}

// callTimeout bounds one exchange with the registry: long enough for a busy disk, short enough that a
// try after it still finds the lease alive.
func (m *Member) callTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, max(m.cfg.TTL/2, time.Second))
}

// list is what the watch sends to the loop: all items, or changes to them.
type list struct {
	items    []Item
	revision int64
	changes  []Change
}

// watch lists everything, then follows the changes, and starts over when the watch ends or Resync has
// passed. It ends with ctx.
func (m *Member) watch(ctx context.Context, out chan<- list) {
	for failures := 0; ctx.Err() == nil; {
		call, cancel := m.callTimeout(ctx)
		items, revision, err := m.kv.List(call, m.cfg.Prefix)
		cancel()
		if err != nil {
			if ctx.Err() == nil {
				m.log.warn("list", "registry can't be read", zap.Error(err))
			}
			m.pause(ctx, failures)
			failures++
			continue
		}
		failures = 0
		select {
		case out <- list{items: items, revision: revision}:
		case <-ctx.Done():
			return
		}
		wctx, cancel := context.WithTimeout(ctx, m.cfg.Resync)
		startedAt := time.Now()
		for changes := range m.kv.Watch(wctx, m.cfg.Prefix, revision) {
			select {
			case out <- list{changes: changes}:
			case <-ctx.Done():
			}
		}
		early := wctx.Err() == nil && time.Since(startedAt) < 50*time.Millisecond
		cancel()
		if early { // a watch that ends at once must not become a busy loop
			m.pause(ctx, 1)
		}
	}
}

// keepAlive renews the lease each third of its TTL and ends the session when the registry says that it is
// gone. It ends with ctx.
func (m *Member) keepAlive(ctx context.Context, lease LeaseID, stop context.CancelCauseFunc) {
	ttl := m.cfg.TTL
	lastAt := m.TrustBase() // of the grant
	isolated := false
	wait := ttl / 3
	for {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
		err := error(nil)
		if m.cfg.Healthy != nil {
			err = m.cfg.Healthy()
		}
		if err != nil {
			err = fmt.Errorf("not sent, the node is not healthy: %w", err)
		} else {
			// While the lease may live, no call may outlast it: then it is time to raise the alarm.
			limit := ttl / 3
			if left := time.Until(lastAt.Add(ttl)); !isolated && left > 0 {
				limit = min(limit, left)
			}
			call, cancel := context.WithTimeout(ctx, limit)
			sentAt := time.Now()
			err = m.kv.KeepAlive(call, lease)
			cancel()
			if ctx.Err() != nil {
				return // the session has ended: an answer that came all the same must not bring its trust back
			}
			if err == nil {
				lastAt = sentAt
				m.trust.Store(&sentAt)
			}
		}
		wait = ttl / 3
		switch {
		case err == nil:
			if isolated {
				isolated = false
				m.cfg.Logger.Info("reconnected", zap.Int64("lease", int64(lease)))
				m.pump.send(ctx, Event{Kind: Reconnected})
			}
		case errors.Is(err, ErrLeaseLost):
			stop(fmt.Errorf("keep alive: %w", err))
			return
		case ctx.Err() != nil:
			return
		default:
			m.log.warn("keepalive", "keep-alive failed", zap.Error(err), zap.Time("last_ok", lastAt))
			wait = ttl / 12
			left := time.Until(lastAt.Add(ttl))
			if !isolated && left <= 0 {
				isolated = true
				m.log.warn("isolated", "no keep-alive for a whole TTL: owners can't change from here", zap.Duration("ttl", ttl))
				m.pump.send(ctx, Event{Kind: Isolated})
			}
			if !isolated {
				wait = min(wait, left)
			}
		}
	}
}

// leader reports whether this node is the leader under its present lease, with the key's revision.
func (s *session) leader() (int64, bool) {
	id, revision := s.view.leader()
	return revision, id == s.m.cfg.Node.ID && s.view.items[s.m.keys.leader()].Lease == s.lease
}
