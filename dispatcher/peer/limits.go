package peer

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/dispatcher/loop"
	"github.com/headrace/headrace/internal/telemetry"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/shard"
	"github.com/headrace/headrace/task"
)

// maxLimits bounds the limits of one answer.
const maxLimits = 1000

// Limits returns the adaptive limits of all nodes that own something, joined by tenant and downstream and in their
// order, at most q.Most. more says that there are others behind them; missing names the nodes that did not answer.
func (r *Router) Limits(ctx context.Context, q loop.LimitQuery) (out []*headracev1.Limit, more bool, missing []string, err error) {
	q.Most = min(q.Most, maxLimits)
	return gather(ctx, r, q.Most, func(ctx context.Context, id shard.NodeID) ([]*headracev1.Limit, error) { return r.limitsOf(ctx, id, q) }, joinLimits)
}

// gather asks this node and all that own something for the first most of what they have, and returns the first most of all of it,
// joined. more says that there are others; missing names the nodes that did not answer.
func gather[T any](ctx context.Context, r *Router, most int, ask func(context.Context, shard.NodeID) ([]T, error), join func([]T) []T) (out []T, more bool, missing []string, err error) {
	ids := []shard.NodeID{r.cfg.NodeID}
	for _, id := range r.cfg.Directory().Owners {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	ids = slices.DeleteFunc(slices.Compact(ids), func(id shard.NodeID) bool { return id == "" })
	lists := make([][]T, len(ids))
	errs := make([]error, len(ids))
	var wg sync.WaitGroup
	for i, id := range ids {
		wg.Go(func() { lists[i], errs[i] = ask(ctx, id) })
	}
	wg.Wait()
	if ctx.Err() != nil {
		return nil, false, nil, context.Cause(ctx)
	}
	for i, id := range ids {
		if errs[i] != nil {
			if id == r.cfg.NodeID {
				return nil, false, nil, errs[i]
			}
			missing = append(missing, string(id))
			r.log.Debug("a node does not tell its limits", telemetry.Text("node", string(id)), telemetry.Err(errs[i]))
		}
		more = more || len(lists[i]) == most
		out = append(out, lists[i]...)
	}
	if out = join(out); len(out) > most {
		out, more = out[:most], true
	}
	return out, more, missing, nil
}

func (r *Router) limitsOf(ctx context.Context, node shard.NodeID, q loop.LimitQuery) ([]*headracev1.Limit, error) {
	if node == r.cfg.NodeID {
		ls, err := r.local.Limits(ctx, q)
		return writeLimits(ls, string(node)), err
	}
	res, err := read(ctx, r.peer(node), headracev1.PeerServiceClient.ReadLimits, &headracev1.ReadLimitsRequest{Tenant: q.Tenant, Downstream: q.Downstream,
		AfterTenant: q.AfterTenant, AfterDownstream: q.AfterDownstream, Most: uint32(q.Most), Reset_: q.Reset})
	if err != nil {
		return nil, err
	}
	for _, l := range res.Limits {
		for _, n := range l.Nodes {
			n.NodeId = string(node)
		}
	}
	return res.Limits, nil
}

// ReadLimits returns the adaptive limits on this node.
func (s *Service) ReadLimits(ctx context.Context, req *headracev1.ReadLimitsRequest) (*headracev1.ReadLimitsResponse, error) {
	ls, err := s.local.Limits(ctx, loop.LimitQuery{Tenant: req.Tenant, Downstream: req.Downstream, AfterTenant: req.AfterTenant,
		AfterDownstream: req.AfterDownstream, Most: int(min(req.Most, maxLimits)), Reset: req.Reset_})
	if err != nil {
		return nil, fmt.Errorf("read limits: %w", err)
	}
	return &headracev1.ReadLimitsResponse{Limits: writeLimits(ls, "")}, nil
}

func writeLimits(ls []core.LimitState, node string) []*headracev1.Limit {
	out := make([]*headracev1.Limit, 0, len(ls))
	for _, l := range ls {
		n := &headracev1.NodeLimit{NodeId: node, Active: l.Active, Limit: l.Limit, Min: uint32(l.Min), Max: uint32(l.Max), InUse: uint32(l.InUse),
			Parked: uint32(l.Parked), PausedUntilTime: stamp(l.PausedUntil), Throttles: uint32(l.Throttles), Results: uint32(l.Results)}
		for _, d := range l.Decisions {
			n.Decisions = append(n.Decisions, &headracev1.LimitDecision{DecideTime: stamp(d.At), Reason: d.Reason.String(), From: d.From, To: d.To,
				Throttles: uint32(d.Throttles), Results: uint32(d.Results), Rate: d.Rate})
		}
		out = append(out, &headracev1.Limit{Tenant: l.Tenant, Downstream: l.Downstream, Functions: l.Functions, Override: LimitOverride(l.Override), Nodes: []*headracev1.NodeLimit{n}})
	}
	return out
}

// LimitOverride is an operator's word as the API has it; nil: none.
func LimitOverride(l *task.Limit) *headracev1.LimitOverride {
	if l == nil {
		return nil
	}
	return &headracev1.LimitOverride{Min: uint32(l.Min), Max: uint32(l.Max), Reason: l.Reason, CreateTime: stamp(l.At)}
}

// joinLimits joins what several nodes have of the same limit.
func joinLimits(ls []*headracev1.Limit) []*headracev1.Limit {
	slices.SortStableFunc(ls, func(a, b *headracev1.Limit) int {
		return cmp.Or(strings.Compare(a.Tenant, b.Tenant), strings.Compare(a.Downstream, b.Downstream))
	})
	out := ls[:0]
	for _, l := range ls {
		if n := len(out); n > 0 && out[n-1].Tenant == l.Tenant && out[n-1].Downstream == l.Downstream {
			o := out[n-1]
			o.Nodes = append(o.Nodes, l.Nodes...)
			o.Functions = append(o.Functions, l.Functions...)
			slices.Sort(o.Functions)
			o.Functions = slices.Compact(o.Functions)
			if o.Override == nil {
				o.Override = l.Override
			}
			continue
		}
		out = append(out, l)
	}
	return out
}
