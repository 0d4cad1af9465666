package truth

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/headrace/headrace/shard/member"
	"github.com/headrace/headrace/store"
)

const (
	copyWithin = 200 * time.Millisecond // of a change: several share a write
	copyMax    = 30 * time.Second       // one write of copies
	copyRetry  = time.Second
	copyBatch  = 5_000           // keys in one write
	recallAsk  = 2 * time.Second // databases whether they still know: one that was restored does not
)

// copyAll copies while this node leads, until ctx ends.
func (g *Gate) copyAll(ctx context.Context, leads func() bool) {
	var wg sync.WaitGroup
	defer wg.Wait()
	var heralds []*herald
	for _, db := range g.dbs {
		h := &herald{db: db, log: g.log, news: make(chan uint64, 1)}
		heralds = append(heralds, h)
		wg.Go(func() { h.run(ctx) })
	}
	for ctx.Err() == nil {
		if leads() && g.held.Load() == nil {
			err := g.follow(ctx, leads, heralds)
			if err != nil && ctx.Err() == nil {
				g.log.Warn("copy the configuration to the databases: trying again", zap.Error(err))
			}
		}
		select {
		case <-time.After(copyRetry):
		case <-ctx.Done():
		}
	}
}

// follower is one run of the copying.
type follower struct {
	g       *Gate
	at      versions
	copied  uint64
	pending map[string]store.Configured
	heralds []*herald
}

// follow brings the copies up to the registry, and keeps them there, as long as the node leads, the registry is
// agreed on and nothing fails.
func (g *Gate) follow(ctx context.Context, leads func() bool, heralds []*herald) error {
	ctx, cancel := context.WithCancel(ctx) // ends the watch
	defer cancel()
	f := &follower{g: g, pending: map[string]store.Configured{}, heralds: heralds}
	revision, err := f.begin(ctx)
	if err != nil {
		return err
	}
	watch := g.Watch(ctx, Root, revision)
	tick := time.NewTicker(copyWithin)
	defer tick.Stop()
	recall := time.NewTicker(recallAsk)
	defer recall.Stop()
	for ctx.Err() == nil {
		select {
		case changes, ok := <-watch:
			if !ok {
				return nil // once more from the start
			}
			if err := f.take(changes); err != nil {
				return err
			}
		case <-tick.C:
			if !leads() || g.held.Load() != nil {
				return nil
			}
			if f.at.version() == f.copied {
				continue
			}
			if err := f.flush(ctx); err != nil {
				return err
			}
		case <-recall.C:
			if f.forgotten(ctx) {
				return nil
			}
		case <-ctx.Done():
		}
	}
	return nil
}

// forgotten tells the version again to databases that do not know it any more, and reports whether the copies are not
// what this follower has written.
func (f *follower) forgotten(ctx context.Context) bool {
	for i, a := range f.g.ask(ctx, false) {
		switch {
		case a.err != nil:
		case i == 0 && a.config.Copied != f.copied:
			return true
		case a.config.Seen < f.at.version():
			f.heralds[i].tell(f.at.version())
		}
	}
	return false
}

// begin compares the registry with the copies and copies the difference.
func (f *follower) begin(ctx context.Context) (revision int64, err error) {
	read, cancel := context.WithTimeout(ctx, copyMax)
	defer cancel()
	items, revision, err := f.g.kv.List(read, Root)
	if err != nil {
		return 0, err
	}
	if f.at, err = readVersion(items); err != nil {
		return 0, err
	}
	f.tell()
	have, err := f.g.dbs[0].Keeper.Configuration(read, true)
	if err != nil {
		return 0, fmt.Errorf("read the copies in database %s: %w", f.g.dbs[0].Name, err)
	}
	if f.at.version() < have.Seen {
		f.g.doubtIt()
		return 0, errors.New("the registry is behind the copies")
	}
	f.copied = have.Copied
	for key, it := range difference(items, have.Copies, f.at.version()) {
		f.pending[key] = it
	}
	if len(f.pending) == 0 && f.copied == f.at.version() {
		return revision, nil
	}
	return revision, f.flush(ctx)
}

// difference returns what makes the copies those of the registry.
func difference(items []member.Item, copies []store.Configured, version uint64) map[string]store.Configured {
	out, had := map[string]store.Configured{}, map[string][]byte{}
	for _, it := range copies {
		had[it.Key] = it.Value
		out[it.Key] = store.Configured{Key: it.Key, Deleted: true}
	}
	for _, it := range items {
		if it.Lease != 0 || !isConfig(it.Key) {
			continue
		}
		if old, there := had[it.Key]; there && bytes.Equal(old, it.Value) {
			delete(out, it.Key)
		} else {
			out[it.Key] = store.Configured{Key: it.Key, Value: it.Value, Version: version}
		}
	}
	return out
}

// take takes in one transaction of the registry.
func (f *follower) take(changes []member.Change) error {
	var items []member.Item
	for _, c := range changes {
		if !c.Deleted {
			items = append(items, c.Item)
		}
	}
	v, err := readVersion(items)
	if err != nil {
		return err
	}
	if v.writes != 0 {
		f.at.writes = v.writes
	}
	if v.baseRev != 0 {
		f.at.base, f.at.baseRev = v.base, v.baseRev
	}
	for _, c := range changes {
		if c.Lease == 0 && isConfig(c.Key) {
			f.pending[c.Key] = store.Configured{Key: c.Key, Value: c.Value, Version: f.at.version(), Deleted: c.Deleted}
		}
	}
	return nil
}

// flush writes what is pending. Copies that take several writes are of the new version only after the last one.
func (f *follower) flush(ctx context.Context) error {
	f.tell()
	keys := slices.Sorted(maps.Keys(f.pending))
	for {
		n := min(len(keys), copyBatch)
		to := f.copied
		if n == len(keys) {
			to = f.at.version()
		}
		changes := make([]store.Configured, 0, n)
		for _, k := range keys[:n] {
			changes = append(changes, f.pending[k])
		}
		write, cancel := context.WithTimeout(ctx, copyMax)
		err := f.g.dbs[0].Keeper.CopyConfiguration(write, f.copied, to, changes)
		cancel()
		if err != nil {
			return fmt.Errorf("database %s: %w", f.g.dbs[0].Name, err)
		}
		if keys = keys[n:]; len(keys) == 0 {
			f.copied = to
			clear(f.pending)
			return nil
		}
	}
}

// tell has all databases told of the version.
func (f *follower) tell() {
	for _, h := range f.heralds {
		h.tell(f.at.version())
	}
}

// herald tells one database the version, so that one that hangs holds up nobody.
type herald struct {
	db   Database
	log  *zap.Logger
	news chan uint64 // capacity 1
}

func (h *herald) tell(version uint64) {
	select {
	case <-h.news: // an older one that was not told yet
	default:
	}
	h.news <- version // the follower is the only one that sends
}

func (h *herald) run(ctx context.Context) {
	for {
		select {
		case v := <-h.news:
			for ctx.Err() == nil {
				call, cancel := context.WithTimeout(ctx, askMax)
				err := h.db.Keeper.SawConfiguration(call, v)
				cancel()
				if err == nil {
					break
				}
				h.log.Debug("tell a database the configuration's version", zap.String("database", h.db.Name), zap.Error(err))
				select {
				case v = <-h.news:
				case <-time.After(copyRetry):
				case <-ctx.Done():
				}
			}
		case <-ctx.Done():
			return
		}
	}
}
