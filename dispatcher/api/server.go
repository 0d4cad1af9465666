package api

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/dispatcher/door"
	"github.com/headrace/headrace/dispatcher/loop"
	"github.com/headrace/headrace/dispatcher/peer"
	"github.com/headrace/headrace/dispatcher/pools"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/shard"
	"github.com/headrace/headrace/shard/limits"
	"github.com/headrace/headrace/shard/pause"
	"github.com/headrace/headrace/shard/placement"
	"github.com/headrace/headrace/shard/tenants"
	"github.com/headrace/headrace/shard/truth"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// Engine is the owners of all partitions, as the services need them: a peer.Router. The methods are
// described there.
type Engine interface {
	Submit(ctx context.Context, s *core.Submit) (core.SubmitAnswer, error)
	Cancel(ctx context.Context, c core.Cancel) (core.CancelAnswer, error)
	Watch(ctx context.Context, id task.ID) (events <-chan core.Event, stop func(), err error)
	Views(ctx context.Context, ids []task.ID) ([]core.Live, error)
	Explain(ctx context.Context, t *store.Task) (core.Explanation, error)
	Running(ctx context.Context, tenant, function string, partitions []uint32, most int) ([]core.Live, error)
	ApplyPauses(ctx context.Context, node shard.NodeID, a peer.Pauses) ([]uint32, error)
	Limits(ctx context.Context, q loop.LimitQuery) (ls []*headracev1.Limit, more bool, missing []string, err error)
	Bounds(ctx context.Context, q peer.BoundQuery) (bs []*headracev1.Bound, more bool, missing []string, err error)
	Pick(a, b uint32, n int) (partition uint32, ok bool)
	Up(partition uint32) bool
	Away(partition uint32) (since time.Time, away bool)
	Partitions() []core.PartitionStat
	Load(partition uint32) (l peer.Load, ok bool)
	Node(id string) *headracev1.Node
}

// Cluster is what the services need of the membership.
type Cluster interface {
	// Directory is never changed after it was published.
	Directory() *shard.Directory
	// Owners reads from the registry who owns what.
	Owners(ctx context.Context) (map[uint32]shard.NodeID, error)
	// SetPartitions replaces entries of the catalogue. Errors: member.ErrConflict.
	SetPartitions(ctx context.Context, ps ...shard.Partition) error
}

// Truth is what the services need of truth.Gate.
type Truth interface {
	Status(ctx context.Context) (*truth.Status, error)
	Accept(ctx context.Context, from truth.Source) error
}

// Config says what the services serve. The zero value of a field is its documented default.
type Config struct {
	NodeID        string
	Version       string // of the binary, for people
	StartedAt     time.Time
	Databases     []store.Store // Required. With several, DatabaseOf says which holds a partition
	DatabaseNames []string      // theirs, for people
	DatabaseOf    func(partition uint32) (index int, ok bool)
	// DatabaseAway reports whether a database has not answered this node for a moment. Nil: never.
	DatabaseAway func(index int) bool
	// Secret keys page tokens. It must be the same on all nodes and for ever. Required.
	Secret string
	// Placements say where tenants' tasks go. Required.
	Placements *placement.Registry
	// Pauses are the rules that keep tenants' tasks from starting. Required.
	Pauses *pause.Registry
	// Limits are what operators say of adaptive limits. Required.
	Limits *limits.Limits
	// Bounds are the limits that users set. Required.
	Bounds *limits.Bounds
	// Tenants are what tenants were granted. Required.
	Tenants *tenants.Registry
	// Door says who may submit now. Required.
	Door *door.Door
	// Pools knows what executors are needed. Required.
	Pools *pools.Pools

	Now        func() time.Time // time.Now
	MaxPayload int              // bytes; task.MaxPayload. Up to task.MaxPayloadConfig
	MaxWatches int              // open waits of a tenant; task.MaxWatches
	// Self fills in what only this node knows of itself for ListNodes. Nil: nothing.
	Self func(*headracev1.Node)
	// Truth compares the registry with the databases. Required for GetClusterStatus and AcceptRestore.
	Truth  Truth
	Logger *zap.Logger // nil: silent
}

// Services are the node's gRPC services.
type Services struct {
	cfg     Config
	engine  Engine
	cluster Cluster
	log     *zap.Logger

	draining  chan struct{} // closed by Drain
	drainOnce sync.Once

	mu      sync.Mutex     // guards following
	waits   map[string]int // open ones by tenant
	changed chan struct{}  // closed and replaced when the directory changes
	shed    chan struct{}  // closed and replaced by ShedDirectories

	inFlight atomic.Int64 // payload bytes of submits that are not answered yet
	held     atomic.Int64 // submits that wait for an owner
}

// New returns the services. Register them with Register.
func New(cfg Config, engine Engine, cluster Cluster) (*Services, error) {
	if len(cfg.Databases) == 0 {
		return nil, errors.New("new api: no databases")
	}
	if cfg.Secret == "" || cfg.Placements == nil || cfg.Pauses == nil || cfg.Limits == nil || cfg.Bounds == nil || cfg.Tenants == nil || cfg.Door == nil || cfg.Pools == nil {
		return nil, errors.New("new api: Secret, Placements, Pauses, Limits, Bounds, Tenants, Door and Pools are required")
	}
	if cfg.MaxPayload == 0 {
		cfg.MaxPayload = task.MaxPayload
	}
	if err := task.Duration("MaxPayload", time.Duration(cfg.MaxPayload), 1, task.MaxPayloadConfig); err != nil {
		return nil, errors.New("new api: MaxPayload: want 1 to 16777216 bytes")
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.MaxWatches == 0 {
		cfg.MaxWatches = task.MaxWatches
	}
	if cfg.DatabaseOf == nil {
		cfg.DatabaseOf = func(uint32) (int, bool) { return 0, true }
	}
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	return &Services{
		cfg: cfg, engine: engine, cluster: cluster, log: cfg.Logger.Named("api"),
		draining: make(chan struct{}),
		waits:    map[string]int{},
		changed:  make(chan struct{}),
		shed:     make(chan struct{}),
	}, nil
}

// Drain refuses new calls and ends waits and directory streams with UNAVAILABLE, so that their callers go
// to another node. Calls under way go on.
func (s *Services) Drain() { s.drainOnce.Do(func() { close(s.draining) }) }

// DirectoryChanged says that Cluster.Directory has something new.
func (s *Services) DirectoryChanged() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.changed)
	s.changed = make(chan struct{})
}

// ShedDirectories ends the directory streams: this node is cut off from the registry, and others may know more.
// Who finds no other may come back: what is known here is better than nothing.
func (s *Services) ShedDirectories() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.shed)
	s.shed = make(chan struct{})
}

func (s *Services) directoryChange() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

func (s *Services) directoryShed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shed
}

// admit refuses what comes during a drain.
func (s *Services) admit() error {
	select {
	case <-s.draining:
		return errDraining
	default:
		return nil
	}
}

// get reads a row from the database of its partition. Errors: store.ErrNotFound.
func (s *Services) get(ctx context.Context, id task.ID) (*store.Task, error) {
	i, ok := s.cfg.DatabaseOf(id.Partition())
	if !ok { // a partition that never was, or one of a database that this node does not know
		return nil, fmt.Errorf("get task %s: %w", id, store.ErrNotFound)
	}
	call, cancel := context.WithTimeout(ctx, readMax)
	defer cancel()
	t, err := s.cfg.Databases[i].Get(call, id)
	if err != nil {
		return nil, fmt.Errorf("get task %s: %w", id, s.lacking(ctx, i, err))
	}
	return t, nil
}

// randomID returns 16 random bytes.
func randomID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return string(b[:])
}
