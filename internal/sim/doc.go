// Package sim is the deterministic simulation of a small cluster: the real core of each node, the real
// protocol engine of each executor and the map store, on one goroutine, in virtual time, from one seed.
//
// The world plays everything that the shells, the network, etcd and the database do around them: it
// delivers messages late, loses them, cuts streams, stops and kills processes, answers commits slowly,
// with an error or not at all, moves partitions, and lets submitters try again. All of it is drawn from
// the seed, so that a seed is a story that can be told again, line by line.
//
//	 any node is the door        messages, each direction in order
//	client ───────────────▶ node ◀──────────────────────────────▶ executor
//	        answers may be    │ core.Core, ownership.Table           │ engine.Engine
//	        lost; nodes ask   │ ownership.Acquire (R10)              ▼
//	        each other        ├──▶ registry: leases, keys,        handlers: succeed, fail, hang,
//	                          │    watches that are late             throttle, ignore their cancel
//	                          └──▶ memstore: commits, loads, epochs
//
// What the real thing does with goroutines is a model here: the registry and a node's membership follow
// the rules of shard/member and use its assignment; what a node does with what it wins and loses is
// the code that runs in package dispatcher. An acquisition is a coroutine (iter.Pull) that stops at each
// piece of I/O until the world answers.
//
// Beside the world stands the oracle (oracle.go): it sees every row that reaches the store, every start
// and end of a handler, every answer, and knows at each step what takeover.md allows. It shares no
// code with the core.
//
// A plan (plan.go) is drawn first: how many nodes, executors, partitions and tasks, which kinds of
// faults and how often. Faults end at a moment of the plan; from then on everything must come to rest in
// a bounded virtual time: every accepted task terminal, nothing held by an engine, nothing in use.
//
// What it does not cover: goroutines, gRPC, real stores, the shells' own code (package testcluster and
// the end-to-end tests do), placement, limits and fairness between tenants.
//
// Nothing here may read a clock, start a goroutine or depend on the order of a map.
package sim
