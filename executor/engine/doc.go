// Package engine is the executor's side of the protocol between nodes and executors: which pushes it
// takes, when it cancels by itself, what it keeps and says again until the owner has it on disk.
//
// It is a pure state machine: no goroutine, clock, lock or I/O. The executor runtime drives it in
// production, internal/sim with a seed. Each method takes the time it needs; what is to be done
// outside collects as Effects, what is to be sent is fetched by Message when the wire has room, so
// that a slow stream makes larger batches instead of a longer queue.
//
// Goals: no push starts twice, late, or for an owner that is not the newest one (R4, R5); a try whose
// owner can't be reached any more ends before the owner may count it lost (R7, R9); an outcome is
// kept until it is on disk or void (R15); no more handlers run than there are slots.
//
// Not here: running handlers, connections, who owns what (the directory), what an error means.
//
// The life of a try, and what the owner hears of it:
//
//	        push           Ended             Committed, void
//	(none) ─────▶ running ───────▶ ended ──────────────────▶ done ─▶ forgotten once a
//	   │   ack       │    outcome          (nothing)                 late copy would be stale
//	   ▼             │ Committed, void: cancelled as stale,
//	refused          └ on Ended straight to done, no outcome
//
// Sessions. There is at most one to each node; opening a second replaces the first, and what is still
// read from that is ignored. The first message of a session holds a hello with a claim for each try
// held. A welcome is a question: "I own these partitions under these epochs, what do you hold?" It
// raises the known epochs and is answered by a hello with claims, in one step, unless the last hello
// of this session already answered for those epochs. So a node knows that it has an executor's answer
// for a partition when a hello names an epoch of that partition that is not below its own.
//
// Failure. A session that ends takes nothing with it: tries run on, outcomes wait, and the hello to
// the next owner claims both. When no owner answers, the orphan timer of each try decides.
//
// Every method runs in O(what it was given), but for a hello (all tries) and, while beats are not
// answered, a look at all tries four times a second. Map order decides nothing.
package engine
