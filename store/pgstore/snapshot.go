package pgstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Snapshot is somebody's open view of the database. While it is open, rows that were deleted after it stay on disk.
type Snapshot struct {
	PID         int32
	User        string
	Application string
	State       string    // of the session: "active", "idle in transaction"…; "" if we may not see it
	Since       time.Time // of the transaction by the server's clock
}

// OldestSnapshot returns the oldest open snapshot but our own, for an alarm that names who must end; the zero value if there
// is none. One that is older than a minute or so is worth a look.
func (s *Store) OldestSnapshot(ctx context.Context) (Snapshot, error) {
	ctx, cancel := s.reading(ctx)
	defer cancel()
	var o Snapshot
	err := s.readRow(ctx, "OldestSnapshot", nil, &o.PID, &o.User, &o.Application, &o.State, &o.Since)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return Snapshot{}, fmt.Errorf("oldest snapshot: %w", classify(err))
	}
	return o, nil
}
