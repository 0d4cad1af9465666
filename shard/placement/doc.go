// Package placement keeps every tenant's placement in the registry, and gives each node all of them as a
// snapshot in memory. What a placement is, and how one follows from another, is decided in package shard.
//
// # From a tenant to its partitions
//
//	          Of, unknown                 written, by whomever              Fit: a member drains
//	nothing ───────────────▶ computed ───────────────────────▶ stored ───────────────────────────▶ stored, version + 1
//	                            │                                 │  Change: somebody moves it        ▲
//	                            └── usable at once: the same      └──────────────────────────────────┘
//	                                on all nodes
//
// A submit waits for no write and causes none: the first one of a tenant queues it, and a placement that is
// computed meanwhile is the same on every node that has the same catalogue. Only client-given ids wait
// (Stored), once in a tenant's life: their database is settled by the write, and two nodes with different
// catalogues must not settle it twice.
//
// # Writes
//
// All are compare-and-set on the record's revision, so of two that write at once one wins and the other sees
// it. A node makes at most ten automatic ones a second; new tenants share one, up to 32. So a cluster
// of five stays within the 50 a second that a registry is good for. Moves are an operator's, few, and not
// counted. Each change of a stored placement writes its event in the same transaction.
//
// # Keys
//
// Under the prefix; values of tenants are shard.Placement.Encode, those of events JSON.
//
//	tenants/<tenant>   the record
//	events/<slot>      the newest 256 changes, by number modulo 256
//
// # Goroutines
//
// Run owns three kinds, ended when it returns: the loop, which alone replaces the snapshot; the watch; and at
// most one write. The watch is a hint: everything is listed again every five minutes.
package placement
