package pgstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/headrace/headrace/store"
)

// Config says which database and how to use it.
type Config struct {
	// DSN is a Postgres connection string or URL: the primary's, or of a pooler in front of it. Several hosts may be
	// named: the one that takes writes is used. Required.
	DSN string
	// Connections bounds how many connections the store holds. 0: 8. At least 2: one is the committer's.
	Connections int
	// CommitTimeout ends a commit that is not answered: its outcome is unknown then. 0: 30 s.
	CommitTimeout time.Duration
	// ReadTimeout bounds each read whose context has no earlier end. 0: 30 s.
	ReadTimeout time.Duration
	// PinnedAfter is the age from which on a transaction that keeps dead rows in place is an alarm. 0: 5 minutes.
	PinnedAfter time.Duration
	// SizeLimit is how many bytes the database may take: from 85 % of it on inserts are refused with store.ErrFull, as
	// Postgres does not tell how full its disk is. Space that was freed inside its files counts until they shrink. 0: no limit.
	SizeLimit int64
}

const (
	defaultConnections = 8
	defaultTimeout     = 30 * time.Second
	defaultPinnedAfter = 5 * time.Minute
)

// Validate says which field is wrong.
func (c *Config) Validate() error {
	switch {
	case c.DSN == "":
		return errors.New("field DSN is required")
	case c.Connections != 0 && (c.Connections < 2 || c.Connections > 1000):
		return fmt.Errorf("field Connections is %d: from 2 to 1000, or 0 for %d", c.Connections, defaultConnections)
	case c.CommitTimeout < 0:
		return fmt.Errorf("field CommitTimeout is %v: at least 0", c.CommitTimeout)
	case c.ReadTimeout < 0:
		return fmt.Errorf("field ReadTimeout is %v: at least 0", c.ReadTimeout)
	case c.SizeLimit != 0 && c.SizeLimit < 64<<20:
		return fmt.Errorf("field SizeLimit is %d: at least 67108864, or 0 for no limit", c.SizeLimit)
	case c.PinnedAfter < 0:
		return fmt.Errorf("field PinnedAfter is %v: at least 0", c.PinnedAfter)
	}
	return nil
}

// Store is one Postgres database.
type Store struct {
	cfg      Config
	pool     *pgxpool.Pool
	settings map[string]string // as at the start
	walStart int64             // position of the log at the start, bytes
	lastWAL  atomic.Int64      // as last read by DiskBytes
	lastSize atomic.Int64

	restMu sync.Mutex // guards following
	rest   rest

	commitMu sync.Mutex // guards following
	writer   writer
	nameless bool        // commits: a pooler hands them to servers where no statement has a name
	acquired atomic.Bool // since the last commit: the writer is to forget what it takes to be there

	partsMu sync.Mutex // guards following
	parts   []uint32   // of the commit under way
}

var (
	_ store.Store   = (*Store)(nil)
	_ store.Watched = (*Store)(nil)
)

// Open connects, and brings the schema up to date (see migrate.go). Errors: ErrUnavailable,
// ErrNewerSchema.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("pgstore: %w", err)
	}
	if cfg.Connections == 0 {
		cfg.Connections = defaultConnections
	}
	if cfg.CommitTimeout == 0 {
		cfg.CommitTimeout = defaultTimeout
	}
	if cfg.ReadTimeout == 0 {
		cfg.ReadTimeout = defaultTimeout
	}
	if cfg.PinnedAfter == 0 {
		cfg.PinnedAfter = defaultPinnedAfter
	}
	pc, err := pgxpool.ParseConfig(cfg.DSN)
	if err != nil {
		return nil, fmt.Errorf("pgstore: %w", err)
	}
	pc.MaxConns = int32(cfg.Connections)
	// A pooler hands each transaction to another server: no statement may have a name there, but for
	// commits (prepared.go). Descriptions are cached on our side, so that a read is one round trip all the same.
	pc.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	pc.ConnConfig.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	pool, err := pgxpool.NewWithConfig(ctx, pc)
	if err != nil {
		return nil, fmt.Errorf("pgstore: %w", err)
	}
	s := &Store{cfg: cfg, pool: pool}
	s.writer.init()
	if err := s.start(ctx); err != nil {
		pool.Close()
		return nil, err
	}
	return s, nil
}

func (s *Store) start(ctx context.Context) error {
	if err := s.migrate(ctx); err != nil {
		return fmt.Errorf("bring the schema up to date: %w", classify(err))
	}
	rows, err := s.pool.Query(ctx, queries["Settings"])
	if err != nil {
		return fmt.Errorf("read the server's settings: %w", classify(err))
	}
	s.settings = map[string]string{"engine": "postgres"}
	var name, value string
	if _, err := pgx.ForEachRow(rows, []any{&name, &value}, func() error { s.settings[name] = value; return nil }); err != nil {
		return fmt.Errorf("read the server's settings: %w", classify(err))
	}
	var size int64
	if err := s.pool.QueryRow(ctx, queries["Disk"]).Scan(&s.walStart, &size); err != nil {
		return fmt.Errorf("read the position of the log: %w", classify(err))
	}
	s.lastWAL.Store(s.walStart)
	s.lastSize.Store(size)
	return nil
}

// Settings implements store.Store: the server's own settings, as they were at the start.
func (s *Store) Settings() map[string]string { return s.settings }

// DiskBytes implements store.Store: the write-ahead log of the whole server since the start, and the size of
// the database; the last known figures while the server can't be asked.
func (s *Store) DiskBytes() (written, occupied int64) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var wal, size int64
	if err := s.pool.QueryRow(ctx, queries["Disk"]).Scan(&wal, &size); err == nil {
		s.lastWAL.Store(wal)
		s.lastSize.Store(size)
	}
	return s.lastWAL.Load() - s.walStart, s.lastSize.Load()
}

// Close implements store.Store. It waits for calls in flight.
func (s *Store) Close() error {
	s.pool.Close()
	return nil
}

// reading bounds a read.
func (s *Store) reading(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, s.cfg.ReadTimeout)
}

// read runs a query in one round trip, under the settings of query Plan, and hands its rows to f, which
// need not close them.
func (s *Store) read(ctx context.Context, query string, args []any, f func(rows pgx.Rows) error) error {
	b := &pgx.Batch{}
	b.Queue(queries["Plan"]).Exec(func(pgconn.CommandTag) error { return nil })
	b.Queue(queries[query], args...).Query(func(rows pgx.Rows) error {
		defer rows.Close()
		if err := f(rows); err != nil {
			return err
		}
		return rows.Err()
	})
	return s.pool.SendBatch(ctx, b).Close()
}

// readRow is read for a query that returns one row: pgx.ErrNoRows if it does not.
func (s *Store) readRow(ctx context.Context, query string, args []any, dst ...any) error {
	return s.read(ctx, query, args, func(rows pgx.Rows) error {
		if !rows.Next() {
			if rows.Err() != nil {
				return rows.Err()
			}
			return pgx.ErrNoRows
		}
		return rows.Scan(dst...)
	})
}
