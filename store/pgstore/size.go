package pgstore

import (
	"context"
	"fmt"

	"github.com/headrace/headrace/store"
)

// Postgres does not tell how full its disk is, and dies of a full one. So who runs it says how many bytes the database may
// take (Config.SizeLimit): at 85 % of that inserts are refused. Outcomes, which free space, always go on. The size is read
// with the alarms, every two seconds on a node.

// fullAt is the part of the limit from which on inserts are refused.
const fullAt = 0.85

// tooLarge says why inserts are refused, by the last known size; nil: they are not.
func (s *Store) tooLarge() error {
	size, limit := s.lastSize.Load(), s.cfg.SizeLimit
	if limit == 0 || float64(size) < fullAt*float64(limit) {
		return nil
	}
	return fmt.Errorf("%w: the database takes %d MiB of its size limit of %d MiB: from %.0f %% on submits are refused", store.ErrFull, size>>20, limit>>20, 100*fullAt)
}

// lookAtSize reads the size, if there is a limit.
func (s *Store) lookAtSize(ctx context.Context) ([]store.Alarm, error) {
	if s.cfg.SizeLimit == 0 {
		return nil, nil
	}
	ctx, cancel := s.reading(ctx)
	defer cancel()
	var wal, size int64
	if err := s.pool.QueryRow(ctx, queries["Disk"]).Scan(&wal, &size); err != nil {
		return nil, fmt.Errorf("read the size of the database: %w", classify(err))
	}
	s.lastWAL.Store(wal)
	s.lastSize.Store(size)
	if err := s.tooLarge(); err != nil {
		return []store.Alarm{{Kind: store.AlarmDisk, Message: err.Error()}}, nil
	}
	return nil, nil
}

// hasInserts reports whether a batch has new tasks.
func hasInserts(b *store.Batch) bool {
	for i := range b.Parts {
		for j := range b.Parts[i].Changes {
			if b.Parts[i].Changes[j].Op == store.Insert {
				return true
			}
		}
	}
	return false
}
