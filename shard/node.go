package shard

import (
	"slices"
	"time"
)

// NodeID names one run of a server process: random, new at each start of the process.
type NodeID string

// Node is what a node tells the others when it joins.
type Node struct {
	ID        NodeID    `json:"id"`
	Name      string    `json:"name,omitempty"` // for people; not unique
	Addr      string    `json:"addr"`           // advertised gRPC host:port
	StartedAt time.Time `json:"started_at"`     // by its own clock; for people
	Version   string    `json:"version,omitempty"`
	Levels    *Levels   `json:"levels,omitempty"`    // that it reads; nil: the first only
	Draining  bool      `json:"draining,omitempty"`  // on its way out: the leader assigns it nothing
	Passive   bool      `json:"passive,omitempty"`   // takes requests only: the leader assigns it nothing
	Session   int64     `json:"session,omitempty"`   // of its membership: the lease it joined with; another one is another session
	Databases []string  `json:"databases,omitempty"` // that it knows: partitions of another one are not added before all nodes know it
	Cut       []CutOff  `json:"cut,omitempty"`       // that it can't reach, by name: the leader gives it none of their partitions while another node does
}

// PartitionState says whether new tasks may be stored in a partition.
type PartitionState string

// The states of a partition. The empty string counts as active.
const (
	Active   PartitionState = "active"
	Draining PartitionState = "draining" // no new tasks; what is there is still dispatched
	Sealed   PartitionState = "sealed"   // empty and closed for good; its number is not used again
)

// Partition is one entry of the partition catalogue.
type Partition struct {
	ID   uint32 `json:"id"`
	Zone string `json:"zone"` // the failure domain: its database, or what several of them share
	// Database holds it, by the name that all nodes know it by; "": it is named as the zone.
	Database string         `json:"database,omitempty"`
	State    PartitionState `json:"state,omitempty"`
	Weight   float64        `json:"weight,omitempty"` // of its share of tenants; 0 means 1
}

// In returns the name of the partition's database.
func (p Partition) In() string {
	if p.Database == "" {
		return p.Zone
	}
	return p.Database
}

// Takes reports whether the leader may assign partitions to the node.
func (n Node) Takes() bool { return !n.Draining && !n.Passive }

// Open reports whether new tasks may be stored in the partition.
func (p Partition) Open() bool { return p.State == "" || p.State == Active }

// IDs returns the numbers of the partitions that need an owner: all but the sealed ones, ascending.
func IDs(ps []Partition) []uint32 {
	ids := make([]uint32, 0, len(ps))
	for _, p := range ps {
		if p.State != Sealed {
			ids = append(ids, p.ID)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// Directory is who is there and who holds what, as one node last saw it. It is never changed after it
// was published; it may be late, so it serves routing and never safety.
type Directory struct {
	// Version grows with every change that this process sees. It is the registry's revision: comparable
	// among nodes of one registry, but it may go back when the registry is replaced.
	Version    int64
	Nodes      []Node            // by id
	Owners     map[uint32]NodeID // who holds the owner key; a partition that nobody holds is missing
	Assigned   map[uint32]NodeID // who ought to
	Partitions []Partition       // by id
	Leader     NodeID            // "" if there is none
	Level      Level             // what nodes may write; 0: not decided yet
	Tenures    map[uint32]Tenure // of partitions whose owner is new, or whose owners died early
}

// Node returns the node of that id.
func (d *Directory) Node(id NodeID) (Node, bool) {
	i := slices.IndexFunc(d.Nodes, func(n Node) bool { return n.ID == id })
	if i < 0 {
		return Node{}, false
	}
	return d.Nodes[i], true
}

// Owner returns the node that holds a partition's key; false if nobody does or its node has left.
func (d *Directory) Owner(partition uint32) (Node, bool) {
	id, ok := d.Owners[partition]
	if !ok {
		return Node{}, false
	}
	return d.Node(id)
}

// Deaths counts the owners in a row that died within TenureCalm of opening a partition.
func (d *Directory) Deaths(partition uint32) int {
	_, held := d.Owners[partition]
	return d.Tenures[partition].DeathsBut(func(id NodeID) bool { _, there := d.Node(id); return there }, held)
}

// Withheld reports whether a partition has no owner because it is quarantined: the leader said when it will have.
func (d *Directory) Withheld(partition uint32) bool {
	_, held := d.Owners[partition]
	t, n := d.Tenures[partition], d.Deaths(partition)
	return !held && t.Alone(n) && t.TriedAfter == n
}
