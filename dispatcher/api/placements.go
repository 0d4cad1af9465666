package api

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/shard"
	"github.com/headrace/headrace/shard/placement"
	"github.com/headrace/headrace/task"
)

// maxOverlaps bounds the tenants that an explanation names.
const maxOverlaps = 10_000

// Placements is the PlacementService.
type Placements struct {
	headracev1.UnimplementedPlacementServiceServer
	*Services
}

// ListPlacements returns a page of the stored placements, by tenant. The page token is the last one's.
func (s *Placements) ListPlacements(_ context.Context, req *headracev1.ListPlacementsRequest) (*headracev1.ListPlacementsResponse, error) {
	if req.PageSize > maxPage {
		return nil, &task.FieldError{Field: "page_size", Value: fmt.Sprint(req.PageSize), Want: "1 to 1000, or 0 for 1000"}
	}
	if req.PageToken != "" {
		if err := task.Name("page_token", req.PageToken); err != nil {
			return nil, err
		}
	}
	size := cmp.Or(int(req.PageSize), maxPage)
	all := s.cfg.Placements.Snapshot().All(req.PageToken)
	res := &headracev1.ListPlacementsResponse{}
	catalogue := s.cluster.Directory().Partitions
	for i, p := range all {
		if i == size {
			res.NextPageToken = all[i-1].Tenant
			break
		}
		res.Placements = append(res.Placements, placementOf(p, catalogue, true))
	}
	return res, nil
}

// ExplainPlacement compares one tenant with all others.
func (s *Placements) ExplainPlacement(_ context.Context, req *headracev1.ExplainPlacementRequest) (*headracev1.ExplainPlacementResponse, error) {
	if err := task.Name("tenant", req.Tenant); err != nil {
		return nil, err
	}
	d := s.cluster.Directory()
	mine := s.cfg.Placements.Look(req.Tenant)
	if len(mine.Members) == 0 {
		return nil, errNoPartition
	}
	res := &headracev1.ExplainPlacementResponse{Placement: placementOf(mine.Placement, d.Partitions, mine.Stored)}
	for _, p := range d.Partitions {
		if p.Open() {
			res.Partitions++
		}
	}
	on := map[uint32]uint32{} // stored tenants by partition
	for _, m := range mine.Members {
		on[m]++
	}
	shares := make([]uint32, len(mine.Members)+1)
	covered, touched := 0, 0
	for _, p := range s.cfg.Placements.Snapshot().All("") {
		if p.Tenant == req.Tenant {
			continue
		}
		res.Tenants++
		o := &headracev1.PlacementOverlap{Tenant: p.Tenant}
		for _, m := range mine.Members {
			if slices.Contains(p.Members, m) {
				o.Partitions = append(o.Partitions, m)
				on[m]++
			}
		}
		shares[len(o.Partitions)]++
		if len(o.Partitions) == 0 {
			continue
		}
		touched++
		if o.Covered = len(o.Partitions) == len(p.Members); o.Covered {
			covered++
		}
		res.Overlaps = append(res.Overlaps, o)
	}
	slices.SortFunc(res.Overlaps, func(a, b *headracev1.PlacementOverlap) int {
		return cmp.Or(cmp.Compare(len(b.Partitions), len(a.Partitions)), strings.Compare(a.Tenant, b.Tenant))
	})
	res.Overlaps = res.Overlaps[:min(len(res.Overlaps), maxOverlaps)]
	expected := shard.Overlap(int(res.Partitions), len(mine.Members))
	for n, tenants := range shares {
		row := &headracev1.PlacementShare{Shared: uint32(n), Tenants: tenants}
		if n < len(expected) {
			row.Expected = expected[n]
		}
		res.Shares = append(res.Shares, row)
	}
	if res.Tenants > 0 {
		res.BlastRadiusPercent, res.TouchedPercent = 100*float64(covered)/float64(res.Tenants), 100*float64(touched)/float64(res.Tenants)
	}
	for i, m := range mine.Members {
		member := &headracev1.PlacementMember{Partition: m, NodeId: string(d.Owners[m]), Tenants: on[m], Why: why(mine, i, res.Placement.DirectoryDatabase)}
		for _, p := range d.Partitions {
			if p.ID == m {
				member.Database, member.State = p.In(), string(cmp.Or(p.State, shard.Active))
			}
		}
		res.Members = append(res.Members, member)
	}
	return res, nil
}

// why says in words why a tenant has its i-th member.
func why(p *placement.Shard, i int, database string) string {
	m := p.Members[i]
	var s string
	switch {
	case i >= p.K:
		return fmt.Sprintf("beyond k, so that client ids have two partitions in their database %s", database)
	case p.Reason == shard.Moved:
		s = "named by whoever moved it"
	case p.Reason == shard.Drained && !slices.Contains(p.Before, m):
		s = "in place of one that drains"
	case p.Reason == shard.Resized && slices.Contains(p.Before, m):
		s = "kept"
	default:
		s = fmt.Sprintf("number %d of its order (salt %d)", i+1, p.Salt)
	}
	if slices.Contains(p.AtHome, m) {
		s += "; takes its client ids"
	}
	return s
}

// MovePlacement changes a tenant's placement.
func (s *Placements) MovePlacement(ctx context.Context, req *headracev1.MovePlacementRequest) (*headracev1.MovePlacementResponse, error) {
	if err := s.admit(); err != nil {
		return nil, err
	}
	if err := task.Name("tenant", req.Tenant); err != nil {
		return nil, err
	}
	if (len(req.Partitions) == 0) == (req.K == 0) {
		return nil, &task.FieldError{Field: "partitions", Value: fmt.Sprintf("%d, and k %d", len(req.Partitions), req.K), Want: "either partitions or k"}
	}
	if len(req.Note) > maxReason || !plain(req.Note) {
		return nil, &task.FieldError{Field: "note", Value: req.Note, Want: "at most 255 bytes of UTF-8 without control characters"}
	}
	p, err := s.cfg.Placements.Change(ctx, req.Tenant, placement.Change{To: req.Partitions, K: int(min(req.K, 1<<16)), Note: req.Note})
	if err != nil {
		return nil, err
	}
	return &headracev1.MovePlacementResponse{Placement: placementOf(p, s.cluster.Directory().Partitions, true)}, nil
}

// ListPlacementEvents returns the kept changes.
func (s *Placements) ListPlacementEvents(context.Context, *headracev1.ListPlacementEventsRequest) (*headracev1.ListPlacementEventsResponse, error) {
	res := &headracev1.ListPlacementEventsResponse{}
	for _, e := range s.cfg.Placements.Snapshot().Events() {
		m := &headracev1.PlacementEvent{Number: e.Number, EventTime: stamp(e.At), Tenant: e.Tenant, Version: e.Version, Note: e.Note, From: e.From, To: e.To}
		for r := shard.Created; r <= shard.Drained; r++ {
			if r.String() == e.Reason {
				m.Reason = headracev1.PlacementReason(r)
			}
		}
		res.Events = append(res.Events, m)
	}
	return res, nil
}

func placementOf(p shard.Placement, catalogue []shard.Partition, stored bool) *headracev1.Placement {
	m := &headracev1.Placement{
		Tenant: p.Tenant, Version: p.Version, Salt: p.Salt, K: uint32(p.K), Partitions: p.Members, PartitionsBefore: p.Before,
		Reason: headracev1.PlacementReason(p.Reason), ChangeTime: stamp(p.At), Stored: stored,
	}
	for _, q := range catalogue {
		if q.ID == p.Home {
			m.DirectoryDatabase = q.In()
		}
	}
	return m
}
