package truth

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/headrace/headrace/shard/member"
	"github.com/headrace/headrace/store"
)

// ErrHeld means that the registry is behind the databases: no configuration is changed and nothing is pushed until
// somebody says which of the two is true.
var ErrHeld = errors.New("the registry is behind the databases, or not compared with them yet: see `headrace cluster status`")

// Database is one of the databases, in the configuration's order: the first one holds the copies.
type Database struct {
	Name   string
	Keeper store.Keeper
}

// Config says what a Gate stands between.
type Config struct {
	KV        member.KV  // Required
	Databases []Database // At least one
	// Changed is told each time Held becomes something else; nil: it is not there. It must not wait, or call the gate.
	Changed func(*Held)
	Logger  *zap.Logger
}

// Held says why a node holds its pushes.
type Held struct {
	Unsure   bool   // no database has been asked yet; the rest is not set
	Registry uint64 // the version there
	Highest  uint64 // the version that was seen before
	Who      string // a database that has seen it; "": this node itself
	Since    time.Time
	Reason   string // for people
}

func (h Held) reason() string {
	if h.Unsure {
		return "held: the registry's configuration has not been compared with a database's yet"
	}
	who := "database " + h.Who
	if h.Who == "" {
		who = "this node"
	}
	return fmt.Sprintf("held: the registry's configuration is of version %d, %s has seen %d: it was restored or lost, and waits for `headrace cluster accept-restore`",
		h.Registry, who, h.Highest)
}

// Gate is a member.KV that counts the changes of the configuration and notices when they went back. Make it with
// New, start it with Run; all methods may be called from any goroutine.
type Gate struct {
	kv  member.KV
	dbs []Database
	log *zap.Logger
	say func(*Held) // Config.Changed

	held atomic.Pointer[Held] // nil: agreed

	comparing chan struct{} // holds one token while a comparison asks: one at a time, and who waits can give up

	mu       sync.Mutex // guards following; never held while waiting
	highest  uint64     // the highest version that anybody was heard to have seen
	who      string     // the database that has; "": the registry itself
	newest   int64      // the registry's highest revision since it last went back
	doubt    bool       // the databases are to be asked
	away     bool       // the registry did not answer the last comparison
	watching context.Context
	rewatch  context.CancelFunc // ends watching: all watches
}

var _ member.KV = (*Gate)(nil)

// New returns a gate that is not sure of anything yet.
func New(cfg Config) (*Gate, error) {
	if cfg.KV == nil || len(cfg.Databases) == 0 {
		return nil, errors.New("truth: KV and at least one database are required")
	}
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	if cfg.Changed == nil {
		cfg.Changed = func(*Held) {}
	}
	g := &Gate{kv: cfg.KV, dbs: cfg.Databases, log: cfg.Logger.Named("truth"), say: cfg.Changed, doubt: true, comparing: make(chan struct{}, 1)}
	g.watching, g.rewatch = context.WithCancel(context.Background())
	h := Held{Unsure: true, Since: time.Now()}
	h.Reason = h.reason()
	g.held.Store(&h)
	return g, nil
}

func (g *Gate) hold(h Held) {
	h.Reason = h.reason()
	if was := g.held.Load(); was == nil || was.Reason != h.Reason {
		g.say(&h)
	}
	g.held.Store(&h)
}

// Held returns why nothing may be pushed; nil: it may.
func (g *Gate) Held() *Held { return g.held.Load() }

// Grant is member.KV's, as are the following.
func (g *Gate) Grant(ctx context.Context, ttl time.Duration) (member.LeaseID, error) {
	return g.kv.Grant(ctx, ttl)
}

// KeepAlive renews a lease.
func (g *Gate) KeepAlive(ctx context.Context, lease member.LeaseID) error {
	err := g.kv.KeepAlive(ctx, lease)
	if err != nil {
		g.doubtIt()
	}
	return err
}

// Revoke ends a lease.
func (g *Gate) Revoke(ctx context.Context, lease member.LeaseID) error {
	return g.kv.Revoke(ctx, lease)
}

// List reads a prefix. What it returns of the configuration has been compared: Held says so before.
func (g *Gate) List(ctx context.Context, prefix string) ([]member.Item, int64, error) {
	before := g.revision()
	items, revision, err := g.kv.List(ctx, prefix)
	if err != nil {
		g.doubtIt()
		return nil, 0, err
	}
	back := g.heard(revision, before)
	if back || lists(prefix) {
		if err := g.compare(ctx, false); err != nil {
			return nil, 0, fmt.Errorf("compare the configuration: %w", err)
		}
	}
	return items, revision, nil
}

// Commit applies a transaction, and counts it if it changes configuration. Errors: ErrHeld, for such a one.
func (g *Gate) Commit(ctx context.Context, txn member.Txn) (bool, int64, error) {
	if changes(txn) {
		// Compared each time: a few changes to a registry that was restored a moment ago would bring its version
		// to where it was, and nobody would ever notice.
		if err := g.compare(ctx, false); err != nil {
			return false, 0, fmt.Errorf("compare the configuration: %w", err)
		}
		if g.held.Load() != nil {
			return false, 0, ErrHeld
		}
		txn.Then = append(slices.Clip(txn.Then), member.Op{Key: changesKey})
	}
	before := g.revision()
	ok, revision, err := g.kv.Commit(ctx, txn)
	if err != nil {
		g.doubtIt()
		return ok, revision, err
	}
	g.heard(revision, before)
	return ok, revision, nil
}

// Watch follows a prefix, and ends when what follows might not come any more.
func (g *Gate) Watch(ctx context.Context, prefix string, after int64) <-chan []member.Change {
	g.mu.Lock()
	all := g.watching
	g.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	forget := context.AfterFunc(all, cancel)
	context.AfterFunc(ctx, func() { forget() })
	return g.kv.Watch(ctx, prefix, after)
}

func (g *Gate) revision() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.newest
}

func (g *Gate) doubtIt() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.doubt = true
}

// heard takes in the revision of an answer, and the newest one that was known before it was asked for. It reports
// whether the registry went back: then all watches end.
func (g *Gate) heard(revision, before int64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if revision >= before {
		g.newest = max(g.newest, revision)
		return false
	}
	if revision < g.newest { // the first to notice
		g.log.Error("the registry's revision went back: it was restored or lost", zap.Int64("from", g.newest), zap.Int64("to", revision))
		g.newest, g.doubt = revision, true
		g.endWatches()
	}
	return true
}

// endWatches is called with mu held.
func (g *Gate) endWatches() {
	g.rewatch()
	g.watching, g.rewatch = context.WithCancel(context.Background())
}
