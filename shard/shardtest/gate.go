package shardtest

import (
	"context"
	"sync"
	"time"

	"github.com/headrace/headrace/shard/member"
)

// Gate stands between a member and its registry: it can be shut, and it keeps a record of keep-alives.
type Gate struct {
	member.KV

	mu     sync.Mutex    // guards following
	open   chan struct{} // closed while messages pass
	mute   bool          // watches say nothing
	slow   time.Duration // answers to keep-alives take this long
	commit func(member.Txn)
	tries  int
	sentAt time.Time // when the last keep-alive that succeeded, or grant, came to the gate
}

// NewGate returns an open gate.
func NewGate(kv member.KV) *Gate {
	open := make(chan struct{})
	close(open)
	return &Gate{KV: kv, open: open}
}

// Shut makes calls wait for Open or the end of their context; what was sent before loses its answer.
func (g *Gate) Shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = make(chan struct{})
}

// Open ends a Shut.
func (g *Gate) Open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.open)
}

// Mute makes watches hang silently, as a half-dead connection does.
func (g *Gate) Mute(on bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mute = on
}

// Slow delays the answers to keep-alives.
func (g *Gate) Slow(d time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.slow = d
}

// BeforeCommit calls f before each transaction is passed on.
func (g *Gate) BeforeCommit(f func(member.Txn)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.commit = f
}

// SentAt is when the last keep-alive that was answered, or the grant, reached the gate.
func (g *Gate) SentAt() time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.sentAt
}

// Tries counts the keep-alives that came to the gate, answered or not.
func (g *Gate) Tries() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.tries
}

func (g *Gate) pass(ctx context.Context) error {
	g.mu.Lock()
	open := g.open
	g.mu.Unlock()
	select {
	case <-open:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Grant passes, both ways.
func (g *Gate) Grant(ctx context.Context, ttl time.Duration) (member.LeaseID, error) {
	at := time.Now()
	if err := g.pass(ctx); err != nil {
		return 0, err
	}
	id, err := g.KV.Grant(ctx, ttl)
	if lost := g.pass(ctx); lost != nil {
		return 0, lost
	}
	if err == nil {
		g.mu.Lock()
		g.sentAt = at
		g.mu.Unlock()
	}
	return id, err
}

// KeepAlive passes, both ways, and is noted.
func (g *Gate) KeepAlive(ctx context.Context, id member.LeaseID) error {
	at := time.Now()
	g.mu.Lock()
	g.tries++
	slow := g.slow
	g.mu.Unlock()
	if err := g.pass(ctx); err != nil {
		return err
	}
	err := g.KV.KeepAlive(ctx, id)
	if slow > 0 {
		select {
		case <-time.After(slow):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if lost := g.pass(ctx); lost != nil {
		return lost
	}
	if err == nil {
		g.mu.Lock()
		g.sentAt = at
		g.mu.Unlock()
	}
	return err
}

// Revoke passes, both ways.
func (g *Gate) Revoke(ctx context.Context, id member.LeaseID) error {
	if err := g.pass(ctx); err != nil {
		return err
	}
	err := g.KV.Revoke(ctx, id)
	if lost := g.pass(ctx); lost != nil {
		return lost
	}
	return err
}

// List passes, both ways.
func (g *Gate) List(ctx context.Context, prefix string) ([]member.Item, int64, error) {
	if err := g.pass(ctx); err != nil {
		return nil, 0, err
	}
	items, revision, err := g.KV.List(ctx, prefix)
	if lost := g.pass(ctx); lost != nil {
		return nil, 0, lost
	}
	return items, revision, err
}

// Commit passes, both ways: what was applied may lose its answer.
func (g *Gate) Commit(ctx context.Context, txn member.Txn) (bool, int64, error) {
	if err := g.pass(ctx); err != nil {
		return false, 0, err
	}
	g.mu.Lock()
	before := g.commit
	g.mu.Unlock()
	if before != nil {
		before(txn)
	}
	ok, revision, err := g.KV.Commit(ctx, txn)
	if lost := g.pass(ctx); lost != nil {
		return false, 0, lost
	}
	return ok, revision, err
}

// Watch passes each batch on, or swallows it while mute.
func (g *Gate) Watch(ctx context.Context, prefix string, after int64) <-chan []member.Change {
	out := make(chan []member.Change)
	go func() { // ends with the registry's channel, which ends with ctx
		defer close(out)
		for changes := range g.KV.Watch(ctx, prefix, after) {
			g.mu.Lock()
			mute := g.mute
			g.mu.Unlock()
			if mute || g.pass(ctx) != nil {
				continue
			}
			select {
			case out <- changes:
			case <-ctx.Done():
			}
		}
	}()
	return out
}
