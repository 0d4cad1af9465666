package pause

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/headrace/headrace/shard/member"
	"github.com/headrace/headrace/task"
)

// DefaultPrefix is where the rules of a cluster live, beside its membership.
const DefaultPrefix = "/headrace/v1/pauses/"

// Errors that callers act on.
var (
	// ErrRegistry means that the registry did not answer: what was to be written may be there or not.
	ErrRegistry = errors.New("the registry does not answer")
	// ErrTooMany means that the cluster holds as many rules as it may.
	ErrTooMany = errors.New("the cluster has too many pause rules")
)

// maxRules bounds the rules of all tenants: some megabytes of the registry.
const maxRules = 20_000

// Config says what a Registry keeps, and where. The zero value of a field is its documented default.
type Config struct {
	KV     member.KV        // Required
	Prefix string           // ends in "/"; DefaultPrefix
	Now    func() time.Time // time.Now
	// Changed is told a tenant's rules, all of them, each time they change. It is called by one goroutine at a
	// time, in order, and must not call the registry. Nobody may change the rules. Required.
	Changed func(tenant string, rules []task.Pause)
	Logger  *zap.Logger // nil: silent
}

// Rules are a tenant's rules at a revision of its key. Nobody may change them.
type Rules struct {
	Tenant   string
	Rules    []task.Pause // by function and band; what has ended by itself may be among them
	Revision int64        // of the newest write
}

// Registry is one node's view of all rules, and its way to change them. Make it with New, start it with Run;
// the other methods may be called from any goroutine.
type Registry struct {
	cfg Config
	log *zap.Logger

	reading chan struct{} // holds one token while a list is read and taken
	asked   uint64        // calls of Current; guarded by mu
	read    uint64        // those that a list has answered; holder of reading only
	listed  int64         // revision of the newest list; holder of reading only

	mu      sync.Mutex        // guards following; held while Changed runs, so that news come in order
	tenants map[string]*Rules // replaced, never changed
	count   int               // rules
}

// New returns a registry that has read nothing yet.
func New(cfg Config) (*Registry, error) {
	if cfg.KV == nil || cfg.Changed == nil {
		return nil, errors.New("pause registry: KV and Changed are required")
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
	return &Registry{cfg: cfg, log: cfg.Logger.Named("pause"), reading: make(chan struct{}, 1), tenants: map[string]*Rules{}}, nil
}

// Of returns a tenant's rules as last heard.
func (r *Registry) Of(tenant string) []task.Pause {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.tenants[tenant]; e != nil {
		return e.Rules
	}
	return nil
}

// All returns all tenants that have rules that hold, by name, those after a name only ("": all).
func (r *Registry) All(after string) []Rules {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []Rules
	for tenant, e := range r.tenants {
		if tenant > after && len(e.Rules) > 0 {
			all = append(all, *e)
		}
	}
	slices.SortFunc(all, func(a, b Rules) int { return strings.Compare(a.Tenant, b.Tenant) })
	return all
}

// Current returns once everything is known that the registry held when it was called.
func (r *Registry) Current(ctx context.Context) error {
	r.mu.Lock()
	r.asked++
	mine := r.asked
	r.mu.Unlock()
	_, err := r.list(ctx, mine)
	return err
}

// list reads everything, unless a list that began after request mine has been read: one serves all who wait.
// It returns the revision of the newest list.
func (r *Registry) list(ctx context.Context, mine uint64) (int64, error) {
	select {
	case r.reading <- struct{}{}:
		defer func() { <-r.reading }()
	case <-ctx.Done():
		return 0, fmt.Errorf("read the pause rules: %w", context.Cause(ctx))
	}
	if mine != 0 && r.read >= mine {
		return r.listed, nil
	}
	r.mu.Lock()
	upTo, newest := r.asked, r.listed
	for _, e := range r.tenants { // heard before the list is asked for: it can't be older, unless the registry went back
		newest = max(newest, e.Revision)
	}
	r.mu.Unlock()
	call, cancel := context.WithTimeout(ctx, callMax)
	defer cancel()
	items, revision, err := r.cfg.KV.List(call, r.cfg.Prefix)
	if err != nil {
		return 0, fmt.Errorf("read the pause rules: %w (%w)", ErrRegistry, err)
	}
	restored := revision < newest
	if restored {
		r.log.Warn("the registry has gone back to an older state: what it has now holds", zap.Int64("revision", revision), zap.Int64("was", newest))
	}
	r.read, r.listed = upTo, revision
	r.takeAll(items, revision, restored)
	return revision, nil
}

// takeAll makes a list what is known, but for what was heard since it was read.
func (r *Registry) takeAll(items []member.Item, revision int64, restored bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	there := map[string]bool{}
	for _, it := range items {
		tenant, ok := r.tenantOf(it.Key)
		if !ok {
			continue
		}
		there[tenant] = true
		r.takeLocked(tenant, it.Value, it.Revision, restored)
	}
	var gone []string
	for tenant, e := range r.tenants {
		if !there[tenant] && (restored || e.Revision <= revision) {
			gone = append(gone, tenant)
		}
	}
	slices.Sort(gone)
	for _, tenant := range gone {
		r.setLocked(tenant, nil, 0)
	}
}

// Take takes in a tenant's record as somebody else has read or written it. Older news than what is known
// change nothing.
func (r *Registry) Take(tenant string, record []byte, revision int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.takeLocked(tenant, record, revision, false)
}

// Bring is Take for who acts on the rules next: if something newer is known it reads what the registry has, because that
// may have been restored to an older state. Errors: ErrRegistry.
func (r *Registry) Bring(ctx context.Context, tenant string, record []byte, revision int64) error {
	r.Take(tenant, record, revision)
	r.mu.Lock()
	e := r.tenants[tenant]
	r.mu.Unlock()
	if e != nil && e.Revision > revision {
		return r.Current(ctx)
	}
	return nil
}

func (r *Registry) takeLocked(tenant string, record []byte, revision int64, force bool) {
	if e := r.tenants[tenant]; e != nil && (e.Revision == revision || e.Revision > revision && !force) {
		return
	}
	rules, err := decode(record)
	if err != nil { // what is known goes on: a rule that is forgotten would let tasks start
		r.log.Error("pause rules in the registry can't be read", zap.String("tenant", tenant), zap.Error(err))
		return
	}
	r.setLocked(tenant, rules, revision)
}

// setLocked replaces a tenant's rules; revision 0: it is forgotten.
func (r *Registry) setLocked(tenant string, rules []task.Pause, revision int64) {
	var old []task.Pause
	if e := r.tenants[tenant]; e != nil {
		old = e.Rules
	}
	if revision == 0 {
		delete(r.tenants, tenant)
	} else {
		r.tenants[tenant] = &Rules{Tenant: tenant, Rules: rules, Revision: revision}
	}
	r.count += len(rules) - len(old)
	if !slices.EqualFunc(old, rules, equal) {
		r.cfg.Changed(tenant, rules)
	}
}

func (r *Registry) key(tenant string) string { return r.cfg.Prefix + tenant + "/rules" }

func (r *Registry) tenantOf(key string) (tenant string, ok bool) {
	tenant, ok = strings.CutPrefix(key, r.cfg.Prefix)
	if ok {
		tenant, ok = strings.CutSuffix(tenant, "/rules")
	}
	return tenant, ok && task.Name("tenant", tenant) == nil
}
