package shardtest

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/headrace/headrace/shard/member"
)

// flag is an error that a test sets.
type flag struct {
	mu sync.Mutex
	e  error
}

func (f *flag) set(e error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.e = e
}

func (f *flag) err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.e
}

// The second node gets half, each partition by hand-over; when it leaves, all goes back at once.
func testTwoNodesShare(t *testing.T, c *cluster) {
	a := c.start("a")
	a.holds(8)
	b := c.start("b")
	b.holds(4)
	a.holds(4)
	for _, n := range []*node{a, b} {
		n.until("directory with 8 owners", func() bool { return len(n.Directory().Owners) == 8 && len(n.Directory().Nodes) == 2 })
		count := 0
		for p := range uint32(8) {
			if ok, err := n.Holds(t.Context(), p); err != nil {
				t.Fatal(err)
			} else if ok {
				count++
			}
		}
		if count != 4 {
			t.Errorf("%s holds %d by its own look", n.id, count)
		}
	}
	if n := a.count(member.Unassigned); n != 4 {
		t.Errorf("%d partitions taken from the first, want 4", n)
	}
	if n := len(c.leases()); n != 2 {
		t.Errorf("%d leases for two nodes", n)
	}
	b.leave()
	a.holds(8)
}

// When the leader dies, the other becomes leader, and no partition is without an owner for longer than
// its TTL and what the registry takes to notice.
func testDeadNode(t *testing.T, c *cluster) {
	a := c.start("a")
	a.holds(8)
	b := c.start("b")
	b.holds(4)
	diedAt := time.Now()
	a.kill()
	b.holds(8)
	if d := time.Since(diedAt); d > 2*c.ttl+c.slack {
		t.Errorf("owned again after %v", d)
	}
	b.until("leader", func() bool { return b.Directory().Leader == b.id && len(b.Directory().Nodes) == 1 })

	// The new leader leads: a third node gets its share.
	c.start("c").holds(4)
}

// A node that was cut off and wakes up: its look says that another owns, it is told what it lost, and it
// comes back for its share.
func testHoldsIsHonest(t *testing.T, c *cluster) {
	a := c.start("a")
	a.holds(8)
	b := c.start("b")
	b.holds(4)
	a.mu.Lock()
	var had []uint32
	for p := range a.held {
		had = append(had, p)
	}
	a.mu.Unlock()
	slices.Sort(had)
	seen := a.seen()
	a.gate.Shut()
	b.holds(8)
	a.gate.Open()
	for _, p := range had {
		if ok, err := a.Holds(t.Context(), p); ok || err != nil {
			// Its share may have come back already: then the key's owner is a, under a new lease.
			if b2, _ := b.Holds(t.Context(), p); ok && !b2 {
				continue
			}
			t.Errorf("Holds(%d) = %v, %v; b has it", p, ok, err)
		}
	}
	a.event(member.LeaseLost, seen)
	a.holds(4)
	b.holds(4)
}

// A node that drains hands all over before it leaves, and gets nothing new.
func testDrain(t *testing.T, c *cluster) {
	a := c.start("a")
	a.holds(8)
	b := c.start("b")
	b.holds(4)
	if err := a.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.holds(0)
	b.holds(8)
	if n := b.count(member.Lost); n != 0 {
		t.Errorf("%d partitions lost by the one who stays", n)
	}
	a.leave()
	if n := len(b.Directory().Owners); n != 8 {
		b.until("8 owners", func() bool { return len(b.Directory().Owners) == 8 })
	}
}

// Partitions move to a new node after the delay, those of a dead one at once.
func testJoinDelay(t *testing.T, c *cluster) {
	slow := func(cfg *member.Config) { cfg.JoinDelay = 1500 * time.Millisecond }
	startedAt := time.Now()
	a := c.start("a", slow)
	a.holds(8)
	if d := time.Since(startedAt); d > time.Second+c.slack {
		t.Errorf("the first node waited %v for its partitions", d)
	}
	joinedAt := time.Now()
	b := c.start("b", slow)
	b.holds(4)
	if d := time.Since(joinedAt); d < 1400*time.Millisecond {
		t.Errorf("moved %v after the join", d)
	}
}
