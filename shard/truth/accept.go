package truth

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"

	"go.uber.org/zap"

	"github.com/headrace/headrace/shard/member"
	"github.com/headrace/headrace/store"
)

// Source says what is true.
type Source uint8

// The sources of Accept.
const (
	Registry Source = iota + 1 // as it is: the copies become what it holds
	Copies                     // of the first database: the registry becomes what they hold
)

// ErrAgreed means that there is nothing to accept.
var ErrAgreed = errors.New("the registry is not behind the databases: there is nothing to accept")

// ErrNoCopies means that the registry can't be rebuilt.
var ErrNoCopies = errors.New("the first database has no copies: accept the registry as it is, or restore a newer backup")

// Status is what everybody remembers.
type Status struct {
	Held      *Held  // nil: agreed
	Registry  uint64 // version
	Databases []Memory
}

// Memory is what one database remembers.
type Memory struct {
	Name         string
	Seen, Copied uint64 // Copied: of the first one only
	Err          error
}

// Status compares and returns what was found.
func (g *Gate) Status(ctx context.Context) (*Status, error) {
	if err := g.compare(ctx, true); err != nil {
		return nil, err
	}
	s := &Status{}
	for _, a := range g.ask(ctx, false) {
		m := Memory{Name: a.name, Err: a.err}
		if a.err == nil {
			m.Seen, m.Copied = a.config.Seen, a.config.Copied
		}
		s.Databases = append(s.Databases, m)
	}
	v, err := g.version(ctx, g.revision())
	if err != nil {
		return nil, err
	}
	s.Held, s.Registry = g.held.Load(), v.version()
	return s, nil
}

// Accept ends the hold: the source is true from now on, and the version is above all that was seen. It needs every
// database, because any of them may have seen the highest. Nothing is accepted until the last step, so a call that
// failed half-way is made again. Errors: ErrAgreed.
func (g *Gate) Accept(ctx context.Context, from Source) error {
	if err := g.compare(ctx, true); err != nil {
		return err
	}
	h := g.held.Load()
	if h == nil {
		return ErrAgreed
	}
	highest := h.Highest
	for _, a := range g.ask(ctx, false) {
		if a.err != nil {
			return fmt.Errorf("database %s may have seen a higher version: %w", a.name, a.err)
		}
		highest = max(highest, a.config.Seen)
	}
	v, err := g.version(ctx, g.revision())
	if err != nil {
		return err
	}
	if from == Copies {
		c, err := g.dbs[0].Keeper.Configuration(ctx, true)
		if err != nil {
			return fmt.Errorf("read the copies in database %s: %w", g.dbs[0].Name, err)
		}
		if c.Copied == 0 {
			return fmt.Errorf("database %s: %w", g.dbs[0].Name, ErrNoCopies)
		}
		if err := g.rebuild(ctx, c.Copies); err != nil {
			return fmt.Errorf("rebuild the registry: %w", err)
		}
	}
	base := strconv.FormatInt(int64(highest)+1-v.writes, 10)
	ok, _, err := g.kv.Commit(ctx, member.Txn{
		If:   []member.Cond{{Key: baseKey, Revision: v.baseRev}},
		Then: []member.Op{{Key: baseKey, Value: []byte(base)}, {Key: changesKey}},
	})
	if err == nil && !ok {
		err = member.ErrConflict
	}
	if err != nil {
		return fmt.Errorf("write the version: %w", err)
	}
	g.log.Warn("a restore was accepted", zap.Bool("from_copies", from == Copies), zap.Uint64("version", highest+2))
	return g.compare(ctx, true)
}

// rebuild makes the registry's configuration what the copies are. It goes round the gate, which is shut.
func (g *Gate) rebuild(ctx context.Context, copies []store.Configured) error {
	items, _, err := g.kv.List(ctx, Root)
	if err != nil {
		return err
	}
	want := map[string][]byte{}
	for _, it := range copies {
		want[it.Key] = it.Value
	}
	var ops []member.Op
	for _, it := range items {
		if it.Lease != 0 || !isConfig(it.Key) {
			continue
		}
		value, there := want[it.Key]
		switch {
		case !there:
			ops = append(ops, member.Op{Key: it.Key, Delete: true})
		case bytes.Equal(value, it.Value):
			delete(want, it.Key)
		}
	}
	for _, it := range copies {
		if value, there := want[it.Key]; there {
			ops = append(ops, member.Op{Key: it.Key, Value: value})
		}
	}
	for len(ops) > 0 {
		n := min(len(ops), member.MaxTxnOps)
		if _, _, err := g.kv.Commit(ctx, member.Txn{Then: ops[:n]}); err != nil {
			return err
		}
		ops = ops[n:]
	}
	return nil
}

// Copy returns a key's copy in the first database; false: it has none.
func (g *Gate) Copy(ctx context.Context, key string) ([]byte, bool, error) {
	c, err := g.dbs[0].Keeper.Configuration(ctx, true)
	if err != nil {
		return nil, false, fmt.Errorf("read the copies in database %s: %w", g.dbs[0].Name, err)
	}
	for _, it := range c.Copies {
		if it.Key == key {
			return it.Value, true, nil
		}
	}
	return nil, false, nil
}
