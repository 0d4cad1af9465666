package pgstore

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/headrace/headrace/store"
)

// acquireTries bounds how often Acquire waits for the lock (500 ms each) and ends who holds it.
const acquireTries = 20

// Acquire implements store.Store. Whoever of our own role holds the partition's row for more than
// half a second, an owner that stopped amid its commit, is cut off: he learns nothing else than that the
// outcome of his commit is unknown.
func (s *Store) Acquire(ctx context.Context, partition uint32, from store.Epoch) (store.Epoch, error) {
	return s.AcquireAbove(ctx, partition, from, 0)
}

// AcquireAbove implements store.Store. It waits for our own commit only if that names the partition: many partitions
// that come at once are not to queue behind it, one by one.
func (s *Store) AcquireAbove(ctx context.Context, partition uint32, from, above store.Epoch) (store.Epoch, error) {
	if s.committing(partition) {
		s.commitMu.Lock() // that commit ends by itself
		defer s.commitMu.Unlock()
	}
	for try := 1; ; try++ {
		var epoch *int64
		err := s.pool.QueryRow(ctx, queries["Acquire"], int64(partition), int64(from), int64(above)).Scan(&epoch)
		switch {
		case err == nil && epoch == nil:
			return 0, fmt.Errorf("acquire partition %d from epoch %d: %w", partition, from, store.ErrFenced)
		case err == nil:
			// The database may have been restored since the last commit, or a standby promoted: what the writer
			// remembers to be there may not be. Every new start of the server fences all owners, so that they come by here.
			s.acquired.Store(true)
			return store.Epoch(*epoch), nil
		case code(err) != codeLockNotAvailable || try == acquireTries:
			return 0, fmt.Errorf("acquire partition %d from epoch %d: %w", partition, from, classifyCommit(err))
		}
		var ended int64
		if err := s.pool.QueryRow(ctx, queries["EndHolders"], int64(partition)).Scan(&ended); err != nil {
			return 0, fmt.Errorf("end who holds partition %d: %w", partition, classify(err))
		}
	}
}

// Epoch implements store.Store. A standby's answer is none: it may be old.
func (s *Store) Epoch(ctx context.Context, partition uint32) (store.Epoch, error) {
	ctx, cancel := s.reading(ctx)
	defer cancel()
	var epoch int64
	var standby bool
	err := s.readRow(ctx, "Epoch", []any{int64(partition)}, &epoch, &standby)
	if err == nil && standby {
		err = errStandby
	}
	if err != nil {
		return 0, fmt.Errorf("epoch of partition %d: %w", partition, classify(err))
	}
	return store.Epoch(epoch), nil
}

// Partitions implements store.Store.
func (s *Store) Partitions(ctx context.Context) ([]store.Partition, error) {
	ctx, cancel := s.reading(ctx)
	defer cancel()
	ps, err := s.partitions(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("list partitions: %w", classify(err))
	}
	return ps, nil
}

// partitions reads one partition, or all.
func (s *Store) partitions(ctx context.Context, only *int64) (ps []store.Partition, err error) {
	err = s.read(ctx, "Partitions", []any{only}, func(rows pgx.Rows) error {
		for rows.Next() {
			var p store.Partition
			var standby bool
			if err := rows.Scan(&p.ID, &p.Epoch, &p.Floor, &p.Released, &p.Seq, &p.Ready, &p.Due, &p.Bytes, &standby); err != nil {
				return err
			}
			if standby {
				return errStandby
			}
			ps = append(ps, p)
		}
		return nil
	})
	return ps, err
}
