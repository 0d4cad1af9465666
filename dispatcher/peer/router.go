package peer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/dispatcher/door"
	"github.com/headrace/headrace/dispatcher/pools"
	"github.com/headrace/headrace/internal/telemetry"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/shard"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// Config says where a router looks.
type Config struct {
	NodeID    shard.NodeID
	Directory func() *shard.Directory
	// Dial is what connections to other nodes are dialled with; credentials are in it. Nil: no other node.
	Dial   []grpc.DialOption
	Logger *zap.Logger // nil: silent

	// RosterLife is how long a peer's roster may be used (ownership.RosterLife); 0: this node takes nothing over. Else Session
	// says which session of the membership this is (0: none), and Now is a clock that counts suspends.
	RosterLife time.Duration
	Session    func() int64
	Now        func() time.Time
}

// Router hands requests to the owner of their partition. Its methods may be called from any goroutine.
type Router struct {
	cfg   Config
	local Local
	log   *zap.Logger
	away  away

	mu     sync.RWMutex // guards following
	peers  map[shard.NodeID]*peer
	left   []departed // whose roster may be used yet
	closed bool
	wg     sync.WaitGroup // peers that are being closed
}

// departed is a peer that has left the directory.
type departed struct {
	roster *rosterView
	at     time.Time
}

// NewRouter returns a router that knows no other node yet: Update tells it.
func NewRouter(cfg Config, local Local) *Router {
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	return &Router{cfg: cfg, local: local, log: cfg.Logger.Named("peers"), peers: map[shard.NodeID]*peer{}}
}

// Update dials the nodes that have joined and hangs up on those that have left. It does not wait.
func (r *Router) Update() {
	if r.cfg.Dial == nil {
		return
	}
	nodes := r.cfg.Directory().Nodes
	if len(nodes) == 0 {
		return // nothing was heard yet
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	for id, p := range r.peers {
		if !slices.ContainsFunc(nodes, func(n shard.Node) bool { return n.ID == id && n.Addr == p.addr }) {
			delete(r.peers, id)
			r.wg.Go(p.leave)
			if r.cfg.RosterLife > 0 {
				r.left = append(r.left, departed{&p.roster, r.cfg.Now()})
			}
		}
	}
	r.left = slices.DeleteFunc(r.left, func(d departed) bool { return r.cfg.Now().Sub(d.at) > r.cfg.RosterLife })
	for _, n := range nodes {
		if n.ID == r.cfg.NodeID || n.Addr == "" || r.peers[n.ID] != nil {
			continue
		}
		p, err := dial(n, r.cfg.Dial, r.cfg.Now, r.log)
		if err != nil {
			r.log.Error("a node's address can't be used", telemetry.Err(err))
			continue
		}
		if r.cfg.RosterLife > 0 {
			p.wg.Go(func() { p.pollRoster(&r.cfg) })
		}
		r.peers[n.ID] = p
	}
}

// Close hangs up on all nodes.
func (r *Router) Close() {
	r.mu.Lock()
	r.closed = true
	for _, p := range r.peers {
		r.wg.Go(p.close)
	}
	clear(r.peers)
	r.mu.Unlock()
	r.wg.Wait()
}

func (r *Router) peer(id shard.NodeID) *peer {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.peers[id]
}

// owner says who has a partition: this node, another, or (false and nil) nobody that can be asked.
func (r *Router) owner(partition uint32) (here bool, p *peer) {
	if _, here = r.local.Backlog(partition); here {
		return true, nil
	}
	id := r.cfg.Directory().Owners[partition]
	if id == r.cfg.NodeID {
		return true, nil
	}
	return false, r.peer(id)
}

// Submit hands tasks to the owner of their partition (see loop.Submit). Not the owner, or not reachable: the
// answer's error is core.ErrNotOwner. An answer that got lost is core.ErrUnknownOutcome.
func (r *Router) Submit(ctx context.Context, s *core.Submit) (core.SubmitAnswer, error) {
	a, err := r.submit(ctx, s)
	if err == nil {
		r.away.note(time.Now(), s.Partition, a.Err)
	}
	return a, err
}

func (r *Router) submit(ctx context.Context, s *core.Submit) (core.SubmitAnswer, error) {
	here, p := r.owner(s.Partition)
	switch {
	case here:
		return r.local.Submit(ctx, s)
	case p == nil:
		return core.SubmitAnswer{Err: core.ErrNotOwner}, nil
	}
	return p.submit(ctx, s)
}

// Elsewhere is loop.Config.Elsewhere.
func (r *Router) Elsewhere(ctx context.Context, partition uint32, tenant, requestID string) (*store.Request, error) {
	id := r.cfg.Directory().Owners[partition]
	p := r.peer(id)
	if p == nil { // nobody's, or ours and not open yet: what an earlier owner has under way may still land
		return nil, fmt.Errorf("look for a request in partition %d: %w", partition, core.ErrNotOwner)
	}
	a, err := p.look(ctx, core.Look{Partition: partition, Tenant: tenant, RequestID: requestID})
	if err == nil {
		err = a.Err
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("look for a request in partition %d: %w", partition, err)
	case len(a.Items) == 0:
		return nil, store.ErrNotFound
	}
	q := &store.Request{ID: requestID, Tenant: tenant, IDs: make([]task.ID, len(a.Items)), Dedup: make([]bool, len(a.Items))}
	for i, it := range a.Items {
		q.IDs[i], q.Dedup[i] = it.ID, it.Dedup
	}
	return q, nil
}

// Times of a call that meets a change of owners.
const (
	lookAgainEvery = 50 * time.Millisecond
	lookAgainMax   = time.Second
)

// Again waits before a call that found no owner is made again, for the time since began; false: don't.
func Again(ctx context.Context, began time.Time) bool {
	left := lookAgainMax - time.Since(began)
	if deadline, ok := ctx.Deadline(); ok {
		left = min(left, time.Until(deadline)-lookAgainEvery)
	}
	if left <= 0 {
		return false
	}
	return pause(ctx, min(left, lookAgainEvery))
}

func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Times of a submit that is held while its partition changes its owner.
const (
	holdMax      = 10 * time.Second // a lease, the next owner's opening, and some more
	holdPauseMax = 250 * time.Millisecond
	holdMargin   = 250 * time.Millisecond // before the call's deadline: its caller is to hear that nothing was stored
)

// Hold waits before a submit that found no owner is made again: up to its deadline, and not longer than a
// change of owners takes. False: don't, it is to be refused. Try counts from 1.
func Hold(ctx context.Context, since time.Time, try int) bool {
	left := holdMax - time.Since(since)
	if deadline, ok := ctx.Deadline(); ok {
		left = min(left, time.Until(deadline)-holdMargin)
	}
	if left <= 0 {
		return false
	}
	return pause(ctx, min(left, lookAgainEvery<<min((try-1)/4, 8), holdPauseMax))
}

// Cancel asks the owner to stop a task. While the partition changes its owner it asks again for up to a second.
func (r *Router) Cancel(ctx context.Context, c core.Cancel) (core.CancelAnswer, error) {
	for began := time.Now(); ; {
		a, err := r.cancel(ctx, c)
		if err != nil || !errors.Is(a.Err, core.ErrNotOwner) || !r.known(c.ID.Partition()) || !Again(ctx, began) {
			return a, err
		}
	}
}

func (r *Router) cancel(ctx context.Context, c core.Cancel) (core.CancelAnswer, error) {
	here, p := r.owner(c.ID.Partition())
	switch {
	case here:
		return r.local.Cancel(ctx, c)
	case p == nil:
		return core.CancelAnswer{Err: core.ErrNotOwner}, nil
	}
	return p.cancelTask(ctx, c)
}

// known reports whether there is such a partition.
func (r *Router) known(partition uint32) bool {
	return slices.ContainsFunc(r.cfg.Directory().Partitions, func(p shard.Partition) bool { return p.ID == partition })
}

// Watch follows a task at its owner (see loop.Watch).
func (r *Router) Watch(ctx context.Context, id task.ID) (events <-chan core.Event, stop func(), err error) {
	here, p := r.owner(id.Partition())
	switch {
	case here:
		return r.local.Watch(ctx, id)
	case p == nil:
		none := make(chan core.Event)
		close(none)
		return none, func() {}, nil
	}
	return p.watches.watch(ctx, id)
}

// PartialError says which owners did not answer; what the others said is in the answer beside it.
type PartialError struct{ Missing []string } // "node ID", or "partition NUMBER" of one that has no owner now

func (e *PartialError) Error() string {
	return "not all owners answered: " + strings.Join(e.Missing, ", ")
}

// Missing returns what a *PartialError names, and any other error.
func Missing(err error) ([]string, error) {
	var partial *PartialError
	if errors.As(err, &partial) {
		return partial.Missing, nil
	}
	return nil, err
}

// partial returns an error that names what is missing; nil: nothing is.
func partial(missing map[string]bool) error {
	if len(missing) == 0 {
		return nil
	}
	return &PartialError{slices.Sorted(maps.Keys(missing))}
}

// Views returns what owners' memories have of tasks, in their order. An owner that can't be asked counts as
// one that has nothing, and is named in a *PartialError: what the store says is true, if less.
func (r *Router) Views(ctx context.Context, ids []task.ID) ([]core.Live, error) {
	byPeer := map[*peer][]int{} // nil: here
	var mu sync.Mutex           // guards missing
	missing := map[string]bool{}
	for i, id := range ids {
		if here, p := r.owner(id.Partition()); here || p != nil {
			byPeer[p] = append(byPeer[p], i)
		} else {
			missing[fmt.Sprint("partition ", id.Partition())] = true
		}
	}
	if len(byPeer) == 1 && len(byPeer[nil]) == len(ids) {
		return r.local.Views(ctx, ids)
	}
	out := make([]core.Live, len(ids))
	var failed error // of the own loop
	var wg sync.WaitGroup
	for p, at := range byPeer {
		wg.Go(func() {
			some := make([]task.ID, len(at))
			for k, i := range at {
				some[k] = ids[i]
			}
			var live []core.Live
			var err error
			if p == nil {
				live, err = r.local.Views(ctx, some)
				failed = err
			} else if live, err = p.views(ctx, some); err != nil {
				p.log.Debug("views are missing", telemetry.Err(err))
				mu.Lock()
				missing["node "+string(p.id)] = true
				mu.Unlock()
			}
			if err == nil {
				for k, i := range at {
					out[i] = live[k]
				}
			}
		})
	}
	wg.Wait()
	if failed == nil && ctx.Err() != nil {
		failed = context.Cause(ctx)
	}
	if failed == nil {
		failed = partial(missing)
	}
	return out, failed
}

// Running returns at most most running tasks of a tenant from each owner of some partitions (nil: all). Owners that can't be
// asked are named in a *PartialError.
func (r *Router) Running(ctx context.Context, tenant, function string, partitions []uint32, most int) ([]core.Live, error) {
	d := r.cfg.Directory()
	if partitions == nil {
		partitions = shard.IDs(d.Partitions)
	}
	var mu sync.Mutex // guards following
	var out []core.Live
	missing := map[string]bool{}
	var failed error // of the own loop
	ask := map[*peer]bool{}
	for _, id := range partitions {
		switch here, p := r.owner(id); {
		case here || p != nil:
			ask[p] = true
		case d.Owners[id] != "":
			missing["node "+string(d.Owners[id])] = true
		default:
			missing[fmt.Sprint("partition ", id)] = true
		}
	}
	var wg sync.WaitGroup
	for p := range ask { // nil: here
		wg.Go(func() {
			var live []core.Live
			var err error
			if p == nil {
				live, err = r.local.Running(ctx, tenant, function, most)
			} else {
				live, err = p.running(ctx, tenant, function, most)
			}
			mu.Lock()
			defer mu.Unlock()
			out = append(out, live...)
			switch {
			case err != nil && p == nil:
				failed = err
			case err != nil:
				p.log.Debug("what runs is not known", telemetry.Err(err))
				missing["node "+string(p.id)] = true
			}
		})
	}
	wg.Wait()
	switch {
	case failed != nil:
		return nil, failed
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	}
	return out, partial(missing)
}

// Load is what is known of the node that owns a partition: how near it is to refusing submits (0 to 1), how many tries
// it starts a second, and how many tasks wait in all its partitions. False: nothing was told lately.
func (r *Router) Load(partition uint32) (l Load, ok bool) {
	here, p := r.owner(partition)
	switch {
	case here:
		l.Pressure, l.Rate = r.local.Load()
		for _, st := range r.local.Partitions() {
			l.Backlog += st.Backlog
		}
		return l, true
	case p == nil:
		return l, false
	}
	s := p.stats.Load()
	if !s.fresh() {
		return l, false
	}
	for i := range s.parts {
		l.Backlog += s.parts[i].Backlog + s.sent[i].Load()
	}
	l.Pressure, l.Rate = s.pressure, s.rate
	return l, true
}

// Load is of a node, see Router.Load.
type Load struct {
	Pressure float64
	Rate     float64 // 0: unknown
	Backlog  int64
}

// Reports are what the doors of the other nodes told last, however long ago (door.Report.At).
func (r *Router) Reports() []*door.Report {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var out []*door.Report
	for _, p := range r.peers { // they are summed up: the order does not matter
		if rep := p.report.Load(); rep != nil {
			out = append(out, rep)
		}
	}
	return out
}

// Pools are what the other nodes that own something told last of their pools, however long ago, by node.
func (r *Router) Pools() []pools.Report {
	owners := map[shard.NodeID]bool{}
	for _, id := range r.cfg.Directory().Owners {
		owners[id] = id != "" && id != r.cfg.NodeID
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	var out []pools.Report
	for id, p := range r.peers {
		if t := p.pools.Load(); t != nil {
			out = append(out, *t) // also of one that owns nothing now: its executors are the same
			owners[id] = false
		}
	}
	for id, silent := range owners {
		if silent {
			out = append(out, pools.Report{Node: string(id)})
		}
	}
	slices.SortFunc(out, func(a, b pools.Report) int { return strings.Compare(a.Node, b.Node) })
	return out
}

// Partitions returns what is known of all partitions that have an owner, those of others a quarter of a second
// ago or so; by partition. Of a node that has told nothing for two seconds nothing is known.
func (r *Router) Partitions() []core.PartitionStat {
	own := r.local.Partitions()
	r.mu.RLock()
	defer r.mu.RUnlock()
	if len(r.peers) == 0 {
		return own
	}
	out := slices.Clone(own)
	owners := r.cfg.Directory().Owners
	for id, p := range r.peers {
		s := p.stats.Load()
		if !s.fresh() {
			continue
		}
		for _, st := range s.parts {
			if owners[st.Partition] == id && !slices.ContainsFunc(own, func(o core.PartitionStat) bool { return o.Partition == st.Partition }) {
				out = append(out, st)
			}
		}
	}
	slices.SortFunc(out, func(a, b core.PartitionStat) int { return cmp.Compare(a.Partition, b.Partition) })
	return out
}

// Node returns what a node told of itself in the last second or so; nil: nothing lately.
func (r *Router) Node(id string) *headracev1.Node {
	if p := r.peer(shard.NodeID(id)); p != nil && p.stats.Load().fresh() {
		return p.node.Load()
	}
	return nil
}
