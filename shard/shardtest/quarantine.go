package shardtest

import (
	"slices"
	"testing"
	"time"

	"github.com/headrace/headrace/shard"
	"github.com/headrace/headrace/shard/member"
)

// spread starts nodes one after the other until each has its share of 8.
func spread(c *cluster, names ...string) []*node {
	var all []*node
	for i, name := range names {
		all = append(all, c.start(name))
		for _, n := range all {
			n.until("its share", func() bool { return len(n.held) == 8/(i+1) || len(n.held) == (8+i)/(i+1) })
		}
	}
	return all
}

// holder waits until one of the nodes holds a partition.
func holder(t *testing.T, p uint32, nodes []*node) *node {
	t.Helper()
	timeout := time.After(patience)
	for {
		for _, n := range nodes {
			n.mu.Lock()
			has := n.held[p]
			n.mu.Unlock()
			if has {
				return n
			}
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-timeout:
			t.Fatalf("nobody holds partition %d", p)
		}
	}
}

// others is what a node holds beside one partition.
func (n *node) others(p uint32) (list []uint32) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for q := range n.held {
		if q != p {
			list = append(list, q)
		}
	}
	return list
}

// Two owners of a partition die soon after they opened it: the next one opens it at once, and with care. When that one
// dies too it is given to one node that has nothing else, after a back-off, and comes back to that node's next run.
// The others keep what they have.
func testQuarantine(t *testing.T, c *cluster) {
	nodes := spread(c, "a", "b", "c", "d")
	const p = 3
	drop := func(n *node) {
		n.kill()
		nodes = slices.DeleteFunc(nodes, func(o *node) bool { return o == n })
		for _, o := range nodes { // else its next run would be one node more for a moment, and get a share
			o.until("its end", func() bool { _, there := o.Directory().Node(n.id); return !there })
		}
	}
	first := holder(t, p, nodes)
	drop(first)
	second := holder(t, p, nodes)
	if got := second.Tenure(p); len(got.Deaths) != 1 || got.Deaths[0].Node != first.id || got.Careful() {
		t.Errorf("after one death: %+v", got)
	}
	drop(second)
	began := time.Now()
	third := holder(t, p, nodes)
	if got := third.Tenure(p); len(got.Deaths) != 2 || !got.Careful() {
		t.Errorf("after two deaths: %+v", got)
	}
	if d := time.Since(began); d > 2*c.ttl+c.slack {
		t.Errorf("after two deaths it was without an owner for %v", d)
	}
	nodes = append(nodes, c.start("e"))
	holder(t, p, nodes)
	began = time.Now()
	drop(third)
	nodes = append(nodes, c.start(third.name)) // its next run
	ward := holder(t, p, nodes)
	if d := time.Since(began); d < shard.Backoff(3) {
		t.Errorf("after three deaths it was opened again after %v", d)
	}
	if got := ward.Tenure(p); len(got.Deaths) != 3 {
		t.Errorf("after three deaths: %+v", got)
	}
	if ward.name != third.name {
		t.Errorf("opened by %s, not by the next run of %s", ward.id, third.id)
	}
	if o := ward.others(p); len(o) > 0 {
		t.Errorf("%s holds %v as well", ward.id, o)
	}
	for _, n := range nodes {
		n.until("no other quarantine", func() bool { return n == ward || len(n.held) > 0 })
	}

	// It dies of it again: twice as long, the same node, and nobody else loses anything.
	seen := map[*node]int{}
	for _, n := range nodes {
		seen[n] = n.count(member.Unassigned)
	}
	began = time.Now()
	drop(ward)
	nodes = append(nodes, c.start(ward.name))
	again := holder(t, p, nodes)
	if d := time.Since(began); d < shard.Backoff(4) || again.name != ward.name {
		t.Errorf("after four deaths it was opened after %v by %s", d, again.id)
	}
	for _, n := range nodes {
		if n != again && n.count(member.Unassigned) != seen[n] {
			t.Errorf("%s had to give up partitions", n.id)
		}
	}

	// This one lives: others get their share of everything again, and nothing is remembered in the end.
	if err := again.Passed(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	again.until("its share", func() bool { return len(again.held) > 1 })
	if err := again.Calm(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	again.until("no tenure", func() bool { _, is := again.Directory().Tenures[p]; return !is })
}

// Nodes that end in an orderly way, or that were only cut off, have not died.
func testTenuresOfTheLiving(t *testing.T, c *cluster) {
	nodes := spread(c, "a", "b")
	a, b := nodes[0], nodes[1]
	for range 3 {
		a.gate.Shut()
		b.holds(8)
		a.gate.Open()
		a.holds(4)
		b.holds(4)
	}
	a.leave()
	b.holds(8)
	for p, tn := range b.Directory().Tenures {
		if len(tn.Deaths) > 0 && tn.Deaths[0].Node == a.id && b.Directory().Deaths(p) > 1 {
			t.Errorf("partition %d: %+v", p, tn)
		}
	}
	c.start("c").holds(4)
	for p := range uint32(8) {
		if n := b.Directory().Deaths(p); n > 1 {
			t.Errorf("partition %d: %d deaths, and nobody died", p, n)
		}
	}
}
