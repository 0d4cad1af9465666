package pgstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/headrace/headrace/store"
)

// Snapshot is somebody's open view of the database. While it is open, rows that were deleted after it stay on disk.
type Snapshot struct {
	PID         int32 // 0: of a prepared transaction
	User        string
	Application string
	State       string // of the session: "active", "idle in transaction"…, "prepared transaction NAME"; "" if we may not see it
	Since       time.Time
	Age         time.Duration // of the transaction, by the server's clock
	Database    string
}

// String names who must end.
func (o Snapshot) String() string {
	who := fmt.Sprintf("pid %d", o.PID)
	if o.PID == 0 {
		who = o.State
	}
	return fmt.Sprintf("%s (user %q, application %q, state %q) has had a transaction open in database %q for %v: dead rows stay until it ends",
		who, o.User, o.Application, o.State, o.Database, o.Age.Round(time.Second))
}

// OldestSnapshot returns the oldest open snapshot but that of the connection that asks; the zero value if there is none.
// Standbys that hold rows back by feedback are not seen.
func (s *Store) OldestSnapshot(ctx context.Context) (Snapshot, error) {
	ctx, cancel := s.reading(ctx)
	defer cancel()
	var o Snapshot
	var micros int64
	err := s.readRow(ctx, "OldestSnapshot", nil, &o.PID, &o.User, &o.Application, &o.State, &o.Since, &micros, &o.Database)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return Snapshot{}, fmt.Errorf("oldest snapshot: %w", classify(err))
	}
	o.Age = time.Duration(micros) * time.Microsecond
	return o, nil
}

// Alarms implements store.Watched.
func (s *Store) Alarms(ctx context.Context) ([]store.Alarm, error) {
	o, err := s.OldestSnapshot(ctx)
	if err != nil || o.Age < s.cfg.PinnedAfter {
		return nil, err
	}
	return []store.Alarm{{Kind: store.AlarmXmin, Message: o.String()}}, nil
}
