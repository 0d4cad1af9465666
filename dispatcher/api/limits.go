package api

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/headrace/headrace/dispatcher/loop"
	"github.com/headrace/headrace/dispatcher/peer"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

// Limits is the LimitService.
type Limits struct {
	headracev1.UnimplementedLimitServiceServer
	*Services
}

// ListLimits returns a page of the limits, by tenant and downstream. The page token is the last one's.
func (s *Limits) ListLimits(ctx context.Context, req *headracev1.ListLimitsRequest) (*headracev1.ListLimitsResponse, error) {
	if req.PageSize > maxPage {
		return nil, &task.FieldError{Field: "page_size", Value: fmt.Sprint(req.PageSize), Want: "1 to 1000, or 0 for 1000"}
	}
	afterTenant, afterDownstream, _ := strings.Cut(req.PageToken, "/")
	for _, f := range []struct{ field, name string }{{"tenant", req.Tenant}, {"downstream", req.Downstream}, {"page_token", afterTenant}, {"page_token", afterDownstream}} {
		if f.name != "" {
			if err := task.Name(f.field, f.name); err != nil {
				return nil, err
			}
		}
	}
	ls, more, missing, err := s.engine.Limits(ctx, loop.LimitQuery{Tenant: req.Tenant, Downstream: req.Downstream,
		AfterTenant: afterTenant, AfterDownstream: afterDownstream, Most: cmp.Or(int(req.PageSize), maxPage)})
	if err != nil {
		return nil, err
	}
	res := &headracev1.ListLimitsResponse{Limits: ls, MissingNodes: missing}
	if more && len(ls) > 0 {
		last := ls[len(ls)-1]
		res.NextPageToken = last.Tenant + "/" + last.Downstream
	}
	return res, nil
}

// SetLimit stores an operator's word about a limit.
func (s *Limits) SetLimit(ctx context.Context, req *headracev1.SetLimitRequest) (*headracev1.SetLimitResponse, error) {
	if err := s.admit(); err != nil {
		return nil, err
	}
	if err := task.Name("tenant", req.Tenant); err != nil {
		return nil, err
	}
	l, err := s.cfg.Limits.Set(ctx, req.Tenant, task.Limit{Downstream: req.Downstream, Min: int(req.Min), Max: int(req.Max), Reason: req.Reason})
	if err != nil {
		return nil, err
	}
	return &headracev1.SetLimitResponse{Override: peer.LimitOverride(&l)}, nil
}

// ResetLimit takes an operator's word away, and lets the limit begin anew everywhere.
func (s *Limits) ResetLimit(ctx context.Context, req *headracev1.ResetLimitRequest) (*headracev1.ResetLimitResponse, error) {
	if err := s.admit(); err != nil {
		return nil, err
	}
	if err := task.Name("tenant", req.Tenant); err != nil {
		return nil, err
	}
	if err := task.Name("downstream", req.Downstream); err != nil {
		return nil, err
	}
	removed, err := s.cfg.Limits.Remove(ctx, req.Tenant, req.Downstream)
	if err != nil {
		return nil, err
	}
	ls, _, missing, err := s.engine.Limits(ctx, loop.LimitQuery{Tenant: req.Tenant, Downstream: req.Downstream, Most: 1, Reset: true})
	if err != nil {
		return nil, err
	}
	res := &headracev1.ResetLimitResponse{Removed: peer.LimitOverride(removed), MissingNodes: missing}
	for _, l := range ls {
		res.Nodes += uint32(len(l.Nodes))
	}
	return res, nil
}

// ListBounds returns a page of the limits that users set, by tenant and function. The page token is the last one's.
func (s *Limits) ListBounds(ctx context.Context, req *headracev1.ListBoundsRequest) (*headracev1.ListBoundsResponse, error) {
	if req.PageSize > maxPage {
		return nil, &task.FieldError{Field: "page_size", Value: fmt.Sprint(req.PageSize), Want: "1 to 1000, or 0 for 1000"}
	}
	afterTenant, afterFunction, _ := strings.Cut(req.PageToken, "/")
	for _, f := range []struct{ field, name string }{{"tenant", req.Tenant}, {"page_token", afterTenant}, {"page_token", afterFunction}} {
		if f.name != "" {
			if err := task.Name(f.field, f.name); err != nil {
				return nil, err
			}
		}
	}
	bs, more, missing, err := s.engine.Bounds(ctx, peer.BoundQuery{Tenant: req.Tenant, AfterTenant: afterTenant, AfterFunction: afterFunction,
		Most: cmp.Or(int(req.PageSize), maxPage)})
	if err != nil {
		return nil, err
	}
	res := &headracev1.ListBoundsResponse{Bounds: bs, MissingNodes: missing}
	if more && len(bs) > 0 {
		last := bs[len(bs)-1]
		res.NextPageToken = last.Tenant + "/" + last.Function
	}
	return res, nil
}

// SetBound stores a limit of a tenant or a function.
func (s *Limits) SetBound(ctx context.Context, req *headracev1.SetBoundRequest) (*headracev1.SetBoundResponse, error) {
	if err := s.admit(); err != nil {
		return nil, err
	}
	if err := task.Name("tenant", req.Tenant); err != nil {
		return nil, err
	}
	b, err := s.cfg.Bounds.Set(ctx, req.Tenant, task.Bound{Function: req.Function, Concurrency: int(req.Concurrency), Rate: req.Rate, Burst: int(req.Burst), Reason: req.Reason})
	if err != nil {
		return nil, err
	}
	return &headracev1.SetBoundResponse{Bound: peer.Bound(req.Tenant, &b)}, nil
}

// RemoveBound takes a limit of a tenant or a function away.
func (s *Limits) RemoveBound(ctx context.Context, req *headracev1.RemoveBoundRequest) (*headracev1.RemoveBoundResponse, error) {
	if err := s.admit(); err != nil {
		return nil, err
	}
	if err := task.Name("tenant", req.Tenant); err != nil {
		return nil, err
	}
	if req.Function != "" {
		if err := task.Name("function", req.Function); err != nil {
			return nil, err
		}
	}
	removed, err := s.cfg.Bounds.Remove(ctx, req.Tenant, req.Function)
	if err != nil {
		return nil, err
	}
	return &headracev1.RemoveBoundResponse{Removed: peer.Bound(req.Tenant, removed)}, nil
}
