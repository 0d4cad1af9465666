package placement

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/headrace/headrace/shard"
	"github.com/headrace/headrace/shard/member"
)

// How often what is done.
const (
	writeEvery = 100 * time.Millisecond // automatic writes of one node
	retryAfter = time.Second            // a write that failed
	resync     = 5 * time.Minute        // everything is listed again
	callMax    = 5 * time.Second        // one exchange with the registry
	batchMax   = 32                     // new tenants in one write
	logEvery   = 10 * time.Second       // the same complaint
)

// list is what the watch sends to the loop: all items, or changes to them.
type list struct {
	all      bool
	changes  []member.Change
	revision int64
	newest   int64 // of what was known before the list was asked for: an older list is of a registry that went back
}

// loop is what Run's goroutine owns.
type loop struct {
	*Registry
	batch    int                // new tenants in the next write: halved when one of them was there, doubled when none was
	busy     bool               // a write is under way
	notUntil time.Time          // of the next write
	done     chan write         // from it
	placed   map[uint32]float64 // tenants on each partition, each by its share
	listed   int64              // revision of the newest list
	logged   time.Time
}

// write is one automatic transaction and its answer.
type write struct {
	tenants  []string
	txn      member.Txn
	ok       bool
	revision int64
	err      error
}

// Run follows the registry, and writes what is wanted, until ctx ends; it returns its cause. Call it once.
func (r *Registry) Run(ctx context.Context) error {
	l := &loop{Registry: r, batch: batchMax, done: make(chan write, 1), placed: map[uint32]float64{}}
	lists := make(chan list)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { r.watch(ctx, lists) })
	wake := time.NewTimer(time.Hour)
	defer wake.Stop()
	for {
		wake.Reset(l.start(ctx, &wg))
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case li := <-lists:
			if li.all {
				li.changes = l.newer(li)
			}
			l.take(li.changes, li.all)
		case in := <-r.injected:
			l.take(in.changes, false)
			close(in.applied)
		case w := <-l.done:
			l.wrote(w)
		case <-r.poke:
		case <-wake.C:
		}
	}
}

// take applies news.
func (l *loop) take(changes []member.Change, all bool) {
	old := l.snapshot.Load()
	base := old
	if all {
		base = &Snapshot{}
	}
	next, touched, bad := base.with(l.keys, changes)
	next.loaded = old.loaded || all
	if bad != nil {
		l.warn("a value in the registry can't be read and counts as missing", bad)
	}
	for _, tenant := range touched {
		if !all {
			l.place(old.get(tenant), -1)
		}
		l.place(next.get(tenant), 1)
	}
	if all {
		clear(l.placed)
		for _, m := range next.parts {
			for _, e := range m {
				l.place(e, 1)
			}
		}
	}
	l.snapshot.Store(next)
	l.mu.Lock()
	close(l.changed)
	l.changed = make(chan struct{})
	l.mu.Unlock()
}

// newer adds to a list what this node has written since it was read. A registry whose revision has gone back
// was restored: then the list is all there is.
func (l *loop) newer(li list) []member.Change {
	restored := li.revision < max(l.listed, li.newest)
	l.listed = li.revision
	if restored {
		return li.changes
	}
	for _, m := range l.snapshot.Load().parts {
		for tenant, e := range m {
			if e.revision > li.revision {
				li.changes = append(li.changes, member.Change{Item: member.Item{Key: l.keys.tenant(tenant), Value: e.p.Encode(), Revision: e.revision}})
			}
		}
	}
	return li.changes
}

// place counts a tenant on its partitions.
func (l *loop) place(e *entry, n float64) {
	if e == nil {
		return
	}
	for _, m := range e.p.Members {
		l.placed[m] += n / float64(len(e.p.Members))
	}
}

// start begins the next write if it is time, and returns how long to sleep.
func (l *loop) start(ctx context.Context, wg *sync.WaitGroup) time.Duration {
	if l.busy || !l.snapshot.Load().loaded {
		return time.Hour
	}
	if wait := time.Until(l.notUntil); wait > 0 {
		return wait
	}
	w := l.next()
	if len(w.tenants) == 0 {
		return time.Hour
	}
	l.busy, l.notUntil = true, time.Now().Add(writeEvery)
	kv := l.cfg.KV
	wg.Go(func() {
		call, cancel := context.WithTimeout(ctx, callMax)
		defer cancel()
		w.ok, w.revision, w.err = kv.Commit(call, w.txn)
		l.done <- w
	})
	return time.Hour
}

// salts are what a new tenant's shard is chosen from.
var salts = []uint32{0, 1, 2, 3}

// draw is a new tenant's placement. A salt other than the first has to be worth it, a tenth of the mean or a
// whole tenant: it makes retries look in more places for a while.
func (l *loop) draw(tenant string, catalogue []shard.Partition, now time.Time) shard.Placement {
	key := shard.Key{Secret: l.cfg.Secret, Tenant: tenant}
	plain := shard.Place(key, salts[:1], catalogue, l.cfg.ShardSize, nil, now)
	best := shard.Place(key, salts, catalogue, l.cfg.ShardSize, l.placed, now)
	sum := 0.0
	for _, n := range l.placed {
		sum += n
	}
	if l.hottest(plain)-l.hottest(best) < max(1, sum/float64(max(1, len(l.placed)))/10) {
		return plain
	}
	return best
}

func (l *loop) hottest(p shard.Placement) (most float64) {
	for _, m := range p.Members {
		most = max(most, l.placed[m])
	}
	return most
}

// next makes the next write out of the queue: some new tenants, or one whose member is closed.
func (l *loop) next() (w write) {
	snapshot, catalogue, now := l.snapshot.Load(), l.cfg.Catalogue(), l.cfg.Now()
	for len(w.tenants) < l.batch {
		l.mu.Lock()
		if len(l.queue) == 0 {
			l.mu.Unlock()
			return w
		}
		tenant := l.queue[0]
		l.mu.Unlock()

		e := snapshot.get(tenant)
		var p shard.Placement
		var moved bool
		switch {
		case e != nil:
			p, moved = shard.Fit(l.cfg.Secret, e.p, catalogue, now)
		case snapshot.Len()+len(w.tenants) < maxTenants:
			p = l.draw(tenant, catalogue, now)
		}
		if moved && len(w.tenants) > 0 {
			return w // it has a write of its own
		}
		l.mu.Lock()
		l.queue = l.queue[1:]
		switch {
		case e == nil && len(p.Members) > 0:
			w.tenants = append(w.tenants, tenant)
			w.txn.If = append(w.txn.If, member.Cond{Key: l.keys.tenant(tenant)})
			w.txn.Then = append(w.txn.Then, member.Op{Key: l.keys.tenant(tenant), Value: p.Encode()})
		case moved:
			w.tenants = append(w.tenants, tenant)
			w.txn = l.keys.change(snapshot, e, p, "", now)
		default:
			delete(l.wanted, tenant)
		}
		l.mu.Unlock()
		if moved {
			return w
		}
	}
	return w
}

// wrote takes the answer of a write. Who lost a race waits for the watch to bring what won.
func (l *loop) wrote(w write) {
	l.busy = false
	switch {
	case w.err != nil:
		l.warn("a placement could not be stored; computed ones are used meanwhile", w.err)
		l.notUntil = time.Now().Add(retryAfter)
	case w.ok:
		l.batch = min(2*l.batch, batchMax)
		l.take(applied(w.txn, w.revision), false)
	default:
		l.batch = max(l.batch/2, 1)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.err == nil && w.ok {
		for _, tenant := range w.tenants {
			delete(l.wanted, tenant)
		}
	} else if w.err == nil && len(w.tenants) == 1 {
		l.queue = append(l.queue, w.tenants...) // one that the watch does not bring must not keep the others waiting
	} else {
		l.queue = append(w.tenants, l.queue...)
	}
}

// applied is what a transaction changed.
func applied(txn member.Txn, revision int64) []member.Change {
	var changes []member.Change
	for _, op := range txn.Then {
		changes = append(changes, member.Change{Item: member.Item{Key: op.Key, Value: op.Value, Revision: revision}})
	}
	return changes
}

func (l *loop) warn(msg string, err error) {
	if now := time.Now(); now.Sub(l.logged) >= logEvery {
		l.logged = now
		l.log.Warn(msg, zap.Error(err))
	}
}

// watch lists everything, then follows the changes, and starts over when the watch ends or resync has
// passed. It ends with ctx.
func (r *Registry) watch(ctx context.Context, out chan<- list) {
	send := func(li list) {
		select {
		case out <- li:
		case <-ctx.Done():
		}
	}
	pause := func(d time.Duration) {
		select {
		case <-time.After(d/2 + rand.N(d/2)):
		case <-ctx.Done():
		}
	}
	for wait := 50 * time.Millisecond; ctx.Err() == nil; {
		call, cancel := context.WithTimeout(ctx, callMax)
		newest := r.snapshot.Load().newest()
		items, revision, err := r.cfg.KV.List(call, r.cfg.Prefix)
		cancel()
		if err != nil {
			if ctx.Err() == nil {
				r.log.Warn("placements can't be read", zap.Error(err))
			}
			pause(wait)
			wait = min(2*wait, callMax)
			continue
		}
		wait = 50 * time.Millisecond
		changes := make([]member.Change, len(items))
		for i, it := range items {
			changes[i] = member.Change{Item: it}
		}
		send(list{all: true, changes: changes, revision: revision, newest: newest})
		wctx, cancel := context.WithTimeout(ctx, resync)
		began := time.Now()
		for changes := range r.cfg.KV.Watch(wctx, r.cfg.Prefix, revision) {
			send(list{changes: changes})
		}
		early := wctx.Err() == nil && time.Since(began) < 50*time.Millisecond
		cancel()
		if early { // a watch that ends at once must not become a busy loop
			pause(wait)
		}
	}
}
