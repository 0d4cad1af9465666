package pgstore

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

//go:embed sql/migrations/*.sql
var migrationFiles embed.FS

// ErrNewerSchema means that a newer version has migrated the database further than this one knows.
var ErrNewerSchema = errors.New("the database's schema is newer than this version")

// migrationLock is the key of the advisory lock; it is held by a transaction, so it works through a
// pooler and is never left behind.
const migrationLock = 0x6865616472616365

type migration struct {
	version int
	name    string
	sql     string
}

// migrations returns the embedded files by version: 1, 2, 3…
func migrations() ([]migration, error) {
	files, err := migrationFiles.ReadDir("sql/migrations")
	if err != nil {
		return nil, err
	}
	var ms []migration
	for _, f := range files {
		number, _, _ := strings.Cut(f.Name(), "_")
		version, err := strconv.Atoi(number)
		if err != nil || version != len(ms)+1 {
			return nil, fmt.Errorf("migration %s: its number is not %d", f.Name(), len(ms)+1)
		}
		text, err := migrationFiles.ReadFile("sql/migrations/" + f.Name())
		if err != nil {
			return nil, err
		}
		ms = append(ms, migration{version, f.Name(), string(text)})
	}
	return ms, nil
}

// migrate brings the schema up to date, one migration a transaction: who dies half-way leaves the
// rest to the next one.
func (s *Store) migrate(ctx context.Context) error {
	ms, err := migrations()
	if err != nil {
		return err
	}
	for done := false; !done; {
		if done, err = s.migrateOne(ctx, ms); err != nil {
			return err
		}
	}
	return nil
}

// migrateOne applies the first migration that is missing; done says that none was.
func (s *Store) migrateOne(ctx context.Context, ms []migration) (done bool, err error) {
	if at, err := s.schemaVersion(ctx, s.pool); err == nil && at == len(ms) {
		return true, nil // the common case waits for no lock
	}
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", int64(migrationLock)); err != nil {
			return err
		}
		at, err := s.schemaVersion(ctx, tx)
		if err != nil {
			return err
		}
		switch {
		case at > len(ms):
			return fmt.Errorf("version %d, ours is %d: %w", at, len(ms), ErrNewerSchema)
		case at == len(ms):
			done = true
			return nil
		case at == 0:
			const first = `CREATE SCHEMA IF NOT EXISTS headrace;
				CREATE TABLE headrace.migrations (version integer PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())`
			if _, err := tx.Exec(ctx, first, pgx.QueryExecModeSimpleProtocol); err != nil {
				return err
			}
		}
		m := ms[at]
		if _, err := tx.Exec(ctx, m.sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			return fmt.Errorf("migration %s: %w", m.name, err)
		}
		_, err = tx.Exec(ctx, "INSERT INTO headrace.migrations (version, name) VALUES ($1, $2)", m.version, m.name)
		return err
	})
	return done, err
}

type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// schemaVersion returns the number of the last migration; 0 for an empty database.
func (s *Store) schemaVersion(ctx context.Context, q querier) (version int, err error) {
	there, err := tableExists(ctx, q, "migrations")
	if err != nil || !there {
		return 0, err
	}
	err = q.QueryRow(ctx, "SELECT coalesce(max(version), 0) FROM headrace.migrations").Scan(&version)
	return version, err
}

// tableExists looks into the catalog itself: to_regclass may answer from the session's cache, which says "no" for a
// moment after another session made the table, also to who has just waited for that session's lock.
func tableExists(ctx context.Context, q querier, name string) (there bool, err error) {
	err = q.QueryRow(ctx, queries["TableExists"], name).Scan(&there)
	return there, err
}
