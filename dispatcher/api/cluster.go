package api

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/headrace/headrace/dispatcher/core"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/shard"
)

// Cluster service states of a partition.
const (
	partitionOpen    = "open"
	partitionOpening = "opening"
	partitionOwned   = "owned" // by another node, which has told nothing of it yet
	partitionNone    = "none"

	partitionQuarantined = "quarantined" // its owners died early, or caught a panic
)

// ClusterInfo is the ClusterService.
type ClusterInfo struct {
	headracev1.UnimplementedClusterServiceServer
	*Services
}

// ListNodes returns the nodes by id.
func (s *ClusterInfo) ListNodes(context.Context, *headracev1.ListNodesRequest) (*headracev1.ListNodesResponse, error) {
	d := s.cluster.Directory()
	owned := ownedBy(d)
	res := &headracev1.ListNodesResponse{Level: uint32(d.Level)}
	for _, n := range d.Nodes {
		m := &headracev1.Node{
			Id: string(n.ID), Name: n.Name, Address: n.Addr, Version: n.Version, StartTime: stamp(n.StartedAt),
			Partitions: owned[n.ID], Leader: n.ID == d.Leader,
			MinLevel: uint32(n.Reads().Min), MaxLevel: uint32(n.Reads().Max),
		}
		if m.Id == s.cfg.NodeID && s.cfg.Self != nil {
			s.cfg.Self(m)
		} else if told := s.engine.Node(m.Id); told != nil {
			m.Executors, m.Running, m.LoopBusyRatio, m.CpuMicros = told.Executors, told.Running, told.LoopBusyRatio, told.CpuMicros
			m.StoreSettings, m.DiskWrittenBytes, m.DiskOccupiedBytes = told.StoreSettings, told.DiskWrittenBytes, told.DiskOccupiedBytes
			m.Alarms = told.Alarms
		}
		res.Nodes = append(res.Nodes, m)
	}
	return res, nil
}

// ListPartitions returns the partitions by number.
func (s *ClusterInfo) ListPartitions(context.Context, *headracev1.ListPartitionsRequest) (*headracev1.ListPartitionsResponse, error) {
	d := s.cluster.Directory()
	stats := s.engine.Partitions()
	res := &headracev1.ListPartitionsResponse{}
	for _, p := range d.Partitions {
		m := &headracev1.Partition{Id: p.ID, NodeId: string(d.Owners[p.ID]), State: partitionNone, Database: p.In(), Intake: intakeOf(p)}
		switch {
		case m.NodeId == s.cfg.NodeID && m.NodeId != "":
			m.State = partitionOpening
		case m.NodeId != "":
			m.State = partitionOwned
		}
		if i := slices.IndexFunc(stats, func(st core.PartitionStat) bool { return st.Partition == p.ID }); i >= 0 {
			st := stats[i]
			m.Epoch, m.Backlog, m.Scheduled, m.Running = st.Epoch, st.Backlog, st.Scheduled, st.Running
			if st.Open {
				m.State = partitionOpen
			}
		}
		quarantine(m, d)
		res.Partitions = append(res.Partitions, m)
	}
	slices.SortFunc(res.Partitions, func(a, b *headracev1.Partition) int { return cmp.Compare(a.Id, b.Id) })
	return res, nil
}

// quarantine says so of a partition whose owners died soon after they opened it, or whose owner caught a panic over it.
func quarantine(m *headracev1.Partition, d *shard.Directory) {
	t, deaths := d.Tenures[m.Id], d.Deaths(m.Id)
	opened := m.State == partitionOpen
	why, is := t.Quarantined(deaths, d.Owners[m.Id])
	if m.Reason = why; !is {
		return
	}
	m.State = partitionQuarantined
	switch {
	case d.Withheld(m.Id):
		m.NextTryTime = stamp(t.NextTry)
	case !opened && t.Caught.Panics > 0 && !t.Caught.Passed:
		m.NextTryTime = stamp(t.Caught.Next)
	}
}

// ownedBy turns owners around: partitions by node, ascending.
func ownedBy(d *shard.Directory) map[shard.NodeID][]uint32 {
	out := map[shard.NodeID][]uint32{}
	for _, p := range slices.Sorted(maps.Keys(d.Owners)) {
		out[d.Owners[p]] = append(out[d.Owners[p]], p)
	}
	return out
}

// directory is what executors are told.
func directory(d *shard.Directory) *headracev1.DirectoryResponse {
	owned := ownedBy(d)
	res := &headracev1.DirectoryResponse{Version: uint64(d.Version)}
	for _, n := range d.Nodes {
		res.Nodes = append(res.Nodes, &headracev1.DirectoryNode{Id: string(n.ID), Address: n.Addr, Partitions: owned[n.ID]})
	}
	return res
}
