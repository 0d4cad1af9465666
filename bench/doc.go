// Bench-peers measures Headrace beside River and Asynq: one machine, one run, turn by turn, the same
// payload, a handler that does nothing, and what each says of durability beside its figures. `make
// bench-peers` builds and starts it; it is a module of its own, so that nobody who uses Headrace gets the
// peers' libraries.
//
//	main.go      flags and the run's order        measure.go   one measurement, CPU of others, medians
//	headrace.go  `headrace bench`, its JSON       page.go      docs/benchmarks.md
//	river.go     River on the same Postgres       results.go   results/latest.json
//	asynq.go     Asynq on a Redis                 bars.go      design's bars, row by row
//	servers.go   the Postgres and the Redis       busy.go      what else the machine does
//	load.go      the ways to call a peer
//
// Each round has every system's turn of each kind of load, in an order that rotates from round to round:
//
//	cycle   in batches, or as the system does it best: stored, run, and stored as done
//	single  submits one by one; each is durable before it returns
//	light   50 tasks a second: how long from the submit to the handler
//
// and after the rounds Headrace on Postgres is measured with five million tasks waiting, between two
// measurements with none. Figures are medians over the rounds.
//
// The peers run at the settings that were best for them in our study, and for the light load also at their
// defaults. They are called in this process, without a network hop of their own; Headrace is called over
// gRPC from a process of its own. CPU is of all processes that take part.
package main
