// Package core decides what a node does with its partitions' tasks: which run, in what order, where,
// what follows from their ends, and what a new owner may believe. It is a plain state machine beside
// the loop: no clock, lock, goroutine or I/O. Each method takes the time it needs; what must be done
// outside collects as Effects until Take. What it must obey is takeover.md, R1-R19; the comments here
// name the rule at the place that keeps it.
//
// # A task in memory
//
//	Submit ─▶ commit ─┬─▶ window ──push──▶ in flight ──outcome──▶ commit ─┬─▶ gone (history)
//	                  │     ▲   ▲                                         │
//	                  ├─▶ due ──┘   (near its time)                       ├─▶ due, window
//	                  │     ▲                                             │
//	                  └─▶ only in the store ◀── no room ──────────────────┘
//
// An item is one task in memory. Its row (item.t) is as the newest change has it, queued or stored;
// what people may see (item.disk) is as the last commit has it. Nothing leaves the core about a
// change before its commit is known.
//
// # Windows
//
// A lane is the part of a flow that one partition holds. Every ready row of the lane with a key up to
// its cursor is known in memory: in the window, in flight, or being decided. Rows behind the cursor
// are pulled when the window is half empty. The limits of Config hold for each lane; an empty lane
// may always hold one task, so that no tenant waits for another one's memory.
//
// A read runs beside commits, so its answer may be older than they are. Two lists make that safe:
// keys that were left to the store while it ran (nothing at or behind the smallest of them is taken
// from the answer) and sequence numbers that left memory (they are skipped). The due index is held in
// the same way, up to a time.
//
// # Order
//
// Executors that can run the same functions are a pool. The classes of tenants have its turns by stride,
// 16 : 4 : 1, tenants in a class by start-time fair queueing over slot-time, a tenant's bands by stride,
// its functions round robin, a flow by key. A flow is in there only while it may run, so nothing is
// skipped. Bounds, which order_test.go holds:
//
//   - a band that always waits has its turn after at most 20 (low) or 5 (normal) others of its tenant, 22 and 8 when
//     the others come and go: low has 4.76 % of its tenant's turns; classes the same in their pool;
//   - two tenants of a class that both wait differ by one largest task of each over their weights, and by what is
//     in flight; a light one beside F that flood M slots waits for F+1 ends;
//   - bands, priorities and deadlines of one tenant change nothing for any other;
//   - a function that costs several slots has a session kept for it when its turn comes (slots.go): it waits for the tries of
//     one executor, however many others cost less;
//   - in a flow, nothing is overtaken by what was due more than its priority in minutes later.
//
// # Work in slices
//
// Calls queue what they want to write; Take builds the commits and pushes, so a shell that handles a
// few events between two Takes gets larger batches. No call works on more than Config.Slice items;
// Next returns a past time while more is to be done.
//
// # What expires
//
// A task with a start TTL or a deadline expires on time while it is in memory. Behind a full window
// it expires when it is pulled, or by the sweep, which reads such lanes at most Config.Slice rows
// every 250 ms for each partition.
package core
