// Package pgstore is the store on Postgres 15 or newer: a hot table for what is not finished and an
// append-only, packed history by day (docs/adr/0015-hot-table-and-history.md says why, with figures).
//
//	pgstore.go   opening, settings            migrate.go    the schema, brought up to date at the start
//	commit.go    a batch and its answer       effects.go    what a batch comes to, task by task
//	arrays.go    parameters in binary         keys.go       columns that indexes need
//	epoch.go     acquiring, epochs            errors.go     what a failure means
//	reads.go     recovery, refills, look-ups  list.go       lists
//	history.go   days made ahead and dropped  snapshot.go   who keeps dead rows in place, and what follows
//	row.go       how a row is stored          pack.go       how finished tasks are, many in a row
//	sql/         every statement, with its index
//	scratch.go   a database for a measurement
//
// # A commit
//
// A commit is one statement, a call of headrace.commit_v1 with arrays. The server runs it only when
// all of it has arrived and commits by itself, so an owner that is paused amid its commit holds
// nothing. The function locks the partitions' rows and compares their epochs first; a fenced part is
// left out and the rest goes again, in the same call of Commit. Client ids are taken in the order of
// the keys, so that two owners never wait for each other in a circle.
//
// # What a server must be like
//
// Everything works through a pooler in transaction mode: no prepared statement has to have a name, no
// setting, lock or temporary object outlives its transaction. A server that is read-only or in
// recovery is never taken for the primary: not when a connection is made, not when an epoch is read.
//
// # How it fails
//
// A statement that the server refused has stored nothing: ErrUnavailable if it is read-only, in
// recovery or closing, store.ErrFull if its disk is full, else an error of its own. A commit with inserts into
// a database near its Config.SizeLimit is store.ErrFull before it is sent. A commit whose
// connection broke, or that took longer than Config.CommitTimeout, is store.ErrUnknown.
//
// # Who may call what
//
// Every method may be called from any goroutine, Commit and Acquire by one at a time. The pool of
// connections has a goroutine of its own, which Close ends. Maintain must be called now and then.
package pgstore
