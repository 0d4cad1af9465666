package truth

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/headrace/headrace/shard/member"
	"github.com/headrace/headrace/store"
)

// How often what is done.
const (
	compareEvery = time.Second
	askEvery     = 30 * time.Second // the databases, when there is no other reason
	askMax       = time.Second      // one database
	callMax      = 5 * time.Second  // one exchange with the registry
)

// Run compares, and while leads says so copies, until ctx ends. Call it once.
func (g *Gate) Run(ctx context.Context, leads func() bool) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { g.copyAll(ctx, leads) })
	tick := time.NewTicker(compareEvery)
	defer tick.Stop()
	asked := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		ask := time.Since(asked) >= askEvery
		if ask {
			asked = time.Now()
		}
		call, cancel := context.WithTimeout(ctx, callMax)
		err := g.compare(call, ask)
		cancel()
		if err != nil && ctx.Err() == nil {
			g.log.Debug("compare the configuration", zap.Error(err))
		}
	}
}

// Compare compares now, with all databases that answer. Its error is the registry's.
func (g *Gate) Compare(ctx context.Context) error { return g.compare(ctx, true) }

// compare asks the databases if it is told to, or if there is doubt; then the registry.
func (g *Gate) compare(ctx context.Context, ask bool) error {
	select {
	case g.comparing <- struct{}{}:
		defer func() { <-g.comparing }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	g.mu.Lock()
	ask = ask || g.doubt || g.held.Load() != nil
	g.doubt = false
	g.mu.Unlock()
	var seen []answer
	if ask {
		seen = g.ask(ctx, false)
	}
	before := g.revision()
	v, err := g.version(ctx, before)
	g.mu.Lock()
	defer g.mu.Unlock()
	if err != nil {
		g.doubt, g.away = true, true
		return err
	}
	if g.away {
		g.away = false
		g.endWatches() // what happened meanwhile may be another history
	}
	g.judge(v.version(), seen)
	return nil
}

// judge takes in versions; mu is held.
func (g *Gate) judge(version uint64, seen []answer) {
	answered := false
	for _, a := range seen {
		if a.err != nil {
			continue
		}
		answered = true
		if a.config.Seen > g.highest {
			g.highest, g.who = a.config.Seen, a.name
		}
	}
	was := g.held.Load()
	switch {
	case version < g.highest:
		h := Held{Registry: version, Highest: g.highest, Who: g.who, Since: time.Now()}
		if was != nil {
			h.Since = was.Since
		}
		g.hold(h)
	case was != nil && was.Unsure && !answered:
		if len(seen) > 0 {
			g.doubt = true
		}
	default:
		g.highest, g.who = version, ""
		if was != nil {
			g.held.Store(nil)
			g.say(nil)
		}
	}
}

// answer is what a database said.
type answer struct {
	name   string
	config *store.Configuration
	err    error
}

// ask asks all databases at once; in the configuration's order.
func (g *Gate) ask(ctx context.Context, copies bool) []answer {
	out := make([]answer, len(g.dbs))
	var wg sync.WaitGroup
	for i, db := range g.dbs {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, askMax)
			defer cancel()
			c, err := db.Keeper.Configuration(ctx, copies)
			out[i] = answer{db.Name, c, err}
		})
	}
	wg.Wait()
	return out
}

// versions is what the registry's version is made of.
type versions struct {
	base    int64
	writes  int64
	baseRev int64 // of the base's key; 0: it is not there
}

func (v versions) version() uint64 { return uint64(max(v.base+v.writes, 0)) }

// version reads the registry's version.
func (g *Gate) version(ctx context.Context, before int64) (versions, error) {
	items, revision, err := g.kv.List(ctx, ownPrefix)
	if err != nil {
		return versions{}, fmt.Errorf("read the configuration's version: %w", err)
	}
	g.heard(revision, before)
	return readVersion(items)
}

func readVersion(items []member.Item) (v versions, err error) {
	for _, it := range items {
		switch it.Key {
		case changesKey:
			v.writes = it.Writes
		case baseKey:
			if v.base, err = strconv.ParseInt(string(it.Value), 10, 64); err != nil {
				return v, fmt.Errorf("read %s: %w", baseKey, err)
			}
			v.baseRev = it.Revision
		}
	}
	return v, nil
}
