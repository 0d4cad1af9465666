package peer

import (
	"context"
	"fmt"

	"github.com/headrace/headrace/dispatcher/core"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/shard"
	"github.com/headrace/headrace/task"
)

// Pauses are a tenant's pause rules for a node, and what is asked of it.
type Pauses struct {
	Tenant   string
	Record   []byte // as the registry has it
	Revision int64
	Await    bool      // until nothing starts any more that these two cover:
	Function string    // "": any
	Band     task.Band // task.AnyBand: any
}

// ApplyPauses brings a node a tenant's rules, and with Await waits until they are in force there: it returns
// the partitions of which that is true (see core.PauseWait). This node knows them already.
func (r *Router) ApplyPauses(ctx context.Context, node shard.NodeID, a Pauses) ([]uint32, error) {
	if node == r.cfg.NodeID {
		if !a.Await {
			return nil, nil
		}
		return r.local.AwaitPause(ctx, core.PauseWait{Tenant: a.Tenant, Function: a.Function, Band: a.Band})
	}
	p := r.peer(node)
	if p == nil {
		return nil, fmt.Errorf("node %s can't be asked: %w", node, core.ErrNotOwner)
	}
	if err := p.ready(ctx); err != nil {
		return nil, err
	}
	req := &headracev1.ApplyPausesRequest{Tenant: a.Tenant, Record: a.Record, Revision: a.Revision, Await: a.Await, Function: a.Function}
	if a.Band != task.AnyBand {
		req.Band = headracev1.Band(a.Band + 1)
	}
	res, err := p.client.ApplyPauses(ctx, req)
	if err == nil {
		err = readError(res.Error)
	}
	if err != nil {
		return nil, fmt.Errorf("ask node %s: %w", node, err)
	}
	return res.Partitions, nil
}

// ApplyPauses takes in rules, and waits until they are in force here.
func (s *Service) ApplyPauses(ctx context.Context, req *headracev1.ApplyPausesRequest) (*headracev1.ApplyPausesResponse, error) {
	if err := task.Name("tenant", req.Tenant); err != nil {
		return nil, err
	}
	if err := s.pauses(ctx, req.Tenant, req.Record, req.Revision); err != nil {
		return &headracev1.ApplyPausesResponse{Error: writeError(err)}, nil
	}
	res := &headracev1.ApplyPausesResponse{}
	if req.Await {
		band := task.AnyBand
		if req.Band != headracev1.Band_BAND_UNSPECIFIED {
			band = task.Band(req.Band - 1)
		}
		var err error
		if res.Partitions, err = s.local.AwaitPause(ctx, core.PauseWait{Tenant: req.Tenant, Function: req.Function, Band: band}); err != nil {
			return &headracev1.ApplyPausesResponse{Error: writeError(err)}, nil
		}
	}
	return res, nil
}
