// Package shard decides, and only decides: which partitions a tenant may use (its shuffle shard),
// which of them a submit should try, and which node ought to own which partition. It also holds the
// nouns of membership. It is pure: no clock, lock, goroutine or I/O.
//
// # Three questions, three answers
//
//	tenant → partitions   Place, Choose   zone-interleaved rendezvous; the outcome is stored as a Placement
//	request → 2 of them   Candidates      rendezvous of the request id over the placement's partitions
//	partition → node      Assign          sticky, moves as few as can be; the elected leader runs it
//
// The members of a placement are stored, not recomputed: a new partition or a changed weight moves
// nobody until somebody writes a new placement. What Choose gives is stable all the same, so that a new
// placement differs from the old one as little as can be:
//
//   - k members are a prefix of k+1 members: growing keeps the old ones;
//   - one more partition changes at most one member of a shard, one less changes only its holders;
//   - zones differ by at most one member while all of them still have partitions. A zone is a failure
//     domain, that is a database.
//
// # Safety is elsewhere
//
// An assignment is a wish and an owner key in etcd is liveness. Neither makes it safe to write: the
// epoch in the partition's own database does (docs/adr/0001). So nothing here needs to be right at
// the same moment on two nodes.
//
// The hash is frozen (testdata/golden.txt): another one would reshuffle every tenant.
//
// The packages below: member runs one node's membership, written once; etcdshard and memshard are
// what it runs on; shardtest holds both to the same behaviour.
package shard
