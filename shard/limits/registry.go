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

// ErrRegistry means that the registry did not answer: what was to be written may be there or not.
var ErrRegistry = errors.New("the registry does not answer")

// Config says what a Registry keeps, and where. The zero value of a field is its documented default.
type Config[T comparable] struct {
	KV     member.KV        // Required
	Prefix string           // ends in "/"; DefaultPrefix
	Now    func() time.Time // time.Now
	// Changed is told all rules of a tenant each time they change. It is called by one goroutine at a time, in
	// order, and must not call the registry. Nobody may change them. Required.
	Changed func(tenant string, ls []T)
	Logger  *zap.Logger // nil: silent
}

// Limits keeps what operators say of adaptive limits, Bounds the limits that users set.
type (
	Limits = Registry[task.Limit]
	Bounds = Registry[task.Bound]
)

// kind says how rules of one kind are kept.
type kind[T comparable] struct {
	suffix string // of the key
	what   string // for people
	most   int    // of a tenant
	of     func(T) string
	check  func(T) error
	at     func(*T) *time.Time // when it was said
	read   func(*record) []T
	write  func(*record, []T)
}

// Registry is one node's view of all rules of a kind, and its way to change them. Make it with New or NewBounds, start it
// with Run; the other methods may be called from any goroutine.
type Registry[T comparable] struct {
	kind kind[T]
	cfg  Config[T]
	log  *zap.Logger

	listed int64         // revision of the newest list; of Run only
	loaded chan struct{} // closed once there was one

	mu      sync.Mutex // guards following; held while Changed runs, so that news come in order
	tenants map[string]entry[T]
}

type entry[T comparable] struct {
	limits   []T
	revision int64
}

// New returns a registry of adaptive limits that has read nothing yet.
func New(cfg Config[task.Limit]) (*Limits, error) {
	return newRegistry(cfg, kind[task.Limit]{
		suffix: "/limits", what: "limits", most: task.MaxLimits, check: task.Limit.Validate,
		of: func(l task.Limit) string { return l.Downstream },
		at: func(l *task.Limit) *time.Time { return &l.At },
		read: func(r *record) []task.Limit {
			return each(r.Limits, func(j limitJSON) task.Limit { return task.Limit(j) })
		},
		write: func(r *record, ls []task.Limit) {
			r.Limits = each(ls, func(l task.Limit) limitJSON { return limitJSON(l) })
		},
	})
}

// NewBounds returns a registry of limits that users set that has read nothing yet.
func NewBounds(cfg Config[task.Bound]) (*Bounds, error) {
	return newRegistry(cfg, kind[task.Bound]{
		suffix: "/bounds", what: "limits of tasks", most: task.MaxBounds, check: task.Bound.Validate,
		of: func(b task.Bound) string { return b.Function },
		at: func(b *task.Bound) *time.Time { return &b.At },
		read: func(r *record) []task.Bound {
			return each(r.Bounds, func(j boundJSON) task.Bound { return task.Bound(j) })
		},
		write: func(r *record, bs []task.Bound) {
			r.Bounds = each(bs, func(b task.Bound) boundJSON { return boundJSON(b) })
		},
	})
}

func each[A, B any](as []A, f func(A) B) (bs []B) {
	for _, a := range as {
		bs = append(bs, f(a))
	}
	return bs
}

func newRegistry[T comparable](cfg Config[T], k kind[T]) (*Registry[T], error) {
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
	return &Registry[T]{kind: k, cfg: cfg, log: cfg.Logger.Named("limits"), loaded: make(chan struct{}), tenants: map[string]entry[T]{}}, nil
}

// Known returns once all that was set before Run was called is known, and Changed was told of it, or with ctx's cause.
func (r *Registry[T]) Known(ctx context.Context) error {
	select {
	case <-r.loaded:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("read the %s: %w", r.kind.what, context.Cause(ctx))
	}
}

// Set stores a rule in place of the one that is of the same, and returns it as stored. Errors: *task.FieldError,
// ErrRegistry (it may be stored).
func (r *Registry[T]) Set(ctx context.Context, tenant string, l T) (T, error) {
	if err := r.kind.check(l); err != nil {
		return l, err
	}
	*r.kind.at(&l) = r.cfg.Now().UTC().Truncate(time.Microsecond)
	return l, r.change(ctx, tenant, func(ls []T) ([]T, error) {
		ls = slices.DeleteFunc(ls, func(o T) bool { return r.kind.of(o) == r.kind.of(l) })
		if len(ls) >= r.kind.most {
			return nil, &task.FieldError{Field: "tenant", Value: tenant, Want: fmt.Sprintf("a tenant with fewer than %d set %s", r.kind.most, r.kind.what)}
		}
		return append(ls, l), nil
	})
}

// Remove takes away the rule of a downstream or function, and returns it; nil: there was none. Errors: ErrRegistry (it may
// be done).
func (r *Registry[T]) Remove(ctx context.Context, tenant, of string) (removed *T, err error) {
	err = r.change(ctx, tenant, func(ls []T) ([]T, error) {
		removed = nil
		return slices.DeleteFunc(ls, func(o T) bool {
			if r.kind.of(o) != of {
				return false
			}
			removed = &o
			return true
		}), nil
	})
	return removed, err
}

// change rewrites a tenant's record until nobody else wrote in between.
func (r *Registry[T]) change(ctx context.Context, tenant string, f func([]T) ([]T, error)) error {
	key := r.cfg.Prefix + tenant + r.kind.suffix
	for {
		call, cancel := context.WithTimeout(ctx, callMax)
		items, _, err := r.cfg.KV.List(call, key)
		cancel()
		if err != nil {
			return fmt.Errorf("read the %s of %s: %w (%w)", r.kind.what, tenant, ErrRegistry, err)
		}
		var it member.Item
		if i := slices.IndexFunc(items, func(i member.Item) bool { return i.Key == key }); i >= 0 {
			it = items[i]
		}
		was, err := r.decode(it.Value)
		if err != nil {
			return fmt.Errorf("read the %s of %s: %w", r.kind.what, tenant, err)
		}
		ls, err := f(slices.Clone(was))
		if err != nil {
			return err
		}
		r.sort(ls)
		if slices.Equal(was, ls) {
			return nil
		}
		op := member.Op{Key: key, Value: r.encode(ls)}
		if len(ls) == 0 {
			op = member.Op{Key: key, Delete: true}
		}
		call, cancel = context.WithTimeout(ctx, callMax)
		ok, at, err := r.cfg.KV.Commit(call, member.Txn{If: []member.Cond{{Key: key, Revision: it.Revision}}, Then: []member.Op{op}})
		cancel()
		if err != nil {
			return fmt.Errorf("store the %s of %s: %w (%w)", r.kind.what, tenant, ErrRegistry, err)
		}
		if ok {
			r.take(tenant, r.encode(ls), at)
			return nil
		}
	}
}

// take takes in a tenant's record. Older news than what is known change nothing.
func (r *Registry[T]) take(tenant string, record []byte, revision int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.takeLocked(tenant, record, revision, false)
}

func (r *Registry[T]) takeLocked(tenant string, record []byte, revision int64, force bool) {
	was := r.tenants[tenant]
	if was.revision == revision || was.revision > revision && !force {
		return
	}
	ls, err := r.decode(record)
	if err != nil { // what is known goes on
		r.log.Error(r.kind.what+" in the registry can't be read", zap.String("tenant", tenant), zap.Error(err))
		return
	}
	r.tenants[tenant] = entry[T]{ls, revision}
	if !slices.Equal(was.limits, ls) {
		r.cfg.Changed(tenant, ls)
	}
}

// takeAll makes a list what is known, but for what was heard since it was read.
func (r *Registry[T]) takeAll(items []member.Item, revision int64, restored bool) {
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

func (r *Registry[T]) tenantOf(key string) (tenant string, ok bool) {
	tenant, ok = strings.CutPrefix(key, r.cfg.Prefix)
	if ok {
		tenant, ok = strings.CutSuffix(tenant, r.kind.suffix)
	}
	return tenant, ok && task.Name("tenant", tenant) == nil
}

// record is a tenant's key: one of the two, by the key's suffix.
type record struct {
	Limits []limitJSON `json:"limits,omitempty"`
	Bounds []boundJSON `json:"bounds,omitempty"`
}

type limitJSON struct {
	Downstream string    `json:"downstream"`
	Min        int       `json:"min,omitempty"`
	Max        int       `json:"max,omitempty"`
	Reason     string    `json:"reason,omitempty"`
	At         time.Time `json:"at"`
}

type boundJSON struct {
	Function    string    `json:"function,omitempty"`
	Concurrency int       `json:"concurrency,omitempty"`
	Rate        float64   `json:"rate,omitempty"`
	Burst       int       `json:"burst,omitempty"`
	Reason      string    `json:"reason,omitempty"`
	At          time.Time `json:"at"`
}

func (r *Registry[T]) encode(ls []T) []byte {
	var rec record
	r.kind.write(&rec, ls)
	b, err := json.Marshal(rec)
	if err != nil {
		panic(fmt.Sprintf("limits: encode a record: %v", err)) // all of its fields can be
	}
	return b
}

// decode reads a tenant's record; none has no rules.
func (r *Registry[T]) decode(b []byte) ([]T, error) {
	if len(b) == 0 {
		return nil, nil
	}
	var rec record
	if err := json.Unmarshal(b, &rec); err != nil {
		return nil, err
	}
	ls := r.kind.read(&rec)
	for i := range ls {
		at := r.kind.at(&ls[i])
		*at = at.UTC()
	}
	r.sort(ls)
	return ls, nil
}

func (r *Registry[T]) sort(ls []T) {
	slices.SortFunc(ls, func(a, b T) int { return strings.Compare(r.kind.of(a), r.kind.of(b)) })
}
