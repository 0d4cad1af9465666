// Package filestore is the embedded store: one directory, one process, no server. It is an LSM tree
// (Pebble; docs/adr/0012-embedded-engine.md says why, with figures). A commit is one batch and one
// fdatasync; what Commit answered is on disk.
//
//	DIR/LOCKED-BY   held by the process that has the directory open; says which one
//	DIR/BALLAST     room for the moment when the disk is full
//	DIR/data/       the engine's files
//
// # What it is made of
//
//	filestore.go   opening, acquiring, closing
//	commit.go      a batch of changes becomes a batch of keys
//	index.go       the order in which index changes are written
//	state.go       epochs and counters, in memory and on disk
//	reads.go       recovery, flows, refills, look-ups     list.go   lists
//	keys.go        all key spaces                          row.go    how a row is stored
//	disk.go        ends of files that can be damaged       torn.go   what was found there
//	space.go       a disk that fills up
//
// # How it fails
//
// A process that is killed, or a machine that loses power, loses nothing that was answered. Damage to
// the end of any file is survived and told (Dropped); damage to what was answered makes Open fail.
// When the disk is nearly full, commits with inserts fail with store.ErrFull and stored nothing, and
// later all do; they work again when there is room. When a write fails otherwise, the answer is
// store.ErrUnknown, and so is that of every later commit: close the store and open it again.
//
// # Who may call what
//
// Every method may be called from any goroutine. Commit and Acquire wait for each other; reads see one
// state of the database and wait for nobody. The engine flushes and compacts in goroutines of its own,
// which Close ends.
package filestore
