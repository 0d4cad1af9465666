package member

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/headrace/headrace/shard"
)

// job is a kind of write (or look) that runs beside the loop, one of each at a time.
type job int

const (
	campaign job = iota // try to become leader
	plan                // as leader: write the catalogue or the assignment
	claim               // win the owner keys that are wanted and free
	look                // look at a key for Reacquire
	numJobs
)

// jobDone is a job's answer. ok false without an error: a condition did not hold; the view is about to change.
type jobDone struct {
	job      job
	ok       bool
	revision int64 // of the commit
	err      error
	look     uint32 // the partition of a look
}

// retryAfter is when a job that failed is tried again at the latest: a lost race shows in the view
// sooner.
const retryAfter = 250 * time.Millisecond

// decide starts what is due and returns how long to sleep if nothing happens.
func (s *session) decide(ctx context.Context, wg *sync.WaitGroup) time.Duration {
	now := time.Now()
	if id, _ := s.view.leader(); id == "" {
		s.start(ctx, wg, now, campaign, s.campaign())
	}
	if revision, ok := s.leader(); ok {
		if f := s.plan(now, revision); f != nil {
			s.start(ctx, wg, now, plan, f)
		}
	} else {
		s.rebalanceAt, s.quarantine, s.cuts, s.cutsAt = time.Time{}, quarantine{}, shard.Cuts{}, time.Time{}
	}
	if f := s.claim(); f != nil {
		s.start(ctx, wg, now, claim, f)
	}
	if f := s.look(); f != nil {
		s.start(ctx, wg, now, look, f)
	}

	sleep := time.Hour
	for _, at := range append(s.retryAt[:], s.rebalanceAt, s.quarantine.wakeAt, s.cutsAt) {
		if at.After(now) {
			sleep = min(sleep, at.Sub(now))
		}
	}
	return sleep
}

// start runs a job beside the loop unless one of its kind is running or has to wait.
func (s *session) start(ctx context.Context, wg *sync.WaitGroup, now time.Time, j job, f func(context.Context) jobDone) {
	if s.busy[j] || s.retryAt[j].After(now) {
		return
	}
	s.busy[j] = true
	s.retryAt[j] = time.Time{}
	wg.Go(func() {
		call, cancel := s.m.callTimeout(ctx)
		defer cancel()
		d := f(call)
		d.job = j
		s.done <- d
	})
}

// jobDone takes a job's answer. Until the view shows what the job did or met, the same job would be
// started again in vain, so it waits for the view, and not for ever.
func (s *session) jobDone(ctx context.Context, d jobDone) {
	s.busy[d.job] = false
	s.failed[d.job] = d.err != nil
	if d.err != nil || d.revision > s.view.revision {
		s.retryAt[d.job] = time.Now().Add(retryAfter)
	}
	if d.err != nil && ctx.Err() == nil {
		s.m.log.warn("write", "membership write failed", zap.Error(d.err))
	}
	if d.job == look {
		s.looked(ctx, d)
	}
}

// commit makes a transaction a job.
func (s *session) commit(txn Txn) func(context.Context) jobDone {
	kv := s.m.kv
	return func(ctx context.Context) jobDone {
		ok, revision, err := kv.Commit(ctx, txn)
		return jobDone{ok: ok, revision: revision, err: err}
	}
}

// campaign takes the leader key if nobody has it. That this node is still a member is part of the
// condition: a lease alone may have been granted to a node that nobody sees.
func (s *session) campaign() func(context.Context) jobDone {
	id, k := s.m.cfg.Node.ID, s.m.keys
	return s.commit(Txn{
		If:   []Cond{{Key: k.leader()}, {Key: k.member(id), Lease: s.lease}},
		Then: []Op{{Key: k.leader(), Value: []byte(id), Lease: s.lease}},
	})
}

// plan is the leader's write, nil if there is nothing to change. Its writes hold only under the leader
// key's revision, so a deposed leader writes nothing.
func (s *session) plan(now time.Time, leader int64) func(context.Context) jobDone {
	k := s.m.keys
	guard := Cond{Key: k.leader(), Revision: leader}
	if level := shard.RaiseLevel(s.view.level, s.view.nodes()); level > s.view.level {
		return s.commit(s.raise(guard, level))
	}
	if _, there := s.view.items[k.partitions()]; !there {
		if len(s.m.cfg.Partitions) == 0 {
			return nil
		}
		ps := slices.Clone(s.m.cfg.Partitions)
		sortPartitions(ps)
		return s.commit(Txn{
			If:   []Cond{guard, {Key: k.partitions()}},
			Then: []Op{{Key: k.partitions(), Value: encode(ps)}},
		})
	}

	s.cutsAt = s.cuts.Look(now, s.view.nodes(), s.confirm())
	prev := s.view.assignment.Owners
	next, tenures := s.assign(now, prev)
	if maps.Equal(prev, next) && len(tenures) == 0 {
		s.rebalanceAt = time.Time{}
		return nil
	}
	if !s.urgent(now, prev, next) && len(tenures) == 0 && !s.quarantine.on() {
		if s.rebalanceAt.IsZero() {
			s.rebalanceAt = now.Add(s.m.cfg.JoinDelay)
		}
		if s.rebalanceAt.After(now) {
			return nil
		}
	}
	txn := Txn{
		If: []Cond{guard, {Key: k.assignment(), Revision: s.view.items[k.assignment()].Revision}},
		Then: []Op{{Key: k.assignment(), Value: encodeAssignment(shard.Assignment{
			Version: s.view.assignment.Version + 1, Owners: next,
		})}},
	}
	for _, p := range slices.Sorted(maps.Keys(tenures)) {
		txn.If = append(txn.If, Cond{Key: k.owner(p)}, Cond{Key: k.tenure(p), Revision: s.view.items[k.tenure(p)].Revision})
		txn.Then = append(txn.Then, Op{Key: k.tenure(p), Value: encode(tenures[p])})
	}
	return s.commit(txn)
}

// urgent reports whether a partition has nobody who would take it, or who could. Else the change only evens out shares
// and may wait for more to join.
func (s *session) urgent(now time.Time, prev, next map[uint32]shard.NodeID) bool {
	for p := range next {
		if n, there := s.view.members[prev[p]]; !there || !n.Takes() {
			return true
		}
	}
	if !s.cuts.None() {
		for _, p := range s.view.partitions {
			if id, moves := next[p.ID]; moves && id != prev[p.ID] && s.access(now)(prev[p.ID], p.In()) == shard.Barred {
				return true
			}
		}
	}
	return len(next) < len(prev)
}

// confirm is how long a node has to have been cut off, and another not, by what the leader has heard: all
// nodes hear of a database's end, and of its return, within two looks and their way here.
func (s *session) confirm() time.Duration { return s.m.cfg.TTL / 2 }

// access is for shard.AssignReached.
func (s *session) access(now time.Time) func(shard.NodeID, string) shard.Access {
	return func(id shard.NodeID, database string) shard.Access {
		return s.cuts.Access(now, s.confirm(), id, database)
	}
}

// among assigns some partitions to some nodes.
func (s *session) among(now time.Time, prev map[uint32]shard.NodeID, nodes []shard.Node, ids []uint32) map[uint32]shard.NodeID {
	if s.cuts.None() {
		return shard.Assign(prev, nodes, ids)
	}
	some := slices.DeleteFunc(slices.Clone(s.view.partitions), func(p shard.Partition) bool { return !slices.Contains(ids, p.ID) })
	return shard.AssignReached(prev, nodes, some, s.access(now))
}

// claimMax is how many keys one transaction claims: each costs two conditions and two writes.
const claimMax = MaxTxnOps/2 - 2

// claim wins the owner keys of the partitions that are assigned here and that nobody holds, under the
// assignment that says so; nil if there are none.
func (s *session) claim() func(context.Context) jobDone {
	id, k, kv, lease := s.m.cfg.Node.ID, s.m.keys, s.m.kv, s.lease
	var free []uint32
	for _, p := range slices.Sorted(maps.Keys(s.want)) {
		if _, taken := s.view.items[k.owner(p)]; !taken && len(free) < claimMax {
			free = append(free, p)
		}
	}
	if len(free) == 0 {
		return nil
	}
	assignment := s.view.items[k.assignment()].Revision
	tenures := map[uint32][]byte{}
	was := map[uint32]int64{}
	if s.view.level >= shard.LevelTenures && !s.m.cfg.Sole { // alone, care would only slow a node that somebody kills
		now := time.Now()
		for _, p := range free {
			t := s.view.tenures[p].Claim(id, s.m.cfg.Node.Addr, s.alive, now)
			if n := len(t.Deaths); n > 0 {
				s.m.cfg.Logger.Warn("claims a partition whose owner died early", zap.Uint32("partition", p), zap.Int("deaths", n))
			}
			tenures[p], was[p] = encode(t), s.view.items[k.tenure(p)].Revision
		}
	}
	return func(ctx context.Context) jobDone {
		try := func(ps []uint32) (bool, int64, error) {
			txn := Txn{If: []Cond{{Key: k.member(id), Lease: lease}, {Key: k.assignment(), Revision: assignment}}}
			for _, p := range ps {
				txn.If = append(txn.If, Cond{Key: k.owner(p)})
				txn.Then = append(txn.Then, Op{Key: k.owner(p), Value: []byte(id), Lease: lease})
				if t := tenures[p]; t != nil {
					txn.If = append(txn.If, Cond{Key: k.tenure(p), Revision: was[p]})
					txn.Then = append(txn.Then, Op{Key: k.tenure(p), Value: t})
				}
			}
			return kv.Commit(ctx, txn)
		}
		ok, revision, err := try(free)
		if ok || err != nil || len(free) == 1 {
			return jobDone{ok: ok, revision: revision, err: err}
		}
		// One key was taken in the meantime: it must not keep the others from us.
		for _, p := range free {
			if ok, revision, err = try([]uint32{p}); err != nil {
				break
			}
		}
		return jobDone{ok: ok, revision: revision, err: err}
	}
}

// look asks the registry whether a fenced partition is still held; nil if none is asked for.
func (s *session) look() func(context.Context) jobDone {
	m := s.m
	for _, p := range slices.Sorted(maps.Keys(s.again)) {
		if _, held := s.held[p]; !held {
			delete(s.again, p) // its Lost was told; if it is won again that is an ordinary Won
			continue
		}
		return func(ctx context.Context) jobDone {
			ok, err := m.Holds(ctx, p)
			return jobDone{ok: ok, err: err, look: p}
		}
	}
	return nil
}

func (s *session) looked(ctx context.Context, d jobDone) {
	if d.err != nil {
		return // asked again
	}
	delete(s.again, d.look)
	if revision, held := s.held[d.look]; held && d.ok {
		s.m.pump.send(ctx, Event{Kind: Won, Partition: d.look, Again: true, Revision: revision})
	}
}
