package filestore

import (
	"encoding/binary"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// partition is what is in memory of a partition: its row and the counters of its flows. It is
// changed while a batch is built, before the batch is on disk: if that fails, nothing is served from
// it any more (see Store.broken).
type partition struct {
	store.Partition
	flows  map[store.Flow]*flow // those with ready rows, or touched by the batch that is built
	purged int64                // minute before which requests were purged
}

type flow struct {
	name          store.Flow
	ready, bytes  int64
	storedReady   int64 // as in the database
	storedBytes   int64
	touched       bool // in Store.touched
	partitionSelf *partition
}

// flow returns the counters of a flow to change, and notes that they changed.
func (s *Store) flow(p *partition, t *store.Task) *flow {
	f := s.lastFlow
	if f == nil || f.partitionSelf != p || f.name.Band != t.Band || f.name.Function != t.Function || f.name.Tenant != t.Tenant {
		name := t.Flow()
		if f = p.flows[name]; f == nil {
			f = &flow{name: name, partitionSelf: p}
			p.flows[name] = f
		}
		s.lastFlow = f
	}
	if !f.touched {
		f.touched = true
		s.touched = append(s.touched, f)
	}
	return f
}

// count adds a hot row to the counters, or takes it away (sign -1).
func (s *Store) count(p *partition, t *store.Task, sign int64) {
	size := sign * int64(t.PayloadSize)
	p.Bytes += size
	if !t.Ready() {
		p.Due += sign
		return
	}
	p.Partition.Ready += sign
	f := s.flow(p, t)
	f.ready += sign
	f.bytes += size
}

// writeFlows puts the counters of touched flows into the batch where they are not as stored.
func (s *Store) writeFlows(b *pebble.Batch) error {
	for _, f := range s.touched {
		f.touched = false
		p := f.partitionSelf
		if f.ready == 0 {
			delete(p.flows, f.name)
		}
		if f.ready == f.storedReady && f.bytes == f.storedBytes {
			continue
		}
		s.key = appendFlow(s.key[:0], flowSpace, p.ID, f.name)
		var err error
		if f.ready == 0 {
			err = b.Delete(s.key, nil)
		} else {
			s.val = binary.AppendVarint(binary.AppendVarint(s.val[:0], f.ready), f.bytes)
			err = b.Set(s.key, s.val, nil)
		}
		if err != nil {
			return err
		}
		f.storedReady, f.storedBytes = f.ready, f.bytes
	}
	clear(s.touched)
	s.touched, s.lastFlow = s.touched[:0], nil
	return nil
}

func (s *Store) writePartition(b *pebble.Batch, p *partition) error {
	s.key = appendPart(s.key[:0], partSpace, p.ID)
	s.val = store.EncodePartition(s.val[:0], &p.Partition)
	return b.Set(s.key, s.val, nil)
}

// loadPartitions reads all partitions and their counters.
func (s *Store) loadPartitions() error {
	err := s.scan(s.db, []byte{partSpace}, func(k, v []byte) error {
		row, err := store.DecodePartition(v)
		if err != nil {
			return err
		}
		s.partitions[row.ID] = &partition{Partition: row, flows: map[store.Flow]*flow{}}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read partitions: %w", err)
	}
	err = s.scan(s.db, []byte{flowSpace}, func(k, v []byte) error {
		if len(k) < 5 {
			return errBadKey
		}
		p := s.partitions[binary.BigEndian.Uint32(k[1:])]
		if p == nil {
			return errBadKey
		}
		f := &flow{partitionSelf: p}
		rest, err := k[5:], error(nil)
		if f.name.Tenant, rest, err = cutText(rest); err != nil {
			return err
		}
		if f.name.Function, rest, err = cutText(rest); err != nil {
			return err
		}
		if len(rest) != 1 {
			return errBadKey
		}
		f.name.Band = task.Band(rest[0])
		var n, m int
		f.ready, n = binary.Varint(v)
		f.bytes, m = binary.Varint(v[max(n, 0):])
		if n <= 0 || m <= 0 {
			return errBadRow
		}
		f.storedReady, f.storedBytes = f.ready, f.bytes
		p.flows[f.name] = f
		return nil
	})
	if err != nil {
		return fmt.Errorf("read flows: %w", err)
	}
	return nil
}

// scan calls f for each key with the prefix. Key and value are valid during the call only.
func (s *Store) scan(r pebble.Reader, prefix []byte, f func(k, v []byte) error) error {
	it, err := r.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: after(append([]byte(nil), prefix...))})
	if err != nil {
		return err
	}
	defer it.Close()
	for ok := it.First(); ok; ok = it.Next() {
		v, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		if err := f(it.Key(), v); err != nil {
			return err
		}
	}
	return it.Error()
}
