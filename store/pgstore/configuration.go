package pgstore

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/headrace/headrace/store"
)

// Configuration implements store.Keeper. A standby's answer is none: it may be old.
func (s *Store) Configuration(ctx context.Context, copies bool) (*store.Configuration, error) {
	c := &store.Configuration{}
	var standby bool
	read := func() error {
		if !copies {
			ctx, cancel := s.reading(ctx)
			defer cancel()
			return s.readRow(ctx, "Configuration", nil, &c.Seen, &c.Copied, &standby)
		}
		// As long as the caller waits: there may be hundreds of thousands.
		return s.read(ctx, "Copies", nil, func(rows pgx.Rows) error {
			for rows.Next() {
				var key *string
				var it store.Configured
				var version *int64
				if err := rows.Scan(&key, &it.Value, &version, &c.Seen, &c.Copied, &standby); err != nil {
					return err
				}
				if key != nil { // the one row of no copies
					it.Key, it.Version = *key, uint64(*version)
					c.Copies = append(c.Copies, it)
				}
			}
			return nil
		})
	}
	err := read()
	if err == nil && standby {
		err = errStandby
	}
	if err != nil {
		return nil, fmt.Errorf("read the configuration's version: %w", classify(err))
	}
	return c, nil
}

// SawConfiguration implements store.Keeper.
func (s *Store) SawConfiguration(ctx context.Context, version uint64) error {
	ctx, cancel := s.reading(ctx)
	defer cancel()
	if _, err := s.pool.Exec(ctx, queries["SawConfiguration"], int64(version)); err != nil {
		return fmt.Errorf("write the configuration's version: %w", classifyCommit(err))
	}
	return nil
}

// CopyConfiguration implements store.Keeper.
func (s *Store) CopyConfiguration(ctx context.Context, from, to uint64, changes []store.Configured) error {
	n := len(changes)
	keys, values, versions, gone := make([]string, n), make([][]byte, n), make([]int64, n), make([]bool, n)
	for i, it := range changes {
		keys[i], values[i], versions[i], gone[i] = it.Key, it.Value, int64(it.Version), it.Deleted
		if values[i] == nil {
			values[i] = []byte{}
		}
	}
	var done bool
	err := s.pool.QueryRow(ctx, queries["CopyConfiguration"], int64(from), int64(to), keys, values, versions, gone).Scan(&done)
	if err == nil && !done {
		return fmt.Errorf("copy the configuration from version %d to %d: %w", from, to, store.ErrFenced)
	}
	if err != nil {
		return fmt.Errorf("copy the configuration: %w", classifyCommit(err))
	}
	return nil
}
