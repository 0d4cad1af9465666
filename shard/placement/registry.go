package placement

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/headrace/headrace/shard"
	"github.com/headrace/headrace/shard/member"
	"github.com/headrace/headrace/task"
)

// DefaultPrefix is where the placements of a cluster live, beside its membership.
const DefaultPrefix = "/headrace/v1/placement/"

// DefaultShardSize is k of a new tenant: the sweet spot for 32 to 256 partitions (algorithms.md §1.3).
const DefaultShardSize = 4

// ErrPending means that the tenant's placement is not stored yet: the registry is slow, or can't be reached.
var ErrPending = errors.New("the tenant's placement is not stored yet")

// Bounds.
const (
	maxTenants = 200_000 // stored: 64 MB of a registry hold twice as many
	maxQueued  = 20_000  // to be stored: beyond, they are computed each time
	storedWait = 2 * time.Second
)

// Config says what a Registry keeps, and where. The zero value of a field is its documented default.
type Config struct {
	KV     member.KV // Required
	Secret string    // of the cluster. Required
	// Catalogue returns the partitions, by number. It is called often and must not wait; what it
	// returned is never changed. Required.
	Catalogue func() []shard.Partition
	ShardSize int              // of a new tenant; DefaultShardSize
	Prefix    string           // ends in "/"; DefaultPrefix
	Now       func() time.Time // time.Now
	Logger    *zap.Logger      // nil: silent
}

// Shard is where a tenant's new tasks go. Nobody may change its slices.
type Shard struct {
	shard.Placement          // with the catalogue's closed partitions replaced
	Stored          bool     // false: computed only
	AtHome          []uint32 // its members in the directory database: for client-given ids, once it is stored
	WereAtHome      []uint32 // those of Before
}

// Registry is one node's view of all placements, and its way to change them. Make it with New, start it
// with Run; the other methods may be called from any goroutine.
type Registry struct {
	cfg  Config
	keys keys
	log  *zap.Logger

	snapshot atomic.Pointer[Snapshot] // replaced by Run's loop only
	injected chan injected            // own writes, to the loop
	poke     chan struct{}            // says that queue has something; never blocks

	mu sync.Mutex // guards following
	// Tenants whose placement has to be written, with what is computed meanwhile; nil: they have a stored one.
	wanted  map[string]*resolved
	queue   []string      // those of wanted, in turn
	changed chan struct{} // closed and replaced when the snapshot is
}

type injected struct {
	changes []member.Change
	applied chan struct{} // closed by the loop
}

// New returns a registry that has read nothing yet.
func New(cfg Config) (*Registry, error) {
	if cfg.ShardSize == 0 {
		cfg.ShardSize = DefaultShardSize
	}
	if cfg.Prefix == "" {
		cfg.Prefix = DefaultPrefix
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	switch {
	case cfg.KV == nil || cfg.Secret == "" || cfg.Catalogue == nil:
		return nil, errors.New("placement registry: KV, Secret and Catalogue are required")
	case cfg.ShardSize < 1 || cfg.ShardSize > shard.MaxShard:
		return nil, &task.FieldError{Field: "ShardSize", Value: fmt.Sprint(cfg.ShardSize), Want: fmt.Sprintf("1 to %d", shard.MaxShard)}
	}
	r := &Registry{
		cfg: cfg, keys: keys(cfg.Prefix), log: cfg.Logger.Named("placement"),
		injected: make(chan injected), poke: make(chan struct{}, 1),
		wanted: map[string]*resolved{}, changed: make(chan struct{}),
	}
	r.snapshot.Store(&Snapshot{})
	return r, nil
}

// Snapshot is all that is stored, as last heard.
func (r *Registry) Snapshot() *Snapshot { return r.snapshot.Load() }

// Of returns a tenant's shard, without waiting. One that is not stored yet is computed, and queued to be
// stored. It has no members while the catalogue has no open partitions.
func (r *Registry) Of(tenant string) *Shard { return r.of(tenant, true) }

// Look is Of for who submits nothing: it causes no write.
func (r *Registry) Look(tenant string) *Shard { return r.of(tenant, false) }

func (r *Registry) of(tenant string, uses bool) *Shard {
	catalogue := r.cfg.Catalogue()
	e := r.snapshot.Load().get(tenant)
	if e != nil {
		if res := e.resolved.Load(); res != nil && same(res.catalogue, catalogue) {
			return &res.shard
		}
		fit, moved := shard.Fit(r.cfg.Secret, e.p, catalogue, r.cfg.Now())
		res := resolve(fit, catalogue, true)
		if uses || !moved {
			e.resolved.Store(res)
		}
		if uses && moved {
			r.want(tenant, nil)
		}
		return &res.shard
	}
	r.mu.Lock()
	computed := r.wanted[tenant]
	r.mu.Unlock()
	if computed != nil && same(computed.catalogue, catalogue) {
		return &computed.shard
	}
	// With the first salt only: every node computes the same.
	p := shard.Place(shard.Key{Secret: r.cfg.Secret, Tenant: tenant}, salts[:1], catalogue, r.cfg.ShardSize, nil, r.cfg.Now())
	res := resolve(p, catalogue, false)
	if uses && len(p.Members) > 0 {
		r.want(tenant, res)
	}
	return &res.shard
}

// Stored returns a tenant's shard once its placement is stored, which takes a write the first time only.
// It waits for at most 2 s. Errors: ErrPending, the context's.
func (r *Registry) Stored(ctx context.Context, tenant string) (*Shard, error) {
	var late <-chan time.Time
	for {
		changed := r.change() // before the look, so that no change is missed
		s := r.Of(tenant)
		if s.Stored {
			return s, nil
		}
		if late == nil {
			t := time.NewTimer(storedWait)
			defer t.Stop()
			late = t.C
		}
		select {
		case <-changed:
		case <-late:
			return nil, ErrPending
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func resolve(p shard.Placement, catalogue []shard.Partition, stored bool) *resolved {
	s := Shard{Placement: p, Stored: stored, AtHome: p.AtHome(catalogue, p.Members)}
	if len(p.Before) > 0 {
		s.WereAtHome = p.AtHome(catalogue, p.Before)
	}
	return &resolved{catalogue, s}
}

// same reports whether a catalogue is the very one.
func same(a, b []shard.Partition) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// want queues a tenant whose placement has to be written.
func (r *Registry) want(tenant string, computed *resolved) {
	r.mu.Lock()
	if _, queued := r.wanted[tenant]; !queued {
		if len(r.queue) >= maxQueued {
			r.mu.Unlock()
			return
		}
		r.queue = append(r.queue, tenant)
	}
	r.wanted[tenant] = computed
	r.mu.Unlock()
	select {
	case r.poke <- struct{}{}:
	default:
	}
}

// change returns a channel that is closed when the snapshot is replaced.
func (r *Registry) change() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}
