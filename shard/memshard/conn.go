package memshard

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/headrace/headrace/shard/member"
)

// Conn is one node's connection to a registry; it is a member.KV.
type Conn struct {
	r *Registry

	mu    sync.Mutex    // guards following
	open  chan struct{} // closed while the connection is not cut
	delay time.Duration
	sent  []Sent
}

// Sent is a keep-alive that reached the registry.
type Sent struct {
	Lease member.LeaseID
	At    time.Time // when the registry took it
}

var _ member.KV = (*Conn)(nil)

// Connect returns a connection for one node.
func (r *Registry) Connect() *Conn {
	open := make(chan struct{})
	close(open)
	return &Conn{r: r, open: open}
}

// Cut cuts the node off: calls wait until Heal or until their context ends, watches hear nothing. Calls
// that have been applied may lose their answer. The leases of the node run on.
func (c *Conn) Cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if isClosed(c.open) {
		c.open = make(chan struct{})
	}
}

// Heal ends a Cut. Watches go on where they were.
func (c *Conn) Heal() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !isClosed(c.open) {
		close(c.open)
	}
}

// Delay makes every exchange take d on the way there and d on the way back.
func (c *Conn) Delay(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.delay = d
}

// KeepAlives lists the keep-alives of this connection that were applied, oldest first.
func (c *Conn) KeepAlives() []Sent {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.sent)
}

// pass waits until a message gets through in one direction.
func (c *Conn) pass(ctx context.Context) error {
	c.mu.Lock()
	delay := c.delay
	c.mu.Unlock()
	if delay > 0 {
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	for {
		c.mu.Lock()
		open := c.open
		c.mu.Unlock()
		c.r.mu.Lock()
		up := c.r.up
		c.r.mu.Unlock()
		if isClosed(open) && isClosed(up) {
			return ctx.Err()
		}
		for _, gate := range []chan struct{}{open, up} {
			select {
			case <-gate:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
}

// exchange carries a call there and its answer back.
func (c *Conn) exchange(ctx context.Context, what string, call func(r *Registry) error) error {
	if err := c.pass(ctx); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	c.r.mu.Lock()
	err := call(c.r)
	c.r.mu.Unlock()
	if lost := c.pass(ctx); lost != nil {
		return fmt.Errorf("%s: answer: %w", what, lost)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// Grant is member.KV's.
func (c *Conn) Grant(ctx context.Context, ttl time.Duration) (id member.LeaseID, err error) {
	err = c.exchange(ctx, "grant", func(r *Registry) error {
		id = r.grantLocked(ttl)
		return nil
	})
	return id, err
}

// KeepAlive is member.KV's.
func (c *Conn) KeepAlive(ctx context.Context, id member.LeaseID) error {
	return c.exchange(ctx, "keep alive", func(r *Registry) error {
		l := r.leases[id]
		if l == nil {
			return member.ErrLeaseLost
		}
		l.timer.Reset(l.ttl)
		c.mu.Lock()
		c.sent = append(c.sent, Sent{Lease: id, At: time.Now()})
		c.mu.Unlock()
		return nil
	})
}

// Revoke is member.KV's.
func (c *Conn) Revoke(ctx context.Context, id member.LeaseID) error {
	return c.exchange(ctx, "revoke", func(r *Registry) error {
		r.endLocked(id)
		return nil
	})
}

// List is member.KV's.
func (c *Conn) List(ctx context.Context, prefix string) (items []member.Item, revision int64, err error) {
	err = c.exchange(ctx, "list", func(r *Registry) error {
		for _, key := range slices.Sorted(maps.Keys(r.items)) {
			if strings.HasPrefix(key, prefix) {
				items = append(items, r.items[key])
			}
		}
		revision = r.revision
		return nil
	})
	return items, revision, err
}

// Commit is member.KV's.
func (c *Conn) Commit(ctx context.Context, txn member.Txn) (ok bool, revision int64, err error) {
	if len(txn.If) > member.MaxTxnOps || len(txn.Then) > member.MaxTxnOps {
		return false, 0, fmt.Errorf("commit: more than %d conditions or operations", member.MaxTxnOps)
	}
	err = c.exchange(ctx, "commit", func(r *Registry) error {
		revision = r.revision
		for _, cond := range txn.If {
			if !r.holdsLocked(cond) {
				return nil
			}
		}
		for _, op := range txn.Then {
			if op.Lease != 0 && r.leases[op.Lease] == nil {
				return member.ErrLeaseLost
			}
		}
		r.writeLocked(txn.Then)
		ok, revision = true, r.revision
		return nil
	})
	return ok && err == nil, revision, err
}

// Watch is member.KV's.
func (c *Conn) Watch(ctx context.Context, prefix string, after int64) <-chan []member.Change {
	out := make(chan []member.Change)
	go func() { // ends with ctx, or when the registry forgot what comes next
		defer close(out)
		for {
			changes, at, news, ok := c.r.after(prefix, after)
			if !ok {
				return
			}
			if news != nil {
				select {
				case <-news:
					continue
				case <-ctx.Done():
					return
				}
			}
			after = at
			if len(changes) == 0 {
				continue
			}
			if c.pass(ctx) != nil {
				return
			}
			select {
			case out <- changes:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}
