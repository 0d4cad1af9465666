package shard

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"testing"
)

// Whoever joins and leaves: the level is one that every member reads, is raised as soon as all read a higher one, and
// never goes down. A node that would not read it is not let in.
func TestLevelOverJoinsAndLeaves(t *testing.T) {
	for seed := range uint64(500) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var level Level
		var members []Node
		for step := range 60 {
			if len(members) > 0 && rng.IntN(5) < 2 {
				i := rng.IntN(len(members))
				members = slices.Delete(members, i, i+1)
			} else {
				low := Level(1 + rng.IntN(3))
				n := Node{Levels: &Levels{low, low + Level(rng.IntN(4))}}
				if rng.IntN(8) == 0 {
					n.Levels = nil
				}
				if level == 0 || n.Reads().Has(level) {
					members = append(members, n)
				}
			}
			before := level
			level = RaiseLevel(level, members)
			if level < before {
				t.Fatalf("seed %d step %d: from %d down to %d", seed, step, before, level)
			}
			best, all := Level(0), level == 0
			for l := Level(1); l < 10; l++ {
				if len(members) > 0 && !slices.ContainsFunc(members, func(n Node) bool { return !n.Reads().Has(l) }) {
					best, all = l, all || l == level
				}
			}
			if len(members) > 0 && (level < best || level > 0 && !all) {
				t.Fatalf("seed %d step %d: level %d, all read %d; members %v", seed, step, level, best, members)
			}
			rng.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
			if other := RaiseLevel(before, members); other != level {
				t.Fatalf("seed %d step %d: %d or %d, as they are listed", seed, step, level, other)
			}
		}
	}
}

// A member's record of the first build says nothing of levels, and one of a later build has fields that this one
// does not know.
func TestNodeRecordsOfOtherBuilds(t *testing.T) {
	var n Node
	if err := json.Unmarshal([]byte(`{"id":"a","addr":"a:1","started_at":"2026-01-02T03:04:05Z","formats":[1]}`), &n); err != nil {
		t.Fatal(err)
	}
	if n.Reads() != (Levels{1, 1}) {
		t.Errorf("the first build reads %v", n.Reads())
	}
	if err := json.Unmarshal([]byte(`{"id":"b","addr":"b:1","started_at":"2026-01-02T03:04:05Z","levels":{"min":2,"max":7},"new":{"x":1}}`), &n); err != nil {
		t.Fatal(err)
	}
	if n.Reads() != (Levels{2, 7}) {
		t.Errorf("a later build reads %v", n.Reads())
	}
}
