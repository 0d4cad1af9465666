package pgstore

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// Maintain makes the days of history that come, empties the requests that nobody may ask for any
// more, and drops what has ended more than keep ago (0: nothing). Call it every few minutes from any
// node; what another one is doing is left to it. Everything goes in short transactions, so it may be
// ended at any time.
func (s *Store) Maintain(ctx context.Context, now time.Time, keep time.Duration) error {
	for _, at := range []time.Time{now, now.Add(24 * time.Hour)} {
		if err := s.makeDay(ctx, day(at)); err != nil {
			return fmt.Errorf("make day %d of history: %w", day(at), classify(err))
		}
	}
	// The slot after the next was written 20 to 30 minutes ago.
	empty := fmt.Sprintf("TRUNCATE headrace.requests_%d", (slot(now)+2)%slots)
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT set_config('lock_timeout', '500ms', true)"); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, empty)
		return err
	})
	if err != nil && code(err) != codeLockNotAvailable {
		return fmt.Errorf("drop old requests: %w", classify(err))
	}
	if keep <= 0 {
		return nil
	}
	var names []string
	err = s.read(ctx, "Days", nil, func(rows pgx.Rows) (err error) {
		names, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	if err != nil {
		return fmt.Errorf("list the days of history: %w", classify(err))
	}
	for _, name := range names {
		d, err := strconv.Atoi(strings.TrimPrefix(name, dayPrefix))
		if err != nil || int32(d) >= day(now.Add(-keep)) {
			continue
		}
		if err := s.dropDay(ctx, int32(d)); err != nil {
			return fmt.Errorf("drop day %d of history: %w", d, classify(err))
		}
	}
	return nil
}

// dayPrefix starts the names of the tables of days, of retention class 0.
const dayPrefix = "history_0_"

// dayLock is the first key of the advisory locks of days.
const dayLock = 0x68726461

// ensureDay makes a day before the first commit that needs it, if Maintain did not. Only the
// committer calls it.
func (s *Store) ensureDay(ctx context.Context, d int32) error {
	if s.writer.days[d] {
		return nil
	}
	if err := s.makeDay(ctx, d); err != nil {
		return err
	}
	s.writer.days[d] = true
	return nil
}

// makeDay makes the tables of a day unless they are there. A table is filled with indexes first and attached then: that
// disturbs nobody, while making it in its place would lock all of history.
func (s *Store) makeDay(ctx context.Context, d int32) error {
	name := dayPrefix + strconv.Itoa(int(d))
	if ok, err := tableExists(ctx, s.pool, name); err != nil || ok {
		return err
	}
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1::integer, $2::integer)", int32(dayLock), d); err != nil {
			return err
		}
		if ok, err := tableExists(ctx, tx, name); err != nil || ok {
			return err
		}
		var sql strings.Builder
		for _, parent := range []string{"history_labels", "history"} {
			child := fmt.Sprintf("%s_0_%d", parent, d)
			fmt.Fprintf(&sql, `CREATE TABLE headrace.%[2]s (LIKE headrace.%[1]s INCLUDING ALL, CHECK (class = 0 AND day = %[3]d))
				WITH (autovacuum_vacuum_insert_scale_factor = 1, toast_tuple_target = 8160);
				ALTER TABLE headrace.%[1]s ATTACH PARTITION headrace.%[2]s FOR VALUES FROM (0, %[3]d) TO (0, %[4]d);
				`, parent, child, d, d+1)
		}
		_, err := tx.Exec(ctx, sql.String(), pgx.QueryExecModeSimpleProtocol)
		return err
	})
}

// dropBatch is how many packs give their client ids back in one transaction.
const dropBatch = 1000

// dropDay gives the client ids of a day back, a batch at a time, and drops its tables.
func (s *Store) dropDay(ctx context.Context, d int32) error {
	table := dayPrefix + strconv.Itoa(int(d))
	for from := int64(math.MinInt64); ; {
		last, rows, err := s.giveBackFrom(ctx, table, d, from)
		if err != nil {
			return err
		}
		if rows < dropBatch {
			break
		}
		from = last // again: more packs of this block may follow. A block has fewer than dropBatch.
	}
	if _, err := s.pool.Exec(ctx, "DELETE FROM headrace.blocks WHERE class = 0 AND day = $1", d); err != nil {
		return err
	}
	for _, parent := range []string{"history_labels", "history"} {
		child := fmt.Sprintf("headrace.%s_0_%d", parent, d)
		// CONCURRENTLY waits for readers without making others wait for it; it is no part of a transaction.
		_, err := s.pool.Exec(ctx, "ALTER TABLE headrace."+parent+" DETACH PARTITION "+child+" CONCURRENTLY")
		if err != nil && code(err) != codeUndefinedTable && code(err) != codeNotInState {
			return err
		}
		if code(err) == codeNotInState { // a detach was cut short
			if _, err := s.pool.Exec(ctx, "ALTER TABLE headrace."+parent+" DETACH PARTITION "+child+" FINALIZE"); err != nil && code(err) == "" {
				return err
			}
		}
		if _, err := s.pool.Exec(ctx, "DROP TABLE IF EXISTS "+child); err != nil {
			return err
		}
	}
	return nil
}

// giveBackFrom gives the client ids of a batch of packs back and returns the last one's block.
func (s *Store) giveBackFrom(ctx context.Context, table string, d int32, from int64) (last int64, n int, err error) {
	rows, err := s.pool.Query(ctx, "SELECT block, body FROM headrace."+table+" WHERE keyed AND class = 0 AND day = $1 AND block >= $2 ORDER BY block LIMIT $3",
		d, from, dropBatch)
	if err != nil {
		return 0, 0, err
	}
	var ts []*store.Task
	var body pgtype.DriverBytes
	if _, err = pgx.ForEachRow(rows, []any{&last, &body}, func() error {
		n++
		return unpack(body, func(t *store.Task) error {
			if t.ClientID != "" {
				ts = append(ts, t)
			}
			return nil
		})
	}); err != nil || len(ts) == 0 {
		return last, n, err
	}
	return last, n, s.giveBack(ctx, ts)
}

func (s *Store) giveBack(ctx context.Context, ts []*store.Task) error {
	tenants, clients := make([]string, len(ts)), make([][]byte, len(ts))
	ids := make([]task.ID, len(ts))
	for i, t := range ts {
		tenants[i], clients[i], ids[i] = t.Tenant, []byte(t.ClientID), t.ID
	}
	_, err := s.pool.Exec(ctx, queries["GiveBack"], tenants, clients, ids)
	return err
}
