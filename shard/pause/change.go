package pause

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/headrace/headrace/shard/member"
	"github.com/headrace/headrace/task"
)

// Pause stores a rule, in place of the one that the tenant has for the same tasks, and returns the rules as they are
// then. One that is there already, with the same reason and end, is not written again. Errors:
// *task.FieldError, ErrTooMany, ErrRegistry (it may be stored).
func (r *Registry) Pause(ctx context.Context, tenant string, rule task.Pause) (Rules, error) {
	now := r.cfg.Now()
	if err := rule.Validate(now); err != nil {
		return Rules{}, err
	}
	rule.At = now.UTC().Truncate(time.Microsecond)
	if !rule.Until.IsZero() {
		rule.Until = rule.Until.UTC().Truncate(time.Microsecond)
	}
	return r.change(ctx, tenant, func(rules []task.Pause) ([]task.Pause, error) {
		i := slices.IndexFunc(rules, rule.Same)
		if i >= 0 {
			if rule.Reason == rules[i].Reason && rule.Until.Equal(rules[i].Until) {
				return rules, nil
			}
			rule.At = rules[i].At // since then it is paused
			rules[i] = rule
			return rules, nil
		}
		if len(rules) >= task.MaxPauses {
			return nil, &task.FieldError{Field: "tenant", Value: tenant, Want: fmt.Sprintf("a tenant with fewer than %d pause rules", task.MaxPauses)}
		}
		r.mu.Lock()
		full := r.count >= maxRules
		r.mu.Unlock()
		if full {
			return nil, ErrTooMany
		}
		return append(rules, rule), nil
	})
}

// Resume takes the rule for exactly these tasks away, or all rules of the tenant. It returns the rules as they are
// then, and those that it removed: none is no error. Errors: ErrRegistry (it may be done).
func (r *Registry) Resume(ctx context.Context, tenant string, scope task.Pause, all bool) (left Rules, removed []task.Pause, err error) {
	left, err = r.change(ctx, tenant, func(rules []task.Pause) ([]task.Pause, error) {
		removed = nil
		return slices.DeleteFunc(rules, func(p task.Pause) bool {
			if out := all || p.Same(scope); out {
				removed = append(removed, p)
				return true
			}
			return false
		}), nil
	})
	return left, removed, err
}

// change rewrites a tenant's record until nobody else wrote in between.
func (r *Registry) change(ctx context.Context, tenant string, f func(rules []task.Pause) ([]task.Pause, error)) (Rules, error) {
	key := r.key(tenant)
	for {
		call, cancel := context.WithTimeout(ctx, callMax)
		items, revision, err := r.cfg.KV.List(call, key)
		cancel()
		if err != nil {
			return Rules{}, fmt.Errorf("read the pause rules of %s: %w (%w)", tenant, ErrRegistry, err)
		}
		var it member.Item
		for _, i := range items {
			if i.Key == key {
				it, revision = i, i.Revision
			}
		}
		was, err := decode(it.Value)
		if err != nil {
			return Rules{}, fmt.Errorf("read the pause rules of %s: %w", tenant, err)
		}
		now := r.cfg.Now()
		rules, err := f(slices.DeleteFunc(slices.Clone(was), func(p task.Pause) bool { return p.Over(now) }))
		if err != nil {
			return Rules{}, err
		}
		sortRules(rules)
		if !slices.EqualFunc(was, rules, equal) {
			op := member.Op{Key: key, Value: Encode(rules)}
			if len(rules) == 0 {
				op = member.Op{Key: key, Delete: true}
			}
			call, cancel := context.WithTimeout(ctx, callMax)
			ok, at, err := r.cfg.KV.Commit(call, member.Txn{If: []member.Cond{{Key: key, Revision: it.Revision}}, Then: []member.Op{op}})
			cancel()
			if err != nil {
				return Rules{}, fmt.Errorf("store the pause rules of %s: %w (%w)", tenant, ErrRegistry, err)
			}
			if !ok {
				continue // somebody else wrote: with what he wrote, again
			}
			revision = at
		}
		if err := r.Bring(ctx, tenant, Encode(rules), revision); err != nil {
			return Rules{}, err
		}
		return Rules{Tenant: tenant, Rules: rules, Revision: revision}, nil
	}
}
