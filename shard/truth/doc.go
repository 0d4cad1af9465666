// Package truth stands between a node and its registry, and notices when the registry is not what it was: restored
// from an older snapshot, or lost. The databases are the truth (docs/adr/0001), so they remember what the registry
// held.
//
// # The configuration's version
//
// Configuration is every key below Root but for what membership writes by itself: the catalogue, placements, rules,
// the secret. Each transaction that changes some of it also writes one key, whose count of writes is the version:
// no condition, so no two writers ever wait for each other. Gate adds that write; nobody else has to know of it.
//
//	version = config/base (0 if it is not there) + writes of config/changes
//
// # Who knows it
//
//	registry ──watch──▶ leader ──≤ 0.2 s──▶ first database: the changed keys, and the version (compare-and-set)
//	                           └──────────▶ every other database: the version
//
// Behind, not before the answer: a change whose writer, leader and registry all vanish within that time is lost
// without a trace. Nothing else is.
//
// # Comparing
//
// A node compares at its start, whenever the registry was out of reach or its revision went back, before it hands
// out a list of configuration, and every half minute. It reads the databases first, so that a version that grows
// meanwhile does not look like one that went back.
//
//	          registry ≥ all databases                   registry < a database, or than this node has seen
//	unsure ───────────────────────────▶ agreed ◀───────────────────────────────────────────────────▶ held
//	(held)                                                     accept-restore
//
// While it is held a node pushes nothing, and changes no configuration; submits are stored, what runs goes on, and
// partitions change owner as ever. A person then says which is true, the registry or the copies (Accept).
//
// A watch of a registry that was restored can wait for ever for a revision that is to come again. So all watches
// end when the revision went back or the registry was away: whoever watches lists again.
package truth
