// Package pressure decides who may submit how much: it reads what a whole cluster saw in the last quarter of a second,
// and names the tenants that are limited, to how much, and why. Each node decides by itself from the same reports,
// so there is no coordinator to lose; dispatcher/door asks, and enforces it.
//
// # Two reasons
//
// Shared pressure is what one tenant's submits cost others: commits that take long, queues before the commit or the
// loop, memory, the disk. It counts as overload only while it stands: the least value of an interval decides
// (as in CoDel, Nichols and Jacobson 2012), never a burst's. What waits in the store costs nobody else anything and is
// not part of it.
//
//	         least of 10 s ≥ 1                     least of 10 s ≥ 2
//	none ────────────────────────▶ soft ────────────────────────────▶ hard
//	 ▲                              │ ▲                                │
//	 └── most of 2 s < 0.5 ─────────┘ └── most of 2 s < 1 ─────────────┘
//
// At soft, those whose submits cost most are held to a weighted max–min share of 0.95 of what is being taken in, less what
// the others want; at hard everybody is, of 0.9. Nobody who wants less than his share is held. Held to less
// than was taken in, the pressure falls, step by step.
//
// Drain time is a tenant's own: his ready tasks over the rate at which they finish. It is held against his drain_max and
// nobody else's: an overnight batch is accepted whole. Near drain_max he is held to the rate at which his tasks
// finish and to what room is left; that is the share that the scheduler gives him. A tenant whose tasks do not
// finish at all (no executor) has no drain time: his hard caps bound him.
//
// A limit goes when its reason goes, or when its tenant has submitted little for two intervals.
//
// Pure: the caller passes the time.
package pressure
