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

// rest decides whether autovacuum is of use. While one snapshot stays the oldest, what a first vacuum could not remove the
// next can't either: it reads all dead rows again, time after time, as many as there are by then.
type rest struct {
	pid   int32
	since time.Time
	seen  time.Time // when that snapshot first was the oldest, by our clock
	want  vacuum
	is    vacuum    // as last told; unknown at the start, as another node may have told it before
	told  time.Time // when
}

type vacuum uint8

const (
	vacuumUnknown vacuum = iota
	vacuumWorks
	vacuumRests
)

// restAfter leaves room for a round of autovacuum after the oldest snapshot has changed.
const restAfter = 90 * time.Second

// look says whether the database is to be told what is in want. What rests is told so once, as a node that is later to see a
// change must not undo what the first did; that it works is said again and again, as who let it rest may have died.
func (r *rest) look(o Snapshot, now time.Time) bool {
	changed := o.PID != r.pid || !o.Since.Equal(r.since)
	if changed {
		r.pid, r.since, r.seen = o.PID, o.Since, now
	}
	switch {
	case o.Age < restAfter: // or there is none
		r.want = vacuumWorks
		return r.is != vacuumWorks || now.Sub(r.told) >= restAfter
	case changed:
		r.want = r.is
		if r.is != vacuumUnknown {
			r.want = vacuumWorks
		}
	case now.Sub(r.seen) >= restAfter:
		r.want = vacuumRests
	}
	return r.want != r.is
}

// letRest tells the database, where that is due.
func (s *Store) letRest(ctx context.Context, o Snapshot, now time.Time) error {
	s.restMu.Lock()
	defer s.restMu.Unlock()
	if !s.rest.look(o, now) {
		return nil
	}
	ctx, cancel := s.reading(ctx)
	defer cancel()
	done := false // if not, somebody is at the tables: the next look asks again
	if err := s.pool.QueryRow(ctx, queries["Rest"], s.rest.want == vacuumRests).Scan(&done); err != nil {
		return fmt.Errorf("let autovacuum rest or work: %w", classify(err))
	}
	if done {
		s.rest.is, s.rest.told = s.rest.want, now
	}
	return nil
}

// Alarms implements store.Watched. While one transaction keeps all dead rows in place, it lets autovacuum rest on the hot
// tables; it works again once that transaction ends.
func (s *Store) Alarms(ctx context.Context) ([]store.Alarm, error) {
	o, err := s.OldestSnapshot(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.letRest(ctx, o, time.Now()); err != nil {
		return nil, err
	}
	found, err := s.lookAtSize(ctx)
	if err != nil {
		return nil, err
	}
	if o.Age >= s.cfg.PinnedAfter {
		found = append(found, store.Alarm{Kind: store.AlarmXmin, Message: o.String()})
	}
	return found, nil
}
