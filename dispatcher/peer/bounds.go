package peer

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/headrace/headrace/dispatcher/core"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/shard"
	"github.com/headrace/headrace/task"
)

// BoundQuery says which limits that users set are asked for, by tenant and function.
type BoundQuery struct {
	Tenant                     string // "": of all
	AfterTenant, AfterFunction string // only those after this one
	Most                       int
}

// Bounds returns the limits that users set, with their use on all nodes that own something, in order, at most q.Most.
// more says that there are others behind them; missing names the nodes that did not answer.
func (r *Router) Bounds(ctx context.Context, q BoundQuery) (out []*headracev1.Bound, more bool, missing []string, err error) {
	q.Most = min(q.Most, maxLimits)
	return gather(ctx, r, q.Most, func(ctx context.Context, id shard.NodeID) ([]*headracev1.Bound, error) { return r.boundsOf(ctx, id, q) }, joinBounds)
}

func (r *Router) boundsOf(ctx context.Context, node shard.NodeID, q BoundQuery) ([]*headracev1.Bound, error) {
	if node == r.cfg.NodeID {
		bs, err := r.local.Bounds(ctx, q.Tenant, q.AfterTenant, q.AfterFunction, q.Most)
		return writeBounds(bs, string(node)), err
	}
	res, err := read(ctx, r.peer(node), headracev1.PeerServiceClient.ReadBounds, &headracev1.ReadBoundsRequest{Tenant: q.Tenant, AfterTenant: q.AfterTenant, AfterFunction: q.AfterFunction, Most: uint32(q.Most)})
	if err != nil {
		return nil, err
	}
	for _, b := range res.Bounds {
		for _, n := range b.Nodes {
			n.NodeId = string(node)
		}
	}
	return res.Bounds, nil
}

// ReadBounds returns the use of the limits that users set on this node.
func (s *Service) ReadBounds(ctx context.Context, req *headracev1.ReadBoundsRequest) (*headracev1.ReadBoundsResponse, error) {
	bs, err := s.local.Bounds(ctx, req.Tenant, req.AfterTenant, req.AfterFunction, int(min(req.Most, maxLimits)))
	if err != nil {
		return nil, fmt.Errorf("read limits of tasks: %w", err)
	}
	return &headracev1.ReadBoundsResponse{Bounds: writeBounds(bs, "")}, nil
}

func writeBounds(bs []core.BoundState, node string) []*headracev1.Bound {
	out := make([]*headracev1.Bound, 0, len(bs))
	for _, s := range bs {
		b := Bound(s.Tenant, &s.Rule)
		b.Nodes = []*headracev1.NodeBound{{NodeId: node, Running: uint32(s.Running), Share: uint32(s.Share), WaitReason: s.Why}}
		out = append(out, b)
	}
	return out
}

// Bound is a limit that a user set as the API has it; nil: none.
func Bound(tenant string, b *task.Bound) *headracev1.Bound {
	if b == nil {
		return nil
	}
	return &headracev1.Bound{Tenant: tenant, Function: b.Function, Concurrency: uint32(b.Concurrency), Rate: b.Rate, Burst: uint32(b.Burst),
		Reason: b.Reason, CreateTime: stamp(b.At)}
}

// joinBounds joins what several nodes have of the same bound. One that was just set or taken away may be known to some only.
func joinBounds(bs []*headracev1.Bound) []*headracev1.Bound {
	slices.SortStableFunc(bs, func(a, b *headracev1.Bound) int {
		return cmp.Or(strings.Compare(a.Tenant, b.Tenant), strings.Compare(a.Function, b.Function))
	})
	out := bs[:0]
	for _, b := range bs {
		if n := len(out); n > 0 && out[n-1].Tenant == b.Tenant && out[n-1].Function == b.Function {
			o := out[n-1]
			if b.CreateTime.AsTime().After(o.CreateTime.AsTime()) { // the newest word
				b.Nodes, out[n-1] = append(o.Nodes, b.Nodes...), b
			} else {
				o.Nodes = append(o.Nodes, b.Nodes...)
			}
			continue
		}
		out = append(out, b)
	}
	return out
}
