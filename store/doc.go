// Package store is the durable contract in words and types. Three packages implement it:
// pgstore (Postgres), filestore (the embedded file) and memstore (a plain map, the oracle). One
// conformance suite, storetest, holds them to the same behaviour.
//
// # Who writes
//
// A partition's owner is its only writer, inserts included. It writes through Commit: one batch for
// all its partitions in one database, each partition's part fenced by the owner's epoch and answered
// on its own. A part whose epoch is not the partition's current one is refused with ErrFenced and
// leaves nothing behind; the other parts commit in the same call. What Commit answered nil for is on
// disk: it survives kill -9 and power loss.
//
// # Two places for a task
//
// The hot rows hold only what is not finished. A task that ends moves to history in the same commit.
// A hot row is in exactly one of two indexes: the ready index of its flow, in key order (see Key), or
// the due index of its partition, by due time, while it waits for its time. There is no claim: a
// running task's row stays where it was. What runs is known by the owner's memory and the executors;
// a try that has run for a second, or belongs to an exclusive function, has a record on its row.
//
// # What a read costs
//
//	Recover      functions, records and pending cancels of a partition, its counters: no scan of hot rows
//	Flows        one entry for each flow with ready rows
//	Ready        at most 2 rows read for each row returned, behind a cursor
//	Due          the same, behind a cursor
//	Get          at most 3 probes
//	ByClientID   2 probes
//	Request      at most 12 probes; asked only for a submit that is marked as a retry
//	List         one index range; at most 2 rows read for each returned where the filter is indexed
//
// Counts are counters that ride in the commits; nothing counts by scanning.
package store
