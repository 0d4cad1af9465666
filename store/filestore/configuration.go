package filestore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/headrace/headrace/store"
)

// Configuration implements store.Keeper.
func (s *Store) Configuration(ctx context.Context, copies bool) (*store.Configuration, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if !s.enter() {
		return nil, errClosed
	}
	defer s.leave()
	snap := s.db.NewSnapshot() // versions and copies of one moment
	defer snap.Close()
	c, err := readConfiguration(snap)
	if err != nil {
		return nil, fmt.Errorf("read the configuration's version: %w", err)
	}
	if !copies {
		return c, nil
	}
	it, err := snap.NewIter(&pebble.IterOptions{LowerBound: []byte{copySpace}, UpperBound: []byte{copySpace + 1}})
	if err != nil {
		return nil, fmt.Errorf("read the copies of the configuration: %w", err)
	}
	for it.First(); it.Valid(); it.Next() {
		v := it.Value()
		if len(v) < 8 {
			return nil, errors.Join(fmt.Errorf("copy of %s: %w", it.Key()[1:], errBadKey), it.Close())
		}
		c.Copies = append(c.Copies, store.Configured{Key: string(it.Key()[1:]), Version: binary.BigEndian.Uint64(v), Value: bytes.Clone(v[8:])})
	}
	if err := errors.Join(it.Error(), it.Close()); err != nil {
		return nil, fmt.Errorf("read the copies of the configuration: %w", err)
	}
	return c, nil
}

// readConfiguration reads the two versions.
func readConfiguration(r pebble.Reader) (*store.Configuration, error) {
	v, closer, err := r.Get([]byte{configSpace})
	if errors.Is(err, pebble.ErrNotFound) {
		return &store.Configuration{}, nil
	}
	if err != nil {
		return nil, err
	}
	defer closer.Close()
	if len(v) != 16 {
		return nil, errBadKey
	}
	return &store.Configuration{Seen: binary.BigEndian.Uint64(v), Copied: binary.BigEndian.Uint64(v[8:])}, nil
}

// SawConfiguration implements store.Keeper.
func (s *Store) SawConfiguration(ctx context.Context, version uint64) error {
	return s.configure(ctx, func(c *store.Configuration, _ *pebble.Batch) error {
		c.Seen = max(c.Seen, version)
		return nil
	})
}

// CopyConfiguration implements store.Keeper.
func (s *Store) CopyConfiguration(ctx context.Context, from, to uint64, changes []store.Configured) error {
	return s.configure(ctx, func(c *store.Configuration, b *pebble.Batch) error {
		if c.Copied != from || to < from {
			return fmt.Errorf("copy the configuration from version %d to %d, the copies are of %d: %w", from, to, c.Copied, store.ErrFenced)
		}
		for _, it := range changes {
			key := append([]byte{copySpace}, it.Key...)
			if it.Deleted {
				if err := b.Delete(key, nil); err != nil {
					return err
				}
				continue
			}
			if err := b.Set(key, append(binary.BigEndian.AppendUint64(nil, it.Version), it.Value...), nil); err != nil {
				return err
			}
		}
		c.Copied, c.Seen = to, max(c.Seen, to)
		return nil
	})
}

// configure changes what is remembered, in one write.
func (s *Store) configure(ctx context.Context, change func(*store.Configuration, *pebble.Batch) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.writeMu.Lock()
	defer s.writeMu.Unlock()
	if !s.enter() {
		return errClosed
	}
	defer s.leave()
	if s.broken != nil {
		return s.broken
	}
	c, err := readConfiguration(s.db)
	if err != nil {
		return fmt.Errorf("read the configuration's version: %w", err)
	}
	was := *c
	b := s.db.NewBatch()
	defer b.Close()
	if err := change(c, b); err != nil {
		return err
	}
	if c.Seen == was.Seen && c.Copied == was.Copied && b.Empty() {
		return nil
	}
	v := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, c.Seen), c.Copied)
	if err := b.Set([]byte{configSpace}, v, nil); err != nil {
		return s.breakDown(err)
	}
	return s.apply(b)
}
