package shard

import "fmt"

// Level numbers what the nodes of a cluster write: formats on disk and in the registry, and rules that all of
// them must follow at once. A node may write what belongs to a level only while the cluster is there, which
// it is once every member reads it. It is never lowered: what was written stays.
type Level uint32

// The levels, each with what it allows. A new one is added at the end, with the code that asks for it; a node
// reads all from Oldest on.
const (
	// LevelFirst is what every build reads and writes.
	LevelFirst Level = 1
	// LevelTenures: claims leave a tenure in the registry, by which a partition whose owners die is noticed.
	LevelTenures Level = 2

	OldestLevel = LevelFirst
	NewestLevel = LevelTenures
)

// Levels is a range that a node reads, both ends included.
type Levels struct {
	Min Level `json:"min"`
	Max Level `json:"max"`
}

// OwnLevels are those of this build.
func OwnLevels() Levels { return Levels{OldestLevel, NewestLevel} }

// Has reports whether a node of that range can work in a cluster of level l.
func (r Levels) Has(l Level) bool { return r.Min <= l && l <= r.Max }

func (r Levels) String() string {
	if r.Min == r.Max {
		return fmt.Sprint(uint32(r.Min))
	}
	return fmt.Sprintf("%d to %d", r.Min, r.Max)
}

// Validate reports a range that is none.
func (r Levels) Validate() error {
	if r.Min < 1 || r.Max < r.Min {
		return fmt.Errorf("levels %d to %d: want a range from 1 on", r.Min, r.Max)
	}
	return nil
}

// Reads returns the levels that the node announced. Who announces none is of the first build.
func (n Node) Reads() Levels {
	if n.Levels == nil {
		return Levels{LevelFirst, LevelFirst}
	}
	return *n.Levels
}

// RaiseLevel returns the level for a cluster that is at now (0: at none yet): the highest that all members
// read, and never less than now. The result depends on the members only, not on their order.
func RaiseLevel(now Level, members []Node) Level {
	if len(members) == 0 {
		return now
	}
	highest := members[0].Reads().Max
	for _, n := range members[1:] {
		highest = min(highest, n.Reads().Max)
	}
	for _, n := range members {
		if highest < n.Reads().Min {
			return now // two members without a level in common: nothing is decided while both are here
		}
	}
	return max(now, highest)
}
