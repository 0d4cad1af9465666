package api

import (
	"context"
	"fmt"

	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/shard"
	"github.com/headrace/headrace/shard/truth"
	"github.com/headrace/headrace/task"
)

// GetClusterStatus compares the registry with the databases.
func (s *ClusterInfo) GetClusterStatus(ctx context.Context, _ *headracev1.GetClusterStatusRequest) (*headracev1.GetClusterStatusResponse, error) {
	st, err := s.cfg.Truth.Status(ctx)
	if err != nil {
		return nil, err
	}
	res := &headracev1.GetClusterStatusResponse{RegistryVersion: st.Registry}
	if st.Held != nil {
		res.Held, res.HeldSinceTime = st.Held.Reason, stamp(st.Held.Since)
	}
	for _, m := range st.Databases {
		d := &headracev1.DatabaseMemory{Name: m.Name, SeenVersion: m.Seen, CopiedVersion: m.Copied}
		if m.Err != nil {
			d.Error = s.info("GetClusterStatus", m.Err).Message
		}
		res.Databases = append(res.Databases, d)
	}
	d := s.cluster.Directory()
	for _, p := range shard.IDs(d.Partitions) {
		if _, owned := d.Owner(p); !owned {
			res.PartitionsWithoutOwner = append(res.PartitionsWithoutOwner, p)
		}
	}
	return res, nil
}

// AcceptRestore ends the hold of all nodes: this one's at once, the others' within a second or two.
func (s *ClusterInfo) AcceptRestore(ctx context.Context, req *headracev1.AcceptRestoreRequest) (*headracev1.AcceptRestoreResponse, error) {
	if err := s.admit(); err != nil {
		return nil, err
	}
	var from truth.Source
	switch req.Source {
	case headracev1.RestoreSource_RESTORE_SOURCE_REGISTRY:
		from = truth.Registry
	case headracev1.RestoreSource_RESTORE_SOURCE_DATABASE:
		from = truth.Copies
	default:
		return nil, &task.FieldError{Field: "source", Value: fmt.Sprint(int32(req.Source)), Want: "registry or database"}
	}
	if err := s.cfg.Truth.Accept(ctx, from); err != nil {
		return nil, err
	}
	st, err := s.cfg.Truth.Status(ctx)
	if err != nil {
		return nil, err
	}
	return &headracev1.AcceptRestoreResponse{RegistryVersion: st.Registry}, nil
}
