package shares

import (
	"slices"
	"testing"
	"time"
)

// A coordinator that was away, and took itself for a member all the time, must not grant by what it knew before: others
// have granted meanwhile.
func TestCoordinatorThatWasAway(t *testing.T) {
	members := []string{"a", "b", "c"}
	self := Coordinator(simKey, members)
	i := slices.Index(members, self)
	x, y := members[(i+1)%3], members[(i+2)%3]
	now := time.Unix(1_000_000, 0)
	c := NewPools(self)
	c.SetSession(now, 1)
	c.SetView(now, members, []uint32{1})
	c.SetLimit(now, simKey, Limit{Concurrency: 7})
	seq, epoch := uint64(0), uint64(1)
	share := map[string]int{}
	report := func(node string, use, ready int) {
		seq++
		r := Report{Node: node, Seq: seq, Known: simKey.Sum(), Uses: []Use{{Key: simKey, InUse: use, Ready: ready, Share: share[node]}}}
		if node == x {
			r.Open = []Opened{{1, epoch}}
		}
		for _, g := range c.Report(now, r).Grants {
			share[node] = g.Share
		}
	}
	round := func(uses map[string]int) {
		for _, n := range []string{y, self, x} {
			report(n, uses[n], 9)
		}
		now = now.Add(Every)
	}
	for range 12 {
		round(nil)
	}
	if share[x]+share[y]+share[self] != 7 {
		t.Fatalf("shares %v, want 7 in all", share)
	}
	now = now.Add(time.Minute)
	share[x], share[y], share[self] = 6, 1, 0 // by the one that coordinated meanwhile
	epoch++
	c.SetSession(now, 2)
	c.SetView(now, members, []uint32{1})
	uses := map[string]int{x: 6, y: 1}
	for range 12 {
		round(uses)
		if most := max(share[x], 6) + max(share[y], 1) + share[self]; most > 7 {
			t.Fatalf("shares %v, in use %v: more than 7", share, uses)
		}
	}
	for range 12 {
		round(nil)
	}
	if share[x]+share[y]+share[self] != 7 {
		t.Errorf("shares %v at the end, want 7 in all", share)
	}
}
