package api

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

// Tenants is the TenantService.
type Tenants struct {
	headracev1.UnimplementedTenantServiceServer
	*Services
}

// SetTenant changes a tenant's grant. This node acts on it at once, the others when they hear of it.
func (s *Tenants) SetTenant(ctx context.Context, req *headracev1.SetTenantRequest) (*headracev1.SetTenantResponse, error) {
	if err := s.admit(); err != nil {
		return nil, err
	}
	_, err := s.cfg.Tenants.Change(ctx, req.Tenant, func(g task.Tenant) (task.Tenant, error) {
		if req.Reset_ {
			g = task.Tenant{}
		}
		if req.DrainMaxMillis != nil {
			if *req.DrainMaxMillis < 0 || *req.DrainMaxMillis > task.MaxDelay.Milliseconds() {
				return g, &task.FieldError{Field: "drain_max", Value: fmt.Sprintf("%d ms", *req.DrainMaxMillis), Want: "1s to 87600h, or 0 for the default"}
			}
			g.DrainMax = time.Duration(*req.DrainMaxMillis) * time.Millisecond
		}
		set(&g.MaxRows, req.MaxRows)
		set(&g.MaxBytes, req.MaxBytes)
		set(&g.Rate, req.Rate)
		set(&g.Burst, req.Burst)
		if req.Weight != nil {
			g.Weight = int(*req.Weight)
		}
		if req.Class != nil {
			var err error
			if g.Class, err = task.ParseTenantClass(*req.Class); err != nil {
				return g, err
			}
		}
		return g, nil
	})
	if err != nil {
		return nil, err
	}
	return &headracev1.SetTenantResponse{Tenant: s.tenant(req.Tenant)}, nil
}

func set[T any](to *T, from *T) {
	if from != nil {
		*to = *from
	}
}

// GetTenant returns what is known of a tenant.
func (s *Tenants) GetTenant(ctx context.Context, req *headracev1.GetTenantRequest) (*headracev1.GetTenantResponse, error) {
	if err := task.Name("tenant", req.Tenant); err != nil {
		return nil, err
	}
	s.current(ctx)
	return &headracev1.GetTenantResponse{Tenant: s.tenant(req.Tenant)}, nil
}

// current reads the registry: without it, what this node knows is what it acts on.
func (s *Tenants) current(ctx context.Context) {
	call, cancel := context.WithTimeout(ctx, resumeTell)
	defer cancel()
	_ = s.cfg.Tenants.Current(call)
}

// ListTenants returns a page of the tenants. The page token is the last one's name.
func (s *Tenants) ListTenants(ctx context.Context, req *headracev1.ListTenantsRequest) (*headracev1.ListTenantsResponse, error) {
	if req.PageSize > maxPage {
		return nil, &task.FieldError{Field: "page_size", Value: fmt.Sprint(req.PageSize), Want: "1 to 1000, or 0 for 1000"}
	}
	if req.PageToken != "" {
		if err := task.Name("page_token", req.PageToken); err != nil {
			return nil, err
		}
	}
	s.current(ctx)
	names := s.cfg.Door.Tenants()
	from, found := slices.BinarySearch(names, req.PageToken)
	if found {
		from++
	}
	res := &headracev1.ListTenantsResponse{}
	for _, name := range names[from:] {
		if len(res.Tenants) == cmp.Or(int(req.PageSize), maxPage) {
			res.NextPageToken = res.Tenants[len(res.Tenants)-1].Tenant
			break
		}
		res.Tenants = append(res.Tenants, s.tenant(name))
	}
	return res, nil
}

func (s *Tenants) tenant(name string) *headracev1.Tenant {
	g, st := s.cfg.Tenants.Of(name), s.cfg.Door.Status(name)
	m := &headracev1.Tenant{
		Tenant: name, Settings: settingsOf(g.Grant), Effective: settingsOf(g.Grant.WithDefaults()), UpdateTime: stamp(g.At),
		Ready: st.Ready, Rows: st.Rows, Bytes: st.Bytes, FinishRate: st.Finish, OfferedRate: st.Offered, AcceptedRate: st.Accepted, Pressure: st.Pressure,
	}
	if st.DrainOK {
		m.DrainTime = durationpb.New(st.Drain)
	}
	if l := st.Limit; l != nil {
		m.Limit = &headracev1.TenantLimit{Reason: l.Reason.String(), Level: l.Level.String(), PerSecond: l.PerSecond, SinceTime: stamp(l.Since)}
	}
	return m
}

func settingsOf(g task.Tenant) *headracev1.TenantSettings {
	m := &headracev1.TenantSettings{MaxRows: g.MaxRows, MaxBytes: g.MaxBytes, Rate: g.Rate, Burst: g.Burst, Weight: uint32(g.Weight), Class: g.Class.String()}
	if g.DrainMax != 0 {
		m.DrainMax = durationpb.New(g.DrainMax)
	}
	return m
}
