package tenants

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/headrace/headrace/shard/member"
	"github.com/headrace/headrace/task"
)

// DefaultPrefix is where the grants of a cluster live, beside its membership.
const DefaultPrefix = "/headrace/v1/tenants/"

// Errors that callers act on.
var (
	// ErrRegistry means that the registry did not answer: what was to be written may be there or not.
	ErrRegistry = errors.New("the registry does not answer")
	// ErrTooMany means that the cluster holds as many grants as it may.
	ErrTooMany = errors.New("the cluster has too many tenants with settings")
)

const (
	maxGrants = 100_000         // some megabytes of the registry
	resync    = time.Minute     // everything is listed again
	callMax   = 5 * time.Second // one exchange with the registry
	pauseMin  = 50 * time.Millisecond
)

// Config says what a Registry keeps, and where. The zero value of a field is its documented default.
type Config struct {
	KV     member.KV        // Required
	Prefix string           // ends in "/"; DefaultPrefix
	Now    func() time.Time // time.Now
	// Changed is told a tenant's grant each time it changes, the zero one when it is gone. It is called by one
	// goroutine at a time, in order, and must not call the registry. Nil: nobody is told.
	Changed func(tenant string, grant task.Tenant)
	Logger  *zap.Logger // nil: silent
}

// Grant is what a tenant was granted; its zero fields mean the defaults.
type Grant struct {
	Tenant   string
	Grant    task.Tenant
	At       time.Time // of the newest change
	Revision int64     // of the key; 0: there is none
}

// Registry is one node's view of all grants, and its way to change them. Make it with New, start it with Run;
// the other methods may be called from any goroutine.
type Registry struct {
	cfg Config
	log *zap.Logger

	mu      sync.Mutex       // guards following; held while Changed runs, so that news come in order
	tenants map[string]Grant // those that are gone, too, until a list is newer
	listed  int64            // revision of the newest list
}

// New returns a registry that has read nothing yet.
func New(cfg Config) (*Registry, error) {
	if cfg.KV == nil {
		return nil, errors.New("tenant registry: KV is required")
	}
	if cfg.Prefix == "" {
		cfg.Prefix = DefaultPrefix
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Changed == nil {
		cfg.Changed = func(string, task.Tenant) {}
	}
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	return &Registry{cfg: cfg, log: cfg.Logger.Named("tenants"), tenants: map[string]Grant{}}, nil
}

// Of returns a tenant's grant as last heard, without defaults.
func (r *Registry) Of(tenant string) Grant {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.tenants[tenant]
	g.Tenant = tenant
	return g
}

// All returns the grants by tenant, those after a name only ("": all).
func (r *Registry) All(after string) []Grant {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []Grant
	for tenant, g := range r.tenants {
		if tenant > after && g.Grant != (task.Tenant{}) {
			all = append(all, g)
		}
	}
	slices.SortFunc(all, func(a, b Grant) int { return strings.Compare(a.Tenant, b.Tenant) })
	return all
}

// Change has f change a tenant's grant, until nobody else wrote in between, and returns what it is then. The zero grant
// takes the record away. Errors: *task.FieldError of f or of the grant, ErrTooMany, ErrRegistry (it may be stored).
func (r *Registry) Change(ctx context.Context, tenant string, f func(task.Tenant) (task.Tenant, error)) (Grant, error) {
	if err := task.Name("tenant", tenant); err != nil {
		return Grant{}, err
	}
	key := r.cfg.Prefix + tenant + suffix
	for {
		call, cancel := context.WithTimeout(ctx, callMax)
		items, _, err := r.cfg.KV.List(call, key)
		cancel()
		if err != nil {
			return Grant{}, fmt.Errorf("read the grant of %s: %w (%w)", tenant, ErrRegistry, err)
		}
		var it member.Item
		for _, i := range items {
			if i.Key == key {
				it = i
			}
		}
		g, err := decode(tenant, it.Value)
		if err != nil {
			return Grant{}, fmt.Errorf("read the grant of %s: %w", tenant, err)
		}
		g.Revision = it.Revision
		next, err := f(g.Grant)
		if err == nil {
			err = next.Validate()
		}
		if err != nil {
			return Grant{}, err
		}
		if next == g.Grant {
			return g, nil
		}
		if it.Revision == 0 && len(r.All("")) >= maxGrants {
			return Grant{}, ErrTooMany
		}
		g = Grant{Tenant: tenant, Grant: next, At: r.cfg.Now().UTC().Truncate(time.Microsecond)}
		op := member.Op{Key: key, Value: encode(g)}
		if next == (task.Tenant{}) {
			op = member.Op{Key: key, Delete: true}
		}
		call, cancel = context.WithTimeout(ctx, callMax)
		ok, at, err := r.cfg.KV.Commit(call, member.Txn{If: []member.Cond{{Key: key, Revision: it.Revision}}, Then: []member.Op{op}})
		cancel()
		if err != nil {
			return Grant{}, fmt.Errorf("store the grant of %s: %w (%w)", tenant, ErrRegistry, err)
		}
		if !ok {
			continue // somebody else wrote: with what he wrote, again
		}
		g.Revision = at
		r.mu.Lock()
		r.set(g)
		r.mu.Unlock()
		return g, nil
	}
}

// Current reads everything once. Errors: ErrRegistry.
func (r *Registry) Current(ctx context.Context) error {
	_, err := r.list(ctx)
	return err
}

func (r *Registry) list(ctx context.Context) (int64, error) {
	r.mu.Lock()
	newest := r.listed
	for _, g := range r.tenants { // heard before the list is asked for: it can't be older, unless the registry went back
		newest = max(newest, g.Revision)
	}
	r.mu.Unlock()
	call, cancel := context.WithTimeout(ctx, callMax)
	defer cancel()
	items, revision, err := r.cfg.KV.List(call, r.cfg.Prefix)
	if err != nil {
		return 0, fmt.Errorf("read the tenants' grants: %w (%w)", ErrRegistry, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	restored := revision < newest
	if restored {
		r.log.Warn("the registry has gone back to an older state: what it has now holds", zap.Int64("revision", revision), zap.Int64("was", newest))
	} else if revision < r.listed {
		return r.listed, nil // another list, asked for later, was faster
	}
	r.listed = revision
	there := map[string]bool{}
	for _, it := range items {
		if tenant, ok := r.tenantOf(it.Key); ok {
			there[tenant] = true
			r.take(tenant, it.Value, it.Revision, restored)
		}
	}
	for tenant, g := range r.tenants {
		if !there[tenant] && (restored || g.Revision <= revision) {
			r.set(Grant{Tenant: tenant, Revision: g.Revision})
			delete(r.tenants, tenant)
		}
	}
	return revision, nil
}

// take takes in a record; news that are older than what is known change nothing, unless forced. The caller holds mu.
func (r *Registry) take(tenant string, record []byte, revision int64, force bool) {
	if g := r.tenants[tenant]; g.Revision == revision || g.Revision > revision && !force {
		return
	}
	g, err := decode(tenant, record)
	if err != nil { // what is known goes on
		r.log.Error("a tenant's grant in the registry can't be read", zap.String("tenant", tenant), zap.Error(err))
		return
	}
	g.Revision = revision
	r.set(g)
}

// set replaces a grant. The caller holds mu.
func (r *Registry) set(g Grant) {
	old := r.tenants[g.Tenant]
	if old.Revision > g.Revision && g.Grant == (task.Tenant{}) {
		return
	}
	r.tenants[g.Tenant] = g
	if old.Grant != g.Grant {
		r.cfg.Changed(g.Tenant, g.Grant)
	}
}

const suffix = "/grant"

func (r *Registry) tenantOf(key string) (tenant string, ok bool) {
	tenant, ok = strings.CutPrefix(key, r.cfg.Prefix)
	if ok {
		tenant, ok = strings.CutSuffix(tenant, suffix)
	}
	return tenant, ok && task.Name("tenant", tenant) == nil
}

// Run follows the registry until ctx ends; it returns its cause. Call it once.
func (r *Registry) Run(ctx context.Context) error {
	pause := func(d time.Duration) {
		select {
		case <-time.After(d/2 + rand.N(d/2)):
		case <-ctx.Done():
		}
	}
	for wait := pauseMin; ctx.Err() == nil; {
		revision, err := r.list(ctx)
		if err != nil {
			if ctx.Err() == nil {
				r.log.Warn("the tenants' grants can't be read: those that are known hold", zap.Error(err))
			}
			pause(wait)
			wait = min(2*wait, callMax)
			continue
		}
		wait = pauseMin
		wctx, cancel := context.WithTimeout(ctx, resync)
		began := time.Now()
		for changes := range r.cfg.KV.Watch(wctx, r.cfg.Prefix, revision) {
			r.mu.Lock()
			for _, ch := range changes {
				if tenant, ok := r.tenantOf(ch.Key); ok {
					r.take(tenant, ch.Value, ch.Revision, false)
				}
			}
			r.mu.Unlock()
		}
		early := wctx.Err() == nil && time.Since(began) < pauseMin
		cancel()
		if early { // a watch that ends at once must not become a busy loop
			pause(wait)
		}
	}
	return context.Cause(ctx)
}

// record is a tenant's key.
type record struct {
	DrainMaxMillis int64     `json:"drain_max_ms,omitempty"`
	MaxRows        int64     `json:"max_rows,omitempty"`
	MaxBytes       int64     `json:"max_bytes,omitempty"`
	Rate           float64   `json:"rate,omitempty"`
	Burst          float64   `json:"burst,omitempty"`
	Weight         int       `json:"weight,omitempty"`
	Class          string    `json:"class,omitempty"`
	At             time.Time `json:"at,omitzero"`
}

func encode(g Grant) []byte {
	b, err := json.Marshal(record{
		DrainMaxMillis: g.Grant.DrainMax.Milliseconds(), MaxRows: g.Grant.MaxRows, MaxBytes: g.Grant.MaxBytes,
		Rate: g.Grant.Rate, Burst: g.Grant.Burst, Weight: g.Grant.Weight, Class: g.Grant.Class.String(), At: g.At,
	})
	if err != nil {
		panic(fmt.Sprintf("tenants: encode a record: %v", err)) // all of its fields can be
	}
	return b
}

// decode reads a record; none is the zero grant.
func decode(tenant string, b []byte) (Grant, error) {
	g := Grant{Tenant: tenant}
	if len(b) == 0 {
		return g, nil
	}
	var rec record
	if err := json.Unmarshal(b, &rec); err != nil {
		return g, err
	}
	class, err := task.ParseTenantClass(rec.Class)
	if err != nil {
		return g, err
	}
	g.At = rec.At
	g.Grant = task.Tenant{DrainMax: time.Duration(rec.DrainMaxMillis) * time.Millisecond, MaxRows: rec.MaxRows, MaxBytes: rec.MaxBytes,
		Rate: rec.Rate, Burst: rec.Burst, Weight: rec.Weight, Class: class}
	return g, g.Grant.Validate()
}
