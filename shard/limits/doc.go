// Package limits keeps what operators say of adaptive limits, and the limits that users set, in the registry, and gives each
// node all of it in memory. Who acts on it is dispatcher/core.
//
// Nodes hear of a change by a watch, and list everything once a minute. A limit that is heard of late is no harm, so
// that, unlike for pauses, nobody waits for a change; but a new owner pushes nothing before it has once read the limits that users
// set (Known). News are ordered by the key's revision; a registry whose revision has
// gone back was restored, and a list is all there is then.
//
// # Keys
//
// Under the prefix, values JSON:
//
//	<tenant>/limits   {"limits": [{downstream, min, max, reason, at}]}
//	<tenant>/bounds   {"bounds": [{function, concurrency, rate, burst, reason, at}]}; function "": of the tenant
package limits
