// Package chaos breaks a whole cluster while it works: nodes, etcd, databases, executors and the network between
// them, as real processes (internal/localcluster). Each row ends with a ledger (internal/ledger): accepted, terminal
// by state, starts by task, duplicates; and prints how long what took.
//
//	make chaos                          all rows, long
//	make chaos ROW=TestKillOwner        one
//	go test ./internal/chaos            the short rows, which `make test` runs
//
// A row is a test that makes a world, lets work flow, breaks something, measures, mends it, and settles the books:
//
//	w := newWorld(t, localcluster.Options{})
//	w.worker("x1", 100)
//	f := w.flow(500, w.c.Nodes, nap)
//	take := w.watch(w.c.Nodes[0])
//	take.broken(w.c.Nodes[0].Kill)
//	take.opened(w.ttl + 1500*time.Millisecond)
//	f.stop()
//	w.settle(time.Minute)
//
// Bounds are those of the product's promises, not of the machine; what is counted from the moment of the fault
// includes that the fault is noticed. All times are of one machine's clock.
package chaos
