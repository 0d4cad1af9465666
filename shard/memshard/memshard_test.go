package memshard_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/headrace/headrace/internal/faketime"
	"github.com/headrace/headrace/shard"
	"github.com/headrace/headrace/shard/member"
	"github.com/headrace/headrace/shard/memshard"
	"github.com/headrace/headrace/shard/shardtest"
)

// The twin keeps the same promises as etcd, in a bubble where leases run out in no time.
func TestConformance(t *testing.T) {
	shardtest.Run(t, shardtest.Subject{
		New: func(t *testing.T) func() member.KV {
			r := memshard.New()
			t.Cleanup(r.Close)
			return func() member.KV { return r.Connect() }
		},
		In: synctest.Test,
	})
}

// node runs a member and counts its events until the returned stop is called.
type node struct {
	*member.Member
	conn *memshard.Conn
	stop func()

	mu     sync.Mutex // guards following
	counts map[member.Kind]int
}

func start(t *testing.T, r *memshard.Registry, name string, log *zap.Logger) *node {
	n := &node{conn: r.Connect(), counts: map[member.Kind]int{}}
	ps := make([]shard.Partition, 8)
	for i := range ps {
		ps[i] = shard.Partition{ID: uint32(i), Zone: "z"}
	}
	m, err := member.New(member.Config{
		Node: shard.Node{ID: shard.NodeID(name), Addr: name}, Partitions: ps, JoinDelay: -1, Logger: log,
	}, n.conn)
	if err != nil {
		t.Fatal(err)
	}
	n.Member = m
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = m.Run(ctx) })
	wg.Go(func() {
		for e := range m.Events() {
			n.mu.Lock()
			n.counts[e.Kind]++
			n.mu.Unlock()
		}
	})
	n.stop = func() {
		cancel()
		wg.Wait()
	}
	t.Cleanup(n.stop)
	return n
}

func (n *node) count(k member.Kind) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.counts[k]
}

func settle(d time.Duration) {
	faketime.Pass(d) // fake time: the bubble's
	synctest.Wait()
}

// When the registry is away for all, for half an hour, nothing is lost and nothing leaks; the log stays
// quiet; and the nodes go on under their old leases.
func TestOutageForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zapcore.WarnLevel)
		r := memshard.New()
		defer r.Close()
		a := start(t, r, "a", zap.New(core))
		settle(time.Second)
		b := start(t, r, "b", zap.New(core))
		settle(time.Second)
		r.Stop()
		settle(2 * time.Minute)
		goroutines := runtime.NumGoroutine()
		settle(28 * time.Minute)
		if n := runtime.NumGoroutine(); n > goroutines+1 {
			t.Errorf("%d goroutines after 2 minutes, %d after 30", goroutines, n)
		}
		if n := logs.Len(); n > 2*3*30*6+10 { // nodes · causes · minutes · one each 10 s
			t.Errorf("%d log lines in half an hour", n)
		}
		r.Start()
		settle(10 * time.Second)
		for _, n := range []*node{a, b} {
			if n.count(member.Isolated) != 1 || n.count(member.Reconnected) != 1 || n.count(member.LeaseLost) != 0 {
				t.Errorf("isolated %d, reconnected %d, lease lost %d times", n.count(member.Isolated), n.count(member.Reconnected), n.count(member.LeaseLost))
			}
		}
		if a.count(member.Won) != 8 || a.count(member.Unassigned) != 4 || a.count(member.Lost) != 0 {
			t.Errorf("won %d, unassigned %d, lost %d", a.count(member.Won), a.count(member.Unassigned), a.count(member.Lost))
		}
		if base := a.TrustBase(); time.Since(base) > a.TTL()/2 {
			t.Errorf("trust base is %v old after the outage", time.Since(base))
		}
	})
}

// A node that ends while the registry is away does not hang.
func TestStopDuringOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := memshard.New()
		defer r.Close()
		a := start(t, r, "a", nil)
		settle(time.Second)
		r.Stop()
		settle(time.Minute)
		at := time.Now()
		a.stop()
		if d := time.Since(at); d > 2*time.Second {
			t.Errorf("Run returned after %v", d)
		}
	})
}

// The times of takeover.md: a node that is cut off is found out after its TTL, and its trust ended before.
func TestTrustEndsBeforeTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := memshard.New()
		defer r.Close()
		a := start(t, r, "a", nil)
		settle(time.Second)
		b := start(t, r, "b", nil)
		a.conn.Delay(300 * time.Millisecond) // a keep-alive is taken 300 ms after it was sent
		settle(20 * time.Second)
		a.conn.Cut()
		for b.count(member.Won) < 8 {
			settle(10 * time.Millisecond)
			if trusted := a.TrustBase().Add(a.TTL()*9/10 - 500*time.Millisecond); b.count(member.Won) > 4 && time.Now().Before(trusted) {
				t.Fatalf("another won while the first is trusted for another %v", time.Until(trusted))
			}
		}
		last := a.conn.KeepAlives()
		if base, at := a.TrustBase(), last[len(last)-1].At; !base.Before(at) {
			t.Errorf("trust counts from %v after the registry took the keep-alive", base.Sub(at))
		}
	})
}

// A node that never reads its events ends instead of growing without bound.
func TestDeafNodeEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := memshard.New()
		defer r.Close()
		m, err := member.New(member.Config{Node: shard.Node{ID: "deaf"}, Partitions: []shard.Partition{{ID: 1}}}, r.Connect())
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- m.Run(t.Context()) }()
		settle(time.Second)
		for {
			m.Reacquire(1)
			settle(time.Millisecond)
			select {
			case err := <-ended:
				if err == nil || errors.Is(err, context.Canceled) {
					t.Errorf("Run = %v", err)
				}
				return
			default:
			}
		}
	})
}
