package api

import (
	"context"
	"fmt"
	"slices"

	"github.com/headrace/headrace/shard"
	"github.com/headrace/headrace/store"
)

// route is where a submit may go.
type route struct {
	a, b uint32 // the two to choose from; the same for each call with the key, while the placement stays
	// others are the tenant's partitions that take such tasks, a and b included.
	others []uint32
	// earlier are where a call before this one may have gone by the placements before: a retry looks there too.
	earlier []uint32
}

// candidates returns the two of a tenant's partitions that a request may go to. One with client-given ids
// goes to the tenant's directory database, where they are unique, and that is settled with its first one
// (placement.Registry.Stored). Errors: errNoPartition, placement.ErrPending.
func (s *Services) candidates(ctx context.Context, tenant, key string, retry bool, rows []*store.Task) (route, error) {
	to := s.cfg.Placements.Of(tenant)
	members, atHome := to.Members, false
	for _, t := range rows {
		if t.ClientID == "" {
			continue
		}
		if !to.Stored {
			var err error
			if to, err = s.cfg.Placements.Stored(ctx, tenant); err != nil {
				return route{}, fmt.Errorf("place %s: %w", tenant, err)
			}
		}
		members, atHome = to.AtHome, true
		break
	}
	a, b, ok := shard.Candidates(key, members)
	if !ok {
		return route{}, errNoPartition
	}
	r := route{a: a, b: b, others: members}
	if retry {
		for _, p := range to.Earlier(s.cfg.Now()) {
			if p != a && p != b && (!atHome || slices.Contains(to.WereAtHome, p)) {
				r.earlier = append(r.earlier, p)
			}
		}
	}
	return r, nil
}

// all are the partitions that may have what an earlier call stored.
func (r route) all() []uint32 { return append([]uint32{r.a, r.b}, r.earlier...) }

// homeOf is the index of a tenant's directory database; -1: it is not settled, or this node does not know it.
func (s *Services) homeOf(tenant string) int {
	p, ok := s.cfg.Placements.Snapshot().Get(tenant)
	if !ok {
		return -1
	}
	i, ok := s.cfg.DatabaseOf(p.Home)
	if !ok {
		return -1
	}
	return i
}
