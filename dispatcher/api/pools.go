package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/dispatcher/pools"
	"github.com/headrace/headrace/flowcontrol/elastic"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

// errPoolsUnknown says that it is not known now what executors are needed.
var errPoolsUnknown = errors.New("what executors are needed is not known now")

// Pools is the PoolService.
type Pools struct {
	headracev1.UnimplementedPoolServiceServer
	*Services
}

// ListPools returns a page of the pools, by tenant and name. The page token is the last one's.
func (s *Pools) ListPools(_ context.Context, req *headracev1.ListPoolsRequest) (*headracev1.ListPoolsResponse, error) {
	if req.PageSize > maxPage {
		return nil, &task.FieldError{Field: "page_size", Value: fmt.Sprint(req.PageSize), Want: "1 to 1000, or 0 for 1000"}
	}
	for _, f := range []struct{ field, name string }{{"tenant", req.Tenant}, {"function", req.Function}} {
		if f.name != "" {
			if err := task.Name(f.field, f.name); err != nil {
				return nil, err
			}
		}
	}
	var cfg elastic.Config
	if req.TargetDrain != nil {
		if cfg.Drain = req.TargetDrain.AsDuration(); cfg.Drain < elastic.DrainMin || cfg.Drain > elastic.DrainMax {
			return nil, &task.FieldError{Field: "target_drain", Value: cfg.Drain.String(), Want: "1s to 24h"}
		}
	}
	afterTenant, afterName, _ := strings.Cut(req.PageToken, "/")
	v, _ := s.cfg.Pools.View()
	if v.At.IsZero() {
		return nil, fmt.Errorf("%w: the node has just started", errPoolsUnknown)
	}
	res := &headracev1.ListPoolsResponse{MissingNodes: v.Missing}
	for _, p := range v.Pools {
		if req.Tenant != "" && p.Tenant != req.Tenant || !runs(p, req.Function) {
			continue
		}
		if req.PageToken != "" && cmp.Or(strings.Compare(p.Tenant, afterTenant), strings.Compare(p.Name, afterName)) <= 0 {
			continue
		}
		if n := len(res.Pools); n == cmp.Or(int(req.PageSize), maxPage) {
			res.NextPageToken = res.Pools[n-1].Tenant + "/" + res.Pools[n-1].Name
			break
		}
		res.Pools = append(res.Pools, writePool(p, cfg))
	}
	return res, nil
}

func runs(p *pools.Pool, function string) bool {
	return function == "" || slices.ContainsFunc(p.Functions, func(f core.FunctionName) bool { return f.Name == function })
}

func writePool(p *pools.Pool, cfg elastic.Config) *headracev1.Pool {
	need := elastic.Slots(cfg, p.Loads)
	m := &headracev1.Pool{Tenant: p.Tenant, Name: p.Name, Slots: uint32(p.Slots), Running: uint32(p.Running), Waiting: uint64(p.Waiting),
		Desired: uint32(p.Desired), Why: need.Why.String(), DesiredSlots: need.Slots, DesiredNow: uint32(need.Executors(cfg, p.SlotsPerExecutor)),
		ArrivalRate: p.Arrival, SlotsPerExecutor: p.SlotsPerExecutor}
	if p.Service > 0 {
		m.ServiceTime = durationpb.New(p.Service.Round(time.Microsecond))
	}
	for _, f := range p.Functions {
		if p.Tenant == "" {
			m.Functions = append(m.Functions, f.Tenant+"/"+f.Name)
		} else {
			m.Functions = append(m.Functions, f.Name)
		}
	}
	for i, x := range p.Executors {
		m.Executors = append(m.Executors, &headracev1.PoolExecutor{Id: x.ID, Name: x.Name, Slots: uint32(x.Slots), Running: uint32(x.Running),
			DrainOrder: uint32(i + 1), PodDeletionCost: x.DeletionCost(), Draining: x.Draining})
	}
	return m
}
