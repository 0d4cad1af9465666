package member

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/headrace/headrace/shard"
)

// Errors that callers act on.
var (
	ErrNotHeld = errors.New("this node does not hold the partition's key")
	// ErrConflict means that another wrote in between: read and try again.
	ErrConflict = errors.New("changed by another in the meantime")
	// ErrLevel means that this build can't work in the cluster: the error names the levels.
	ErrLevel = errors.New("the cluster's feature level is none that this build reads")
)

// Member is one node's membership. Make it with New, start it with Run; the other methods may be
// called from any goroutine.
type Member struct {
	cfg  Config
	kv   KV
	keys keys
	log  *limitedLog
	pump *pump

	trust     atomic.Pointer[time.Time]       // written by join and keepAlive, cleared when the lease is lost or given back
	lease     atomic.Int64                    // of the session; 0 between sessions
	directory atomic.Pointer[shard.Directory] // written by the session's loop
	poke      chan struct{}                   // says that asked has something; never blocks, one is enough

	evicted bool // Run's goroutine only: dead predecessors are gone (Config.Sole)

	saying chan struct{} // full while the node's member key is written

	mu       sync.Mutex       // guards following
	node     shard.Node       // as it is announced
	asked    map[uint32]bool  // Reacquire that the loop has not seen
	released map[uint32]int64 // revision of the key that Release deleted, for the reason of its Lost
}

// New returns the membership of a node that has not joined yet.
func New(cfg Config, kv KV) (*Member, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("member config: %w", err)
	}
	cfg = cfg.withDefaults()
	m := &Member{
		cfg:      cfg,
		kv:       kv,
		keys:     keys(cfg.Prefix),
		log:      newLimitedLog(cfg.Logger.Named("member").With(zap.String("node", string(cfg.Node.ID)))),
		pump:     newPump(),
		poke:     make(chan struct{}, 1),
		saying:   make(chan struct{}, 1),
		node:     cfg.Node,
		asked:    map[uint32]bool{},
		released: map[uint32]int64{},
	}
	m.trust.Store(&time.Time{})
	m.directory.Store(&shard.Directory{})
	return m, nil
}

// Run joins, and joins again whenever the lease is lost, until ctx ends; then it gives its lease back, so
// that others need not wait for the TTL. It returns the context's cause, or the reason why it can't go
// on. Call it once. The partitions that were held are not told as Lost at the end: who ends Run has
// stopped using them before.
func (m *Member) Run(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := m.pump.run(ctx); err != nil {
			stop(err)
		}
	})

	var old LeaseID // of the session before, until it is known to be gone
	for failures := 0; ctx.Err() == nil; failures++ {
		s, err := m.join(ctx, old)
		if err == nil {
			failures = 0
			old, err = s.lease, s.run(ctx)
		} else if s != nil {
			old = s.lease // granted, but we don't know what more
		}
		if errors.Is(err, ErrLevel) {
			stop(err) // waiting changes nothing: levels are never lowered
		}
		if ctx.Err() != nil {
			break
		}
		m.log.warn("rejoin", "membership interrupted, joining again", zap.Error(err))
		m.pause(ctx, failures)
	}
	if old != 0 {
		// Detached: this is the last write, and it is what spares the others a TTL.
		final, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		if err := m.leaveTenures(final); err != nil {
			m.log.warn("leave", "the end may be taken for a death", zap.Error(err))
		}
		if err := m.kv.Revoke(final, old); err != nil {
			m.log.warn("revoke", "lease not given back, it ends by itself", zap.Error(err))
		}
		cancel()
	}
	stop(nil)
	wg.Wait()
	return context.Cause(ctx)
}

// Events tells the node what it won and lost, in order. It must be read all the time; it is closed when Run
// returns.
func (m *Member) Events() <-chan Event { return m.pump.out }

// Directory is who is there and who holds what, as last heard; empty before the first join. A Directory
// event says that there is a newer one.
func (m *Member) Directory() *shard.Directory { return m.directory.Load() }

// TrustBase is when the last successful keep-alive (or grant) of the present lease was sent, never later;
// the zero time if there is no lease. An owner may trust its keys until TrustBase + 0.9·TTL − 500 ms
// (design.md §5). It carries the monotonic clock, which stands still while the machine is
// suspended: who needs to count suspends compares wall clocks as well.
func (m *Member) TrustBase() time.Time { return *m.trust.Load() }

// Level is what the cluster's nodes may write, as last heard; 0 while none is decided. Code that writes something
// new asks Level() >= X first. It never goes down.
func (m *Member) Level() shard.Level { return m.directory.Load().Level }

// Session names the present membership, as Node.Session in the directory; 0: there is none. It is never the same again
// once it was lost.
func (m *Member) Session() int64 { return m.lease.Load() }

// TTL is the lease's.
func (m *Member) TTL() time.Duration { return m.cfg.TTL }

// Holds looks whether this node holds a partition's key now, under its present lease. The look is
// linearizable: what it says was true between call and return.
func (m *Member) Holds(ctx context.Context, partition uint32) (bool, error) {
	it, err := m.owned(ctx, partition)
	if err != nil {
		return false, fmt.Errorf("look at the owner key of partition %d: %w", partition, err)
	}
	return it.Revision != 0, nil
}

// Epoch returns the highest epoch of a partition that any node has remembered; 0: none.
func (m *Member) Epoch(ctx context.Context, partition uint32) (uint64, error) {
	key := m.keys.epoch(partition)
	items, _, err := m.kv.List(ctx, key)
	if err != nil {
		return 0, fmt.Errorf("read the epoch of partition %d: %w", partition, err)
	}
	for _, it := range items {
		if it.Key == key {
			epoch, err := strconv.ParseUint(string(it.Value), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("read %s: %w", key, err)
			}
			return epoch, nil
		}
	}
	return 0, nil
}

// Remember is Holds that also notes the epoch which this node has raised, for the case that the database is restored
// from a backup that does not know it. False: the key is not held, and nothing is noted.
func (m *Member) Remember(ctx context.Context, partition uint32, epoch uint64) (bool, error) {
	lease := LeaseID(m.lease.Load())
	if lease == 0 {
		return false, nil
	}
	ok, _, err := m.kv.Commit(ctx, Txn{
		If:   []Cond{{Key: m.keys.owner(partition), Lease: lease}},
		Then: []Op{{Key: m.keys.epoch(partition), Value: strconv.AppendUint(nil, epoch, 10)}},
	})
	if err != nil {
		return false, fmt.Errorf("note the epoch of partition %d: %w", partition, err)
	}
	return ok, nil
}

// Owners reads who holds which partition's key. The look is linearizable.
func (m *Member) Owners(ctx context.Context) (map[uint32]shard.NodeID, error) {
	items, _, err := m.kv.List(ctx, m.keys.owners())
	if err != nil {
		return nil, fmt.Errorf("read the owner keys: %w", err)
	}
	owners := make(map[uint32]shard.NodeID, len(items))
	for _, it := range items {
		p, err := parseUint(it.Key[len(m.keys.owners()):])
		if err != nil {
			return nil, fmt.Errorf("read the owner keys: %w", err)
		}
		owners[p] = shard.NodeID(it.Value)
	}
	return owners, nil
}

// Release gives a partition's key back after a hand-over. Errors: ErrNotHeld. A Lost follows; if the
// leader still wants the partition here, so does a Won.
func (m *Member) Release(ctx context.Context, partition uint32) error {
	// Its successor waits for this: the two reads go side by side.
	var t shard.Tenure
	var there bool
	var failed error
	read := make(chan struct{})
	go func() {
		defer close(read)
		t, there, failed = m.tenure(ctx, partition)
	}()
	it, err := m.owned(ctx, partition)
	<-read
	if err == nil && it.Revision == 0 {
		err = ErrNotHeld
	}
	if err == nil {
		err = failed
	}
	if err != nil {
		return fmt.Errorf("release partition %d: %w", partition, err)
	}
	m.mu.Lock()
	m.released[partition] = it.Revision
	m.mu.Unlock()
	then := []Op{{Key: it.Key, Delete: true}}
	if there { // of this node: it holds the key
		then = append(then, m.handOver(partition, t))
	}
	ok, _, err := m.kv.Commit(ctx, Txn{
		If:   []Cond{{Key: it.Key, Revision: it.Revision}},
		Then: then,
	})
	if err == nil && !ok {
		err = ErrNotHeld
	}
	if err != nil {
		return fmt.Errorf("release partition %d: %w", partition, err)
	}
	return nil
}

// Reacquire asks for another Won of a partition whose epoch was raised by somebody else although this
// node still holds the key (takeover.md R10). If it doesn't hold it, nothing comes but the Lost.
func (m *Member) Reacquire(partition uint32) {
	m.mu.Lock()
	m.asked[partition] = true
	m.mu.Unlock()
	select {
	case m.poke <- struct{}{}:
	default:
	}
}

// Drain announces that the node is on its way out: the leader takes its partitions away, each with an
// Unassigned. It stays so when the node has to join again.
func (m *Member) Drain(ctx context.Context) error {
	if err := m.say(ctx, func(n *shard.Node) { n.Draining = true }); err != nil {
		return fmt.Errorf("announce the drain: %w", err)
	}
	return nil
}

// CutOff announces which databases the node can't reach: the leader gives it none of their partitions while another node
// does, and takes those away that it has. It stays so until the next call, also when the node has to join again.
func (m *Member) CutOff(ctx context.Context, from []shard.CutOff) error {
	if err := m.say(ctx, func(n *shard.Node) { n.Cut = from }); err != nil {
		return fmt.Errorf("announce what is out of reach: %w", err)
	}
	return nil
}

// say changes what the others learn of this node.
func (m *Member) say(ctx context.Context, change func(*shard.Node)) error {
	m.mu.Lock()
	change(&m.node) // in any case: the next join says it
	m.mu.Unlock()
	select {
	case m.saying <- struct{}{}: // two at once would not come in their order
		defer func() { <-m.saying }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	m.mu.Lock()
	node := m.node
	m.mu.Unlock()
	lease := LeaseID(m.lease.Load())
	if lease == 0 {
		return nil // the next join says it
	}
	key := m.keys.member(node.ID)
	if _, _, err := m.kv.Commit(ctx, Txn{
		If:   []Cond{{Key: key, Lease: lease}},
		Then: []Op{{Key: key, Value: encode(node), Lease: lease}},
	}); err != nil && !errors.Is(err, ErrLeaseLost) {
		return err
	}
	return nil
}

// SetPartitions changes the catalogue: new entries are added, those with a known number replaced; none is
// ever removed, because a number is not used again. Errors: ErrConflict.
func (m *Member) SetPartitions(ctx context.Context, ps ...shard.Partition) error {
	return m.ChangePartitions(ctx, func([]shard.Partition) []shard.Partition { return ps })
}

// ChangePartitions is SetPartitions of what change makes of the catalogue as it is in the registry, by id. None:
// nothing is written. Errors: ErrConflict.
func (m *Member) ChangePartitions(ctx context.Context, change func(have []shard.Partition) []shard.Partition) error {
	items, _, err := m.kv.List(ctx, m.keys.partitions())
	if err != nil {
		return fmt.Errorf("read the partitions: %w", err)
	}
	var all []shard.Partition
	var revision int64
	for _, it := range items {
		if it.Key == m.keys.partitions() {
			if err := json.Unmarshal(it.Value, &all); err != nil {
				return fmt.Errorf("read the partitions: %w", err)
			}
			revision = it.Revision
		}
	}
	sortPartitions(all)
	changed := change(slices.Clone(all))
	if len(changed) == 0 {
		return nil
	}
	for _, p := range changed {
		if i := slices.IndexFunc(all, func(q shard.Partition) bool { return q.ID == p.ID }); i >= 0 {
			all[i] = p
		} else {
			all = append(all, p)
		}
	}
	sortPartitions(all)
	ok, _, err := m.kv.Commit(ctx, Txn{
		If:   []Cond{{Key: m.keys.partitions(), Revision: revision}},
		Then: []Op{{Key: m.keys.partitions(), Value: encode(all)}},
	})
	if err == nil && !ok {
		err = ErrConflict
	}
	if err != nil {
		return fmt.Errorf("write the partitions: %w", err)
	}
	return nil
}

// owned reads a partition's owner key; the zero Item if it is not this node's under its present lease.
func (m *Member) owned(ctx context.Context, partition uint32) (Item, error) {
	lease := LeaseID(m.lease.Load())
	if lease == 0 {
		return Item{}, nil
	}
	key := m.keys.owner(partition)
	items, _, err := m.kv.List(ctx, key) // owners/1 brings owners/10 as well; few, and no second method
	if err != nil {
		return Item{}, err
	}
	for _, it := range items {
		if it.Key == key && it.Lease == lease && shard.NodeID(it.Value) == m.cfg.Node.ID {
			return it, nil
		}
	}
	return Item{}, nil
}

// endTrust takes back what TrustBase promised.
func (m *Member) endTrust() {
	m.lease.Store(0)
	m.trust.Store(&time.Time{})
}

// pause waits before the next join: 50 ms doubling up to half a TTL, half of it random so that nodes that
// lost the registry together don't come back together.
func (m *Member) pause(ctx context.Context, failures int) {
	d := min(50*time.Millisecond<<min(failures, 10), m.cfg.TTL/2)
	select {
	case <-time.After(d/2 + rand.N(d/2)):
	case <-ctx.Done():
	}
}
