// Package loop is the shell around the node's core: one goroutine that owns it, and the goroutines
// that do what it asks for.
//
//	gRPC handlers ──events──▶ mailbox ──▶ ┌────── Run ──────┐
//	committers, loaders ──────────────────▶│  core (guarded) │──effects──▶ committer   one a database
//	                                       └───────┬─────────┘        ├──▶ loaders     a few a database
//	                                               │                  ├──▶ epoch reader one a database
//	                       snapshot (atomic) ◀─────┘                  ├──▶ outboxes    one a session
//	                                                                  └──▶ answers     one channel a call
//
// Run takes what waits in the mailbox, at most a slice of it, gives it to the core, and then takes the
// effects of all of it at once: under load that is what makes batches, with no timer. It never waits for
// a channel, a lock that somebody holds over I/O, or the store. Whoever posts may wait: the mailbox is
// bounded, and a full one holds back the gRPC handlers, which holds back their peers.
//
// # The guard
//
// The core is entered in one place. A panic there costs the partition that was in hand: its state is
// dropped, the task in hand is noted as a suspect, and whoever owns the key acquires it again, after a
// pause. A task that was in hand twice is handed over as a suspect then, and the core ends it as a dead
// letter, unseen. Where the core can't say what was in hand, or can't even drop it, a new core
// begins with nothing: sessions are closed, callers get an unknown outcome, all partitions are acquired
// again. The node lives on either way.
//
// # Time
//
// Config.Now gives the time: it counts suspends. A commit's or epoch read's sentAt is taken before its
// call, so that what it proves is never later than the truth (R8).
package loop
