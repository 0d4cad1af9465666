package shardtest

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/headrace/headrace/shard"
	"github.com/headrace/headrace/shard/member"
)

// The first node becomes leader, writes the catalogue and the assignment, and wins everything.
func testOneNodeOwnsAll(t *testing.T, c *cluster) {
	a := c.start("a")
	a.holds(8)
	a.until("directory with 8 owners", func() bool { return len(a.Directory().Owners) == 8 })
	d := a.Directory()
	if n, ok := d.Owner(3); !ok || n.Addr != "a:7070" || d.Leader != a.id || len(d.Partitions) != 8 || len(d.Nodes) != 1 {
		t.Errorf("directory %+v", d)
	}
	for p := range uint32(8) {
		if ok, err := a.Holds(t.Context(), p); !ok || err != nil {
			t.Errorf("Holds(%d) = %v, %v", p, ok, err)
		}
	}
	if ok, err := a.Holds(t.Context(), 8); ok || err != nil {
		t.Errorf("Holds of a partition that is not there = %v, %v", ok, err)
	}
	if n := len(c.leases()); n != 1 {
		t.Errorf("%d leases for one node", n)
	}
}

// A node that ends gives everything back: no key of its is left, and the next owns all without waiting.
func testCleanStop(t *testing.T, c *cluster) {
	long := func(cfg *member.Config) { cfg.TTL = 30 * time.Second }
	a := c.start("a", long)
	a.holds(8)
	a.leave()
	if !a.TrustBase().IsZero() {
		t.Errorf("trust after the end: %v", a.TrustBase())
	}
	if left := c.leases(); len(left) != 0 {
		t.Errorf("leases left: %v", left)
	}
	startedAt := time.Now()
	c.start("b", long).holds(8)
	if d := time.Since(startedAt); d > 10*time.Second {
		t.Errorf("the next node waited %v", d)
	}
}

// Who holds the data directory revokes what a killed predecessor left and waits for no TTL.
func testSoleRestart(t *testing.T, c *cluster) {
	long := func(cfg *member.Config) { cfg.TTL, cfg.Sole = 30*time.Second, true }
	a := c.start("a", long)
	a.holds(8)
	a.kill()
	startedAt := time.Now()
	b := c.start("b", long)
	b.holds(8)
	if d := time.Since(startedAt); d > 10*time.Second {
		t.Errorf("the restart waited %v", d)
	}
	if n := len(c.leases()); n != 1 {
		t.Errorf("%d leases, one of them of the dead", n)
	}
}

// A lease that the registry forgot costs all partitions at once, and the node comes back by itself
// within two TTL under a new lease.
func testLostLease(t *testing.T, c *cluster) {
	a := c.start("a")
	a.holds(8)
	before, seen := c.lease(a), a.seen()
	if err := c.admin.Revoke(t.Context(), before); err != nil {
		t.Fatal(err)
	}
	lostAt := time.Now()
	i, _ := a.event(member.LeaseLost, seen)
	a.event(member.Joined, i)
	a.holds(8)
	if d := time.Since(lostAt); d > 2*c.ttl+c.slack {
		t.Errorf("back after %v", d)
	}
	if n := a.count(member.Lost); n != 8 {
		t.Errorf("%d partitions told as lost", n)
	}
	if after := c.lease(a); after == before || after == 0 {
		t.Errorf("lease %v, then %v", before, after)
	}
}

// deaf makes a node that is told nothing by its watch.
func deaf(cfg *member.Config) { cfg.Resync = 10 * time.Minute }

// The keep-alive finds out by itself that the lease is gone.
func testLostLeaseAndSilentWatch(t *testing.T, c *cluster) {
	a := c.start("a", deaf)
	a.holds(8)
	a.gate.Mute(true)
	seen := a.seen()
	if err := c.admin.Revoke(t.Context(), c.lease(a)); err != nil {
		t.Fatal(err)
	}
	lostAt := time.Now()
	_, at := a.event(member.LeaseLost, seen)
	if d := at.Sub(lostAt); d > c.ttl+c.slack {
		t.Errorf("told after %v, the TTL is %v", d, c.ttl)
	}
	a.holds(0)
	a.gate.Mute(false)
	a.holds(8)
}

// A key that another takes in the last moment stays his, and does not keep the node from the others.
func testLostRace(t *testing.T, c *cluster) {
	key := member.DefaultPrefix + "owners/3"
	write := func(op member.Op) {
		if _, _, err := c.admin.Commit(t.Context(), member.Txn{Then: []member.Op{op}}); err != nil {
			t.Error(err)
		}
	}
	var once sync.Once
	a := c.start("a", func(cfg *member.Config) { cfg.Partitions = nil })
	a.event(member.Joined, 0)
	a.gate.BeforeCommit(func(txn member.Txn) {
		if slices.ContainsFunc(txn.Then, func(op member.Op) bool { return op.Key == key }) {
			once.Do(func() { write(put(key, "other", 0)) })
		}
	})
	if err := a.SetPartitions(t.Context(), catalogue(8)...); err != nil {
		t.Fatal(err)
	}
	a.holds(7)
	a.until("the other's key", func() bool { return a.Directory().Owners[3] == "other" })
	if ok, err := a.Holds(t.Context(), 3); ok || err != nil {
		t.Errorf("Holds = %v, %v", ok, err)
	}
	write(member.Op{Key: key, Delete: true})
	a.holds(8)
}

// Trust counts from the sending of a keep-alive, however late its answer, and a keep-alive that gets no
// answer earns none.
func testTrustBase(t *testing.T, c *cluster) {
	a := c.start("a")
	a.holds(8)
	a.gate.Slow(200 * time.Millisecond)
	last := a.TrustBase()
	if last.IsZero() {
		t.Fatal("no trust while joined")
	}
	for renewed := 0; renewed < 3; {
		waitUntil(t, "a newer trust base", func() bool { return a.TrustBase().After(last) })
		base, sentAt := a.TrustBase(), a.gate.SentAt()
		if base.After(sentAt) {
			t.Fatalf("trust base is %v after the sending", base.Sub(sentAt))
		}
		if d := sentAt.Sub(base); d > c.slack {
			t.Errorf("trust base is %v before the sending", d)
		}
		last = base
		renewed++
	}
	a.gate.Slow(0)
	a.gate.Shut()
	tries := a.gate.Tries()
	waitUntil(t, "3 vain keep-alives", func() bool { return a.gate.Tries() >= tries+3 })
	if base, sentAt := a.TrustBase(), a.gate.SentAt(); base.After(sentAt) {
		t.Errorf("unanswered keep-alives moved the trust base %v", base.Sub(sentAt))
	}
	a.gate.Open()
}

// waitUntil polls what no event tells of.
func waitUntil(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(patience)
	for !ok() {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("no %s", what)
		}
	}
}

// Cut off for less than a TTL costs nothing; for longer it is told after one TTL; and what the registry
// did meanwhile is found out at the end.
func testIsolated(t *testing.T, c *cluster) {
	a := c.start("a")
	a.holds(8)
	seen := a.seen()
	a.gate.Shut()
	cutAt := a.gate.SentAt()
	i, at := a.event(member.Isolated, seen)
	if d := at.Sub(cutAt); d > c.ttl+c.slack || d < c.ttl {
		t.Errorf("told %v after the last keep-alive, the TTL is %v", d, c.ttl)
	}
	if n := a.count(member.Lost); n != 0 {
		t.Errorf("%d partitions lost by mere silence", n)
	}
	waitUntil(t, "end of the lease", func() bool { return len(c.leases()) == 0 })
	a.gate.Open()
	i, _ = a.event(member.LeaseLost, i)
	a.event(member.Joined, i)
	a.holds(8)
	if n := a.count(member.Lost); n != 8 {
		t.Errorf("%d partitions told as lost", n)
	}
}

// A node whose loop is dead sends no keep-alives, so another may take over.
func testUnhealthy(t *testing.T, c *cluster) {
	var sick flag
	a := c.start("a", func(cfg *member.Config) { cfg.Healthy = sick.err })
	a.holds(8)
	seen := a.seen()
	sick.set(errors.New("the loop has not moved"))
	a.event(member.LeaseLost, seen)
	sick.set(nil)
	a.holds(8)
}

// A fenced owner that still holds its key is told to acquire again; one that only believes so is not.
func testReacquire(t *testing.T, c *cluster) {
	a := c.start("a", deaf)
	a.holds(8)
	a.gate.Mute(true)
	if _, _, err := c.admin.Commit(t.Context(), member.Txn{Then: []member.Op{{Key: member.DefaultPrefix + "owners/2", Delete: true}}}); err != nil {
		t.Fatal(err)
	}
	seen := a.seen()
	a.Reacquire(99)
	a.Reacquire(2)
	a.Reacquire(5)
	i, _ := a.event(member.Won, seen)
	a.mu.Lock()
	e := a.events[i]
	a.mu.Unlock()
	if e.Partition != 5 || !e.Again {
		t.Errorf("got %v", e)
	}
}

// A key given back is lost, then won again if it is still wanted here; twice is an error.
func testRelease(t *testing.T, c *cluster) {
	a := c.start("a")
	a.holds(8)
	seen := a.seen()
	if err := a.Release(t.Context(), 5); err != nil {
		t.Fatal(err)
	}
	i, _ := a.event(member.Lost, seen)
	a.mu.Lock()
	e := a.events[i]
	a.mu.Unlock()
	if e.Partition != 5 || e.Reason != member.Released {
		t.Errorf("got %v", e)
	}
	a.event(member.Won, i)
	if err := a.Release(t.Context(), 99); !errors.Is(err, member.ErrNotHeld) {
		t.Errorf("release of what is not held = %v", err)
	}
}

// An owner key that somebody deleted is lost and won again; a deleted member key means joining again; a
// deleted leader key means a new election.
func testDeletedKeys(t *testing.T, c *cluster) {
	a := c.start("a")
	a.holds(8)
	del := func(key string) int {
		seen := a.seen()
		if _, _, err := c.admin.Commit(t.Context(), member.Txn{Then: []member.Op{{Key: member.DefaultPrefix + key, Delete: true}}}); err != nil {
			t.Fatal(err)
		}
		return seen
	}
	i, _ := a.event(member.Lost, del("owners/2"))
	a.event(member.Won, i)
	i, _ = a.event(member.LeaseLost, del("members/"+string(a.id)))
	a.event(member.Joined, i)
	joinedAt := time.Now()
	a.holds(8)
	if d := time.Since(joinedAt); d > c.ttl/2+c.slack {
		t.Errorf("waited %v for its own old lease", d)
	}
	if n := len(c.leases()); n != 1 {
		t.Errorf("%d leases after joining again", n)
	}
	if n := a.count(member.Lost); n != 9 {
		t.Errorf("%d partitions lost, want one and then all", n)
	}
	del("leader")
	a.until("leader", func() bool { return a.Directory().Leader == a.id })
}

// New partitions find an owner, old ones stay where they are.
func testMorePartitions(t *testing.T, c *cluster) {
	a := c.start("a")
	a.holds(8)
	if err := a.SetPartitions(t.Context(), shard.Partition{ID: 8, Zone: "y"}, shard.Partition{ID: 3, Zone: "z", State: shard.Draining}); err != nil {
		t.Fatal(err)
	}
	a.holds(9)
	a.until("directory of 9", func() bool { return len(a.Directory().Owners) == 9 })
	if n := a.count(member.Lost); n != 0 {
		t.Errorf("%d partitions lost", n)
	}
	if ids := slices.Sorted(maps.Keys(a.Directory().Owners)); !slices.Equal(ids, shard.IDs(a.Directory().Partitions)) {
		t.Errorf("owned %v", ids)
	}
	if p := a.Directory().Partitions[3]; p.Open() {
		t.Errorf("partition 3 is %+v", p)
	}
}

// A watch that died without a word is found out by listing.
func testSilentWatch(t *testing.T, c *cluster) {
	quick := func(cfg *member.Config) { cfg.Resync = 300 * time.Millisecond }
	a := c.start("a", quick)
	a.holds(8)
	a.gate.Mute(true)
	if err := a.SetPartitions(t.Context(), catalogue(12)...); err != nil {
		t.Fatal(err)
	}
	a.holds(12)
}
