// Package member runs one node's membership: it joins the cluster, helps elect a leader, follows the
// leader's assignment by winning and giving back owner keys, and tells the node what it won and lost.
//
// It is written once, over a small key-value registry (KV): etcd through shard/etcdshard, memory
// through shard/memshard. So a test's cluster runs the code of a real one.
//
// It does not make anything safe. A key says who ought to write; the epoch in the partition's database
// says who may (docs/adr/0001). The node acquires in the order of takeover.md R10: Won → raise the
// epoch in the store → Holds again → load.
//
// # What one node goes through
//
//	           Grant, put members/<id>                  the registry says that the lease is gone
//	joining ───────────────────────────▶ member ────────────────────────────────────────▶ joining
//	   ▲  │ back-off, jittered           │    ▲       Lost for each partition, LeaseLost
//	   └──┘                     Isolated │    │ Reconnected
//	                                     ▼    │
//	                                    isolated      no keep-alive got through for a TTL
//
// An isolated node loses nothing by itself. When the registry is down for all, nothing can change
// owner, and the data plane goes on under fenced commits (design.md §5); when only this node is cut
// off, others take its keys after the TTL and raise the epochs, and its commits are refused. What
// ends at once is trust: see TrustBase. Only what the registry itself says makes a Lost: the
// lease is unknown to it, or the key is gone or another's.
//
// # What one partition goes through on a node
//
//	        Assigned                claim: key is absent             Unassigned
//	others' ───────▶ wanted ──────────────────────────────▶ held ─────────────▶ held, to be handed over
//	   ▲                ▲            Won                      │                         │
//	   │                └───────────────── Lost ──────────────┘                         │
//	   └────────────────────────────────────────────────────────────── Release, Lost ───┘
//
// Between two Won of a partition there is always exactly one Lost, whatever the reason; the one exception
// is a Won that Reacquire asked for, which is marked Again.
//
// # Keys
//
// All under the prefix, and all small; nothing is written per task or executor (see keys.go).
//
//	members/<id>        Node, on the member's lease
//	leader              the leader's id, on its lease
//	tenures/<partition> who opened it, and who died soon after (docs/adr/0025); on no lease
//	level               the feature level: what nodes may write
//	joins               the id of who joined last, so that a level is never raised past a newcomer
//	partitions          the catalogue
//	assignment          partition → node
//	owners/<partition>  the owner's id, on its lease
//
// and beside it, for nobody to watch,
//
//	<prefix>-epochs/<partition>  the highest epoch, for databases that are restored from a backup
//
// Each node has one lease, whatever it owns. Every write names what must still hold: the leader's writes
// the revision of its leader key and of what they replace, a claim that the key is absent, that the
// claimer is still a member and that the assignment is the one it read, a release the key's revision.
//
// # Goroutines
//
// Run owns four kinds, all ended when it returns: the session's loop (all state), the keep-alive (so that
// a slow write never delays it), the watch, and the pump of Events. Writes run beside the loop, at most
// one of a kind at a time, and come back to it as results.
//
// The keep-alive is our own, one call each third of the TTL, and not the registry client's: that one
// can die or hang without closing its channel, and it counts from the answer instead of the sending.
// The watch is a hint as well: everything is listed again every Resync.
package member
