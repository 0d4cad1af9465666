package api

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/headrace/headrace/dispatcher/core"
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
	case headracev1.PartitionIntake_PARTITION_INTAKE_SEALED:
		state = shard.Sealed
	default:
		return nil, &task.FieldError{Field: "intake", Value: fmt.Sprint(int32(req.Intake)), Want: "active, draining or sealed"}
	}
	if n := len(req.Partitions); n < 1 || n > 1024 {
		return nil, &task.FieldError{Field: "partitions", Value: fmt.Sprintf("%d partitions", n), Want: "1 to 1024"}
	}
	for {
		changed := s.directoryChange() // before the look, so that no change is missed
		catalogue := s.cluster.Directory().Partitions
		if state == shard.Sealed {
			if err := s.maySeal(catalogue, req.Partitions); err != nil {
				return nil, err
			}
		}
		change, err := withIntake(catalogue, req.Partitions, state)
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

// maySeal says why partitions can't be sealed: they take tasks, or have some, or are the last of a database that do.
// A task that comes all the same meanwhile is found by the leader, which opens the partition again.
func (s *ClusterInfo) maySeal(catalogue []shard.Partition, ids []uint32) error {
	stats := s.engine.Partitions()
	left := map[string]int{} // partitions that are not sealed, by database
	for _, p := range catalogue {
		named := slices.Contains(ids, p.ID)
		if p.State != shard.Sealed && !named {
			left[p.In()]++
		}
		if !named || p.State == shard.Sealed {
			continue
		}
		empty := slices.ContainsFunc(stats, func(st core.PartitionStat) bool {
			return st.Partition == p.ID && st.Open && st.Backlog+st.Scheduled+st.Running == 0
		})
		if p.State != shard.Draining || !empty {
			return &task.FieldError{Field: "partitions", Value: fmt.Sprint(p.ID), Want: "draining partitions that are open and empty"}
		}
	}
	for _, p := range catalogue {
		if slices.Contains(ids, p.ID) && left[p.In()] == 0 {
			return &task.FieldError{Field: "partitions", Value: fmt.Sprint(p.ID),
				Want: "one at least in database " + p.In() + " that is not sealed: client ids of tenants are there"}
		}
	}
	return nil
}

// withIntake returns the entries of a catalogue that have to change; none: it is so already.
func withIntake(catalogue []shard.Partition, ids []uint32, state shard.PartitionState) (change []shard.Partition, err error) {
	active := 0
	for _, p := range catalogue {
		named := slices.Contains(ids, p.ID)
		if named && p.State == shard.Sealed && state != shard.Sealed {
			return nil, &task.FieldError{Field: "partitions", Value: fmt.Sprint(p.ID), Want: "partitions that are not sealed"}
		}
		if named && (p.Open() != (state == shard.Active) || state == shard.Sealed && p.State != shard.Sealed) {
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
