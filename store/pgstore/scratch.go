package pgstore

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Scratch is a database that nobody else uses, on somebody's server, for a measurement.
type Scratch struct {
	DSN  string // of the database
	Name string // scratchPrefix and some random digits
	host *pgx.ConnConfig
}

const scratchPrefix = "headrace_scratch_"

const codeInsufficientPrivilege = "42501"

// NewScratch makes an empty database on the server that a URL names, beside the database that it names. Drop
// removes it. Errors say what is missing in the URL, that the server can't be reached (ErrUnavailable), or that its
// user may not make databases; none holds a password.
func NewScratch(ctx context.Context, dsn string) (*Scratch, error) {
	const want = "want postgres://USER:PASSWORD@HOST:PORT/DATABASE"
	u, err := url.Parse(dsn)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		return nil, errors.New(want) // the parser's error holds what it was given
	}
	host, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("%w; %s", err, want)
	}
	if host.Database == "" { // nor PGDATABASE does; the server would take the user's name
		return nil, errors.New("the URL names no database; " + want)
	}
	random := make([]byte, 4)
	rand.Read(random)
	s := &Scratch{Name: scratchPrefix + hex.EncodeToString(random), host: host}
	u.Path = "/" + s.Name
	query := u.Query()
	query.Del("dbname")
	u.RawQuery = query.Encode()
	s.DSN = u.String()
	err = s.exec(ctx, "CREATE DATABASE "+s.Name+" TEMPLATE template0")
	if code(err) == codeInsufficientPrivilege {
		return nil, fmt.Errorf("make a database to measure in: user %s has no right to (ALTER ROLE … CREATEDB gives it): %w", host.User, err)
	}
	if err != nil {
		return nil, fmt.Errorf("make a database to measure in: %w", oneLine{classify(err)})
	}
	return s, nil
}

// oneLine is an error for a terminal: the driver lists each address on a line of its own.
type oneLine struct{ error }

func (e oneLine) Error() string { return strings.Join(strings.Fields(e.error.Error()), " ") }
func (e oneLine) Unwrap() error { return e.error }

// Drop removes the database, whoever is still connected to it.
func (s *Scratch) Drop(ctx context.Context) error {
	if err := s.exec(ctx, "DROP DATABASE IF EXISTS "+s.Name+" WITH (FORCE)"); err != nil {
		return fmt.Errorf("drop the database %s: %w", s.Name, classify(err))
	}
	return nil
}

func (s *Scratch) exec(ctx context.Context, sql string) error {
	conn, err := pgx.ConnectConfig(ctx, s.host)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol)
	return err
}

// Backend calls f with the process id, on the server's machine, of a process of the server that is connected to the
// database until f returns.
func (s *Scratch) Backend(ctx context.Context, f func(pid int) error) error {
	conn, err := pgx.Connect(ctx, s.DSN)
	if err != nil {
		return classify(err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var pid int
	if err := conn.QueryRow(ctx, "SELECT pg_backend_pid()", pgx.QueryExecModeSimpleProtocol).Scan(&pid); err != nil {
		return classify(err)
	}
	return f(pid)
}
