package api

import (
	"context"
	"errors"
	"fmt"
	"slices"

	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/shard"
	"github.com/headrace/headrace/shard/member"
	"github.com/headrace/headrace/task"
)

func intakeOf(p shard.Partition) headracev1.PartitionIntake {
	switch p.State {
	case shard.Draining:
		return headracev1.PartitionIntake_PARTITION_INTAKE_DRAINING
	case shard.Sealed:
		return headracev1.PartitionIntake_PARTITION_INTAKE_SEALED
	}
	return headracev1.PartitionIntake_PARTITION_INTAKE_ACTIVE
}

// SetPartitionIntake changes the catalogue. It waits until this node has heard of the change.
func (s *ClusterInfo) SetPartitionIntake(ctx context.Context, req *headracev1.SetPartitionIntakeRequest) (*headracev1.SetPartitionIntakeResponse, error) {
	if err := s.admit(); err != nil {
		return nil, err
	}
	state := shard.Active
	switch req.Intake {
	case headracev1.PartitionIntake_PARTITION_INTAKE_ACTIVE:
	case headracev1.PartitionIntake_PARTITION_INTAKE_DRAINING:
		state = shard.Draining
	default:
		return nil, &task.FieldError{Field: "intake", Value: fmt.Sprint(int32(req.Intake)), Want: "active or draining"}
	}
	if n := len(req.Partitions); n < 1 || n > 1024 {
		return nil, &task.FieldError{Field: "partitions", Value: fmt.Sprintf("%d partitions", n), Want: "1 to 1024"}
	}
	for {
		changed := s.directoryChange() // before the look, so that no change is missed
		change, err := withIntake(s.cluster.Directory().Partitions, req.Partitions, state)
		if err != nil {
			return nil, err
		}
		if len(change) == 0 {
			return &headracev1.SetPartitionIntakeResponse{}, nil
		}
		if err := s.cluster.SetPartitions(ctx, change...); err != nil && !errors.Is(err, member.ErrConflict) {
			return nil, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// withIntake returns the entries of a catalogue that have to change; none: it is so already.
func withIntake(catalogue []shard.Partition, ids []uint32, state shard.PartitionState) (change []shard.Partition, err error) {
	active := 0
	for _, p := range catalogue {
		named := slices.Contains(ids, p.ID)
		if named && p.State == shard.Sealed {
			return nil, &task.FieldError{Field: "partitions", Value: fmt.Sprint(p.ID), Want: "partitions that are not sealed"}
		}
		if p.Open() != (state == shard.Active) && named {
			p.State = state
			change = append(change, p)
		}
		if p.Open() {
			active++
		}
	}
	for _, id := range ids {
		if !slices.ContainsFunc(catalogue, func(p shard.Partition) bool { return p.ID == id }) {
			return nil, &task.FieldError{Field: "partitions", Value: fmt.Sprint(id), Want: "partitions that there are"}
		}
	}
	if active == 0 {
		return nil, &task.FieldError{Field: "partitions", Value: fmt.Sprintf("%d partitions", len(ids)), Want: "at least one that stays active"}
	}
	return change, nil
}
