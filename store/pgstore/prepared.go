package pgstore

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A commit is the one statement with a name: to parse and plan a call with 80 parameters takes a sixth of the backend's CPU
// for a lone task, and 40 µs of its latency. Behind a pooler that hands each transaction to another server the name is missing
// (or taken) there; then nothing was stored, and commits go without one from then on. The name says which text it
// stands for, so that behind a pooler it is nobody else's.
var commitName string // set with commitSQL

// execCommit calls commit_v1. An error of it is in its result.
func (s *Store) execCommit(ctx context.Context, conn *pgxpool.Conn, params [][]byte) *pgconn.Result {
	c, pg := &s.writer.columns, conn.Conn().PgConn()
	run := func(start func() *pgconn.ResultReader) *pgconn.Result {
		s.writer.lent.to(pg, c.size())
		r := start().Read()
		s.writer.lent.back(pg)
		return r
	}
	if !s.nameless {
		_, err := conn.Conn().Prepare(ctx, commitName, commitSQL) // once a connection
		switch {
		case err == nil:
			r := run(func() *pgconn.ResultReader { return pg.ExecPrepared(ctx, commitName, params, c.binary, []int16{1}) })
			if code(r.Err) != codeNoStatement {
				return r
			}
		case code(err) == "": // the connection's
			return &pgconn.Result{Err: notSent(fmt.Errorf("prepare: %w", err))}
		}
		s.nameless = true
	}
	return run(func() *pgconn.ResultReader {
		return pg.ExecParams(ctx, commitSQL, params, c.oids, c.binary, []int16{1})
	})
}
