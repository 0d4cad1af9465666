package shardtest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/headrace/headrace/shard"
	"github.com/headrace/headrace/shard/member"
)

// Subject is a kind of registry to be tested.
type Subject struct {
	// New makes an empty registry that ends with the test, and returns how to connect a node to it.
	New func(t *testing.T) (connect func() member.KV)
	// In runs a case in the subject's kind of time; nil: real time.
	In func(t *testing.T, f func(t *testing.T))
	// TTL of the nodes' leases; 0: 1 s.
	TTL time.Duration
	// Slack is added to upper bounds of times: what a busy machine may cost in real time.
	Slack time.Duration
}

// patience bounds every wait of a case. It is no measure of anything.
const patience = 30 * time.Second

// cluster is one registry with its nodes.
type cluster struct {
	t       *testing.T
	connect func() member.KV
	admin   member.KV
	ttl     time.Duration
	slack   time.Duration
	ids     int
}

// node is one running member. It hands over at once what is assigned elsewhere.
type node struct {
	*member.Member
	t     *testing.T
	id    shard.NodeID
	name  string
	gate  *Gate
	stop  context.CancelFunc
	ended chan error

	mu     sync.Mutex // guards following
	news   chan struct{}
	held   map[uint32]bool
	events []member.Event
	at     []time.Time // of events
}

func catalogue(n int) []shard.Partition {
	ps := make([]shard.Partition, n)
	for i := range ps {
		ps[i] = shard.Partition{ID: uint32(i), Zone: "z"}
	}
	return ps
}

// start starts a node with 8 partitions; change may alter its config.
func (c *cluster) start(name string, change ...func(*member.Config)) *node {
	c.t.Helper()
	c.ids++
	id := shard.NodeID(fmt.Sprintf("%s-%d", name, c.ids))
	cfg := member.Config{
		Node:       shard.Node{ID: id, Name: name, Addr: name + ":7070", StartedAt: time.Now()},
		TTL:        c.ttl,
		Partitions: catalogue(8),
		JoinDelay:  -1,
		Logger:     zaptest.NewLogger(c.t, zaptest.Level(zap.WarnLevel)),
	}
	for _, f := range change {
		f(&cfg)
	}
	n := &node{t: c.t, id: id, name: name, gate: NewGate(c.connect()), ended: make(chan error, 1),
		news: make(chan struct{}), held: map[uint32]bool{}}
	m, err := member.New(cfg, n.gate)
	if err != nil {
		c.t.Fatal(err)
	}
	n.Member = m
	ctx, stop := context.WithCancel(c.t.Context())
	n.stop = stop
	var wg sync.WaitGroup
	wg.Go(func() { n.ended <- m.Run(ctx) })
	wg.Go(func() { n.collect(ctx) })
	c.t.Cleanup(func() {
		stop()
		wg.Wait()
	})
	return n
}

// collect follows the events, checks their contract and hands partitions over.
func (n *node) collect(ctx context.Context) {
	for e := range n.Events() {
		n.mu.Lock()
		switch e.Kind {
		case member.Won:
			if n.held[e.Partition] != e.Again {
				n.t.Errorf("%s: %v, held before: %v", n.id, e, n.held[e.Partition])
			}
			n.held[e.Partition] = true
		case member.Lost:
			if !n.held[e.Partition] {
				n.t.Errorf("%s: %v, which it did not hold", n.id, e)
			}
			delete(n.held, e.Partition)
		case member.LeaseLost:
			if len(n.held) > 0 {
				n.t.Errorf("%s: lease lost, and %d partitions not", n.id, len(n.held))
			}
		}
		n.events, n.at = append(n.events, e), append(n.at, time.Now())
		close(n.news)
		n.news = make(chan struct{})
		handOver := e.Kind == member.Unassigned && n.held[e.Partition]
		n.mu.Unlock()
		if handOver {
			_ = n.Release(ctx, e.Partition) // a race with a lost lease is fine: then it is lost as well
		}
	}
}

// until waits for a condition on the node's state, looked at with each event.
func (n *node) until(what string, ok func() bool) {
	n.t.Helper()
	timeout := time.After(patience)
	for {
		n.mu.Lock()
		done, news := ok(), n.news
		n.mu.Unlock()
		if done {
			return
		}
		select {
		case <-news:
		case <-timeout:
			n.mu.Lock()
			defer n.mu.Unlock()
			n.t.Fatalf("%s: no %s; events: %v", n.id, what, n.events)
		}
	}
}

func (n *node) holds(count int) {
	n.t.Helper()
	n.until(fmt.Sprintf("%d partitions", count), func() bool { return len(n.held) == count })
}

// event waits for an event of a kind among those after the first skip, and returns its index and time.
func (n *node) event(kind member.Kind, skip int) (index int, at time.Time) {
	n.t.Helper()
	n.until(kind.String(), func() bool {
		for i := skip; i < len(n.events); i++ {
			if n.events[i].Kind == kind {
				index, at = i, n.at[i]
				return true
			}
		}
		return false
	})
	return index, at
}

func (n *node) seen() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.events)
}

func (n *node) count(kind member.Kind) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	c := 0
	for _, e := range n.events {
		if e.Kind == kind {
			c++
		}
	}
	return c
}

// kill ends the node as kill -9 does: nothing it still sends arrives. It returns when it has ended.
func (n *node) kill() {
	n.gate.Shut()
	n.stop()
	<-n.ended
}

// leave ends the node cleanly.
func (n *node) leave() {
	n.t.Helper()
	n.stop()
	select {
	case <-n.ended:
	case <-time.After(patience):
		n.t.Fatalf("%s: Run did not return", n.id)
	}
}

// leases lists the leases that a key of the cluster hangs on.
func (c *cluster) leases() []member.LeaseID {
	c.t.Helper()
	items, _, err := c.admin.List(c.t.Context(), member.DefaultPrefix)
	if err != nil {
		c.t.Fatal(err)
	}
	var ids []member.LeaseID
	for _, it := range items {
		if it.Lease != 0 && !slices.Contains(ids, it.Lease) {
			ids = append(ids, it.Lease)
		}
	}
	return ids
}

// lease is the lease of a node's member key; 0 if it is not there.
func (c *cluster) lease(n *node) member.LeaseID {
	c.t.Helper()
	items, _, err := c.admin.List(c.t.Context(), member.DefaultPrefix+"members/"+string(n.id))
	if err != nil {
		c.t.Fatal(err)
	}
	if len(items) == 0 {
		return 0
	}
	return items[0].Lease
}
