package pgstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/headrace/headrace/store"
)

// ErrUnavailable means that the server can't be reached, is closing or starting, or takes no writes
// (a standby). Nothing was done; try again later.
var ErrUnavailable = store.ErrUnavailable

// errStandby is what a server in recovery would let us believe.
var errStandby = fmt.Errorf("the server is in recovery: %w", ErrUnavailable)

// SQLSTATE codes that we act on.
const (
	codeLockNotAvailable  = "55P03"
	codeReadOnly          = "25006"
	codeDiskFull          = "53100"
	codeTooManyConns      = "53300"
	codeDeadlock          = "40P01"
	codeSerialization     = "40001" // where a database's default isolation is not ours
	codeNoPartitionForRow = "23514"
	codeUndefinedTable    = "42P01"
	codeNotInState        = "55000"
	codeNoStatement       = "26000" // of that name
)

// code returns the SQLSTATE of an error that ended a statement and not the session, "" if it is none:
// then nothing of the statement was stored.
func code(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok && e.SeverityUnlocalized == "ERROR" {
		return e.Code
	}
	return ""
}

// classify adds the sentinel that callers act on to an error of a read or a statement of no lasting
// effect.
func classify(err error) error {
	if err == nil || errors.Is(err, ErrUnavailable) {
		return err
	}
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return errors.Join(ErrUnavailable, err)
	}
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch {
		case e.Code == codeDiskFull:
			return errors.Join(store.ErrFull, err)
		case e.Code == codeReadOnly, e.Code == codeTooManyConns, e.Code[:3] == "57P", e.Code[:2] == "08":
			return errors.Join(ErrUnavailable, err)
		}
		return err
	}
	if pgconn.SafeToRetry(err) {
		return errors.Join(ErrUnavailable, err)
	}
	return err
}

// classifyCommit is classify for a statement whose effect lasts: what the server did not refuse may
// have been stored.
func classifyCommit(err error) error {
	switch {
	case err == nil, errors.Is(err, store.ErrUnknown), errors.Is(err, ErrUnavailable):
		return err
	case code(err) != "", pgconn.SafeToRetry(err):
		return classify(err)
	}
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return classify(err)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("no answer in time: %w", err)
	}
	return errors.Join(store.ErrUnknown, err)
}

// notSent classifies the failure of what comes before a commit is sent: whatever it was, nothing of the batch is stored.
func notSent(err error) error {
	if code(err) != "" {
		return err
	}
	return errors.Join(ErrUnavailable, err)
}
