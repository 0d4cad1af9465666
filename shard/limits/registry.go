package limits

import (
	"context"
	"encoding/json"
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

// DefaultPrefix is where the limits of a cluster live, beside its membership.
const DefaultPrefix = "/headrace/v1/limits/"

const suffix = "/limits"

// ErrRegistry means that the registry did not answer: what was to be written may be there or not.
var ErrRegistry = errors.New("the registry does not answer")

// Config says what a Registry keeps, and where. The zero value of a field is its documented default.
type Config struct {
	KV     member.KV        // Required
	Prefix string           // ends in "/"; DefaultPrefix
	Now    func() time.Time // time.Now
	// Changed is told all limits of a tenant each time they change. It is called by one goroutine at a time, in
	// order, and must not call the registry. Nobody may change them. Required.
	Changed func(tenant string, ls []task.Limit)
	Logger  *zap.Logger // nil: silent
}

// Registry is one node's view of all limits, and its way to change them. Make it with New, start it with Run;
// the other methods may be called from any goroutine.
type Registry struct {
	cfg Config
	log *zap.Logger

	listed int64 // revision of the newest list; of Run only

	mu      sync.Mutex // guards following; held while Changed runs, so that news come in order
	tenants map[string]entry
}

type entry struct {
	limits   []task.Limit
	revision int64
}

// New returns a registry that has read nothing yet.
func New(cfg Config) (*Registry, error) {
	if cfg.KV == nil || cfg.Changed == nil {
		return nil, errors.New("limits registry: KV and Changed are required")
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
	return &Registry{cfg: cfg, log: cfg.Logger.Named("limits"), tenants: map[string]entry{}}, nil
}

// Set stores a limit in place of the one that its downstream has, and returns it as stored. Errors: *task.FieldError,
// ErrRegistry (it may be stored).
func (r *Registry) Set(ctx context.Context, tenant string, l task.Limit) (task.Limit, error) {
	if err := l.Validate(); err != nil {
		return l, err
	}
	l.At = r.cfg.Now().UTC().Truncate(time.Microsecond)
	return l, r.change(ctx, tenant, func(ls []task.Limit) ([]task.Limit, error) {
		ls = slices.DeleteFunc(ls, func(o task.Limit) bool { return o.Downstream == l.Downstream })
		if len(ls) >= task.MaxLimits {
			return nil, &task.FieldError{Field: "tenant", Value: tenant, Want: fmt.Sprintf("a tenant with fewer than %d set limits", task.MaxLimits)}
		}
		return append(ls, l), nil
	})
}

// Remove takes a downstream's limit away and returns it; nil: there was none. Errors: ErrRegistry (it may be done).
func (r *Registry) Remove(ctx context.Context, tenant, downstream string) (removed *task.Limit, err error) {
	err = r.change(ctx, tenant, func(ls []task.Limit) ([]task.Limit, error) {
		removed = nil
		return slices.DeleteFunc(ls, func(o task.Limit) bool {
			if o.Downstream != downstream {
				return false
			}
			removed = &o
			return true
		}), nil
	})
	return removed, err
}

// change rewrites a tenant's record until nobody else wrote in between.
func (r *Registry) change(ctx context.Context, tenant string, f func([]task.Limit) ([]task.Limit, error)) error {
	key := r.cfg.Prefix + tenant + suffix
	for {
		call, cancel := context.WithTimeout(ctx, callMax)
		items, _, err := r.cfg.KV.List(call, key)
		cancel()
		if err != nil {
			return fmt.Errorf("read the limits of %s: %w (%w)", tenant, ErrRegistry, err)
		}
		var it member.Item
		if i := slices.IndexFunc(items, func(i member.Item) bool { return i.Key == key }); i >= 0 {
			it = items[i]
		}
		was, err := decode(it.Value)
		if err != nil {
			return fmt.Errorf("read the limits of %s: %w", tenant, err)
		}
		ls, err := f(slices.Clone(was))
		if err != nil {
			return err
		}
		sortLimits(ls)
		if slices.Equal(was, ls) {
			return nil
		}
		op := member.Op{Key: key, Value: encode(ls)}
		if len(ls) == 0 {
			op = member.Op{Key: key, Delete: true}
		}
		call, cancel = context.WithTimeout(ctx, callMax)
		ok, at, err := r.cfg.KV.Commit(call, member.Txn{If: []member.Cond{{Key: key, Revision: it.Revision}}, Then: []member.Op{op}})
		cancel()
		if err != nil {
			return fmt.Errorf("store the limits of %s: %w (%w)", tenant, ErrRegistry, err)
		}
		if ok {
			r.take(tenant, encode(ls), at)
			return nil
		}
	}
}

// take takes in a tenant's record. Older news than what is known change nothing.
func (r *Registry) take(tenant string, record []byte, revision int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.takeLocked(tenant, record, revision, false)
}

func (r *Registry) takeLocked(tenant string, record []byte, revision int64, force bool) {
	was := r.tenants[tenant]
	if was.revision == revision || was.revision > revision && !force {
		return
	}
	ls, err := decode(record)
	if err != nil { // what is known goes on
		r.log.Error("limits in the registry can't be read", zap.String("tenant", tenant), zap.Error(err))
		return
	}
	r.tenants[tenant] = entry{ls, revision}
	if !slices.Equal(was.limits, ls) {
		r.cfg.Changed(tenant, ls)
	}
}

// takeAll makes a list what is known, but for what was heard since it was read.
func (r *Registry) takeAll(items []member.Item, revision int64, restored bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	there := map[string]bool{}
	for _, it := range items {
		if tenant, ok := r.tenantOf(it.Key); ok {
			there[tenant] = true
			r.takeLocked(tenant, it.Value, it.Revision, restored)
		}
	}
	var gone []string
	for tenant, e := range r.tenants {
		if !there[tenant] && (restored || e.revision <= revision) {
			gone = append(gone, tenant)
		}
	}
	slices.Sort(gone)
	for _, tenant := range gone {
		if len(r.tenants[tenant].limits) > 0 {
			r.cfg.Changed(tenant, nil)
		}
		delete(r.tenants, tenant)
	}
}

func (r *Registry) tenantOf(key string) (tenant string, ok bool) {
	tenant, ok = strings.CutPrefix(key, r.cfg.Prefix)
	if ok {
		tenant, ok = strings.CutSuffix(tenant, suffix)
	}
	return tenant, ok && task.Name("tenant", tenant) == nil
}

// record is a tenant's key.
type record struct {
	Limits []limitJSON `json:"limits"`
}

type limitJSON struct {
	Downstream string    `json:"downstream"`
	Min        int       `json:"min,omitempty"`
	Max        int       `json:"max,omitempty"`
	Reason     string    `json:"reason,omitempty"`
	At         time.Time `json:"at"`
}

func encode(ls []task.Limit) []byte {
	var rec record
	for _, l := range ls {
		rec.Limits = append(rec.Limits, limitJSON(l))
	}
	b, err := json.Marshal(rec)
	if err != nil {
		panic(fmt.Sprintf("limits: encode a record: %v", err)) // all of its fields can be
	}
	return b
}

// decode reads a tenant's record; none has no limits.
func decode(b []byte) ([]task.Limit, error) {
	if len(b) == 0 {
		return nil, nil
	}
	var rec record
	if err := json.Unmarshal(b, &rec); err != nil {
		return nil, err
	}
	var ls []task.Limit
	for _, j := range rec.Limits {
		j.At = j.At.UTC()
		ls = append(ls, task.Limit(j))
	}
	sortLimits(ls)
	return ls, nil
}

func sortLimits(ls []task.Limit) {
	slices.SortFunc(ls, func(a, b task.Limit) int { return strings.Compare(a.Downstream, b.Downstream) })
}
