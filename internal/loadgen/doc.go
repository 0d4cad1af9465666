// Package loadgen loads a server through the public SDKs and measures what it does with it: submitters
// and an executor whose handler does nothing but count, in this process; the server is in another.
//
// One run goes through these phases:
//
//	backlog    tasks of a function that nobody runs are stored; they wait all the while
//	measure    submitters submit, in batches, one by one, or at a fixed rate; the executor runs
//	drain      until the server says that nothing of it waits or runs any more
//	verify     the server is asked what became of the tasks, one by one or by a sample
//
// Times are taken by this process' monotonic clock: a payload carries when its submit was sent, so a
// start is measured from there to the first line of the handler. CPU is that of both processes. What
// the generator itself costs a task is a few microseconds.
//
// Throttle, Noisy, Priority and Pressure are scenarios: each has executors and tenants of its own, and a report that ends in
// checks, which hold or don't.
package loadgen
