package memstore

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/headrace/headrace/store"
)

// configuration is what the database remembers of the cluster's.
type configuration struct {
	seen, copied uint64
	copies       map[string]store.Configured
}

// Configuration implements store.Keeper.
func (s *Store) Configuration(ctx context.Context, copies bool) (c *store.Configuration, err error) {
	err = s.do(ctx, "configuration", func(d *Data) error {
		c = &store.Configuration{Seen: d.config.seen, Copied: d.config.copied}
		if !copies {
			return nil
		}
		for _, key := range slices.Sorted(maps.Keys(d.config.copies)) {
			it := d.config.copies[key]
			it.Value = bytes.Clone(it.Value)
			c.Copies = append(c.Copies, it)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return c, nil
}

// SawConfiguration implements store.Keeper.
func (s *Store) SawConfiguration(ctx context.Context, version uint64) error {
	return s.do(ctx, "saw configuration", func(d *Data) error {
		d.config.seen = max(d.config.seen, version)
		return nil
	})
}

// CopyConfiguration implements store.Keeper.
func (s *Store) CopyConfiguration(ctx context.Context, from, to uint64, changes []store.Configured) error {
	return s.do(ctx, "copy configuration", func(d *Data) error {
		c := &d.config
		if c.copied != from || to < from {
			return fmt.Errorf("from version %d to %d, the copies are of %d: %w", from, to, c.copied, store.ErrFenced)
		}
		if c.copies == nil {
			c.copies = map[string]store.Configured{}
		}
		for _, it := range changes {
			if it.Deleted {
				delete(c.copies, it.Key)
				continue
			}
			it.Value = bytes.Clone(it.Value)
			c.copies[it.Key] = it
		}
		c.copied, c.seen = to, max(c.seen, to)
		return nil
	})
}

// Clone returns a copy of the data as it is now: a backup.
func (d *Data) Clone() *Data {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := &Data{partitions: map[uint32]*partition{}, clientIDs: maps.Clone(d.clientIDs), requests: slices.Clone(d.requests), written: d.written,
		config: configuration{d.config.seen, d.config.copied, maps.Clone(d.config.copies)}}
	for id, p := range d.partitions {
		q := *p
		q.functions = maps.Clone(p.functions)
		q.hot, q.history = p.hot.clone(), p.history.clone()
		c.partitions[id] = &q
	}
	return c
}

// Restore makes the data what a backup is, under the feet of whoever uses it.
func (d *Data) Restore(backup *Data) {
	c := backup.Clone()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.server++ // nobody who wrote before may go on
	d.partitions, d.clientIDs, d.requests, d.written, d.config = c.partitions, c.clientIDs, c.requests, c.written, c.config
}

func (tb table) clone() table { return table{maps.Clone(tb.rows), slices.Clone(tb.seqs)} }
