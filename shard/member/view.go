package member

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/headrace/headrace/shard"
)

// view is what the registry held when it was last heard. The session's loop owns it.
type view struct {
	keys       keys
	items      map[string]Item // all keys under the prefix, as they are
	revision   int64           // of the newest change or list in it
	members    map[shard.NodeID]shard.Node
	owners     map[uint32]shard.NodeID
	partitions []shard.Partition // by id
	assignment shard.Assignment
	level      shard.Level // 0: none is written
	tenures    map[uint32]shard.Tenure
	bad        error // the first value that could not be read; it counts as missing
}

// assignmentValue is how an assignment is stored: by node, which is shorter.
type assignmentValue struct {
	Version uint64                    `json:"version"`
	Nodes   map[shard.NodeID][]uint32 `json:"nodes"`
}

func newView(k keys) *view { return &view{keys: k, items: map[string]Item{}} }

// reset replaces everything by a list.
func (v *view) reset(items []Item, revision int64) {
	clear(v.items)
	for _, it := range items {
		v.items[it.Key] = it
	}
	v.revision = revision
	v.parse()
}

// apply takes in changes, in order.
func (v *view) apply(changes []Change) {
	for _, c := range changes {
		if c.Deleted {
			delete(v.items, c.Key)
		} else {
			v.items[c.Key] = c.Item
		}
		v.revision = max(v.revision, c.Revision)
	}
	v.parse()
}

// parse reads all values anew: there are a few hundred at most, and they change a few times a day.
func (v *view) parse() {
	v.members, v.owners = map[shard.NodeID]shard.Node{}, map[uint32]shard.NodeID{}
	v.partitions, v.assignment, v.bad = nil, shard.Assignment{Owners: map[uint32]shard.NodeID{}}, nil
	v.level, v.tenures = 0, map[uint32]shard.Tenure{}
	for _, key := range slices.Sorted(maps.Keys(v.items)) {
		if err := v.parseItem(v.items[key]); err != nil && v.bad == nil {
			v.bad = fmt.Errorf("read %s: %w", key, err)
		}
	}
}

func (v *view) parseItem(it Item) error {
	if id, ok := strings.CutPrefix(it.Key, v.keys.members()); ok {
		var n shard.Node
		if err := json.Unmarshal(it.Value, &n); err != nil {
			return err
		}
		n.ID = shard.NodeID(id)
		v.members[n.ID] = n
		return nil
	}
	if s, ok := strings.CutPrefix(it.Key, v.keys.owners()); ok {
		p, err := parseUint(s)
		if err != nil {
			return err
		}
		v.owners[p] = shard.NodeID(it.Value)
		return nil
	}
	if s, ok := strings.CutPrefix(it.Key, v.keys.tenures()); ok {
		p, err := parseUint(s)
		if err != nil {
			return err
		}
		var t shard.Tenure
		if err := json.Unmarshal(it.Value, &t); err != nil {
			return err
		}
		v.tenures[p] = t
		return nil
	}
	switch it.Key {
	case v.keys.level():
		level, err := parseLevel(it.Value)
		if err != nil {
			return err
		}
		v.level = level
	case v.keys.partitions():
		if err := json.Unmarshal(it.Value, &v.partitions); err != nil {
			v.partitions = nil
			return err
		}
		sortPartitions(v.partitions)
	case v.keys.assignment():
		var a assignmentValue
		if err := json.Unmarshal(it.Value, &a); err != nil {
			return err
		}
		v.assignment.Version = a.Version
		for id, ps := range a.Nodes {
			for _, p := range ps {
				v.assignment.Owners[p] = id
			}
		}
	}
	return nil
}

// leader is the leader's id and its key's revision; "" and 0 if there is none.
func (v *view) leader() (shard.NodeID, int64) {
	it := v.items[v.keys.leader()]
	return shard.NodeID(it.Value), it.Revision
}

// nodes returns the members by id.
func (v *view) nodes() []shard.Node {
	ns := slices.Collect(maps.Values(v.members))
	slices.SortFunc(ns, func(a, b shard.Node) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return ns
}

// directory is the view as others may keep it.
func (v *view) directory() *shard.Directory {
	leader, _ := v.leader()
	return &shard.Directory{
		Version:    v.revision,
		Nodes:      v.nodes(),
		Owners:     maps.Clone(v.owners),
		Assigned:   maps.Clone(v.assignment.Owners),
		Partitions: slices.Clone(v.partitions),
		Leader:     leader,
		Level:      v.level,
		Tenures:    maps.Clone(v.tenures),
	}
}

func encodeAssignment(a shard.Assignment) []byte {
	val := assignmentValue{Version: a.Version, Nodes: map[shard.NodeID][]uint32{}}
	for _, p := range slices.Sorted(maps.Keys(a.Owners)) {
		val.Nodes[a.Owners[p]] = append(val.Nodes[a.Owners[p]], p)
	}
	return encode(val)
}

// encode is for values of our own types, which JSON can always hold.
func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("member: encode %T: %v", v, err))
	}
	return b
}

func sortPartitions(ps []shard.Partition) {
	slices.SortFunc(ps, func(a, b shard.Partition) int { return cmp.Compare(a.ID, b.ID) })
}
