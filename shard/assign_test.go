package shard

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

func nodes(n int) []Node {
	ns := make([]Node, n)
	for i := range ns {
		ns[i] = Node{ID: NodeID(fmt.Sprintf("n%02d", i))}
	}
	return ns
}

func upTo(n int) []uint32 {
	ps := make([]uint32, n)
	for i := range ps {
		ps[i] = uint32(i)
	}
	return ps
}

func moves(a, b map[uint32]NodeID) (n int) {
	for p, id := range b {
		if a[p] != id {
			n++
		}
	}
	return n
}

func loads(m map[uint32]NodeID) map[NodeID]int {
	c := map[NodeID]int{}
	for _, id := range m {
		c[id]++
	}
	return c
}

// 256 partitions on 16 nodes: a leave moves 16, a join 15, the lower bounds.
func TestAssignMovesTheLeast(t *testing.T) {
	ps, ns := upTo(256), nodes(17)
	sixteen := Assign(nil, ns[:16], ps)
	if n := moves(sixteen, Assign(sixteen, ns, ps)); n != 15 {
		t.Errorf("a join moves %d partitions, want 15", n)
	}
	if n := moves(sixteen, Assign(sixteen, ns[1:16], ps)); n != 16 {
		t.Errorf("a leave moves %d partitions, want 16", n)
	}
	if n := moves(sixteen, Assign(sixteen, ns[:16], ps)); n != 0 {
		t.Errorf("no change moves %d partitions", n)
	}
}

// Over random histories: one owner each, shares differ by at most one, the result does not depend on
// orders, and nothing moves that need not.
func TestAssignProperties(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 7))
		prev := map[uint32]NodeID{}
		for step := range 12 {
			ns := nodes(12)
			r.Shuffle(len(ns), func(i, j int) { ns[i], ns[j] = ns[j], ns[i] })
			ns = ns[:1+r.IntN(11)]
			ps := upTo(1 + r.IntN(40))
			next := Assign(prev, ns, ps)
			where := fmt.Sprintf("seed %d step %d: %d nodes, %d partitions", seed, step, len(ns), len(ps))

			if len(next) != len(ps) {
				t.Fatalf("%s: %d assigned", where, len(next))
			}
			load, kept := loads(next), map[NodeID]int{}
			for p, id := range next {
				if !slices.ContainsFunc(ns, func(n Node) bool { return n.ID == id }) {
					t.Fatalf("%s: %d given to %s, who is not there", where, p, id)
				}
			}
			most, least, bound := 0, len(ps), 0
			for _, n := range ns {
				most, least = max(most, load[n.ID]), min(least, load[n.ID])
			}
			if most-least > 1 {
				t.Fatalf("%s: shares %v", where, load)
			}
			// The lower bound: a node can keep at most its share; only len(ps) % len(ns) shares are one larger.
			for p, id := range prev {
				if int(p) < len(ps) && slices.ContainsFunc(ns, func(n Node) bool { return n.ID == id }) {
					kept[id]++
				}
			}
			share, larger := len(ps)/len(ns), len(ps)%len(ns)
			stay := 0
			for _, n := range slices.Sorted(maps.Values(kept)) {
				bound += min(n, share)
				if n > share {
					stay++
				}
			}
			bound = len(ps) - bound - min(stay, larger)
			if got := moves(prev, next); got != bound {
				t.Fatalf("%s: %d moved, %d would do", where, got, bound)
			}

			slices.Reverse(ns)
			slices.Reverse(ps)
			if !maps.Equal(next, Assign(prev, ns, ps)) {
				t.Fatalf("%s: the order of the arguments matters", where)
			}
			prev = next
		}
	}
}

// A draining node loses what it has; with nobody left nothing is assigned.
func TestAssignDraining(t *testing.T) {
	ns, ps := nodes(2), upTo(8)
	both := Assign(nil, ns, ps)
	ns[0].Draining = true
	if l := loads(Assign(both, ns, ps)); l["n01"] != 8 {
		t.Errorf("shares %v, want all 8 at n01", l)
	}
	ns[1].Draining = true
	if got := Assign(both, ns, ps); len(got) != 0 {
		t.Errorf("assigned to nodes that drain: %v", got)
	}
}

func BenchmarkAssign(b *testing.B) {
	ps, ns := upTo(256), nodes(17)
	prev := Assign(nil, ns[:16], ps)
	b.ReportAllocs()
	for b.Loop() {
		Assign(prev, ns, ps)
	}
}
