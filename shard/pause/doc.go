// Package pause keeps every tenant's pause rules in the registry, and gives each node all of them in memory.
// What a rule means is decided in package task; who acts on it is dispatcher/core.
//
// # Who knows a rule when
//
// A rule is stored by a compare-and-set on its tenant's key. Nodes hear of it in three ways, whichever is first:
// the watch; the node that stored it, which tells all owners (Take); and, before a partition that was acquired
// pushes anything, a read that begins after its epoch was raised (Current). The last one makes it sure: a pause
// that was answered before a takeover holds after it.
//
// News are ordered by the key's revision, so a late one changes nothing. A tenant whose rules are all gone stays
// known with its revision until a list is newer. A registry whose revision has gone back was restored:
// then a list is all there is.
//
// # Keys
//
// Under the prefix, values JSON:
//
//	<tenant>/rules   {"rules": [{function, band, reason, at, until}]}
//
// # Goroutines
//
// Run owns one, the watch. It is a hint: everything is listed again every minute.
package pause
