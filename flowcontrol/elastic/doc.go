// Package elastic says how many executors a pool should have, from what waits, what comes in, how long a try takes and
// what its downstreams bear.
//
//	slots     = λ·S + B·S/T    λ arrivals a second, S seconds of a try, B ready tasks, T the time to drain them in
//	          ≤ L              where downstreams throttle: more executors would only be throttled
//	          ≥ in flight      what runs keeps its slots
//	executors = ⌈slots / (c·u)⌉    c slots of an executor, u the share of them that is meant to be in use
//
// The rates are means that forget with a time constant of a minute (Meter). S counts as a second until 20 tries have
// ended. Where a try takes longer than T, no more slots are asked for than there are tasks. A pool in which nothing
// waits and nothing runs needs no executor, whatever came in lately.
//
// Hold is what keeps a number of executors from flapping: it grows when the need is a tenth above what they have, and
// falls only to the highest need of the last while.
//
// It knows nothing of executors' names or of who starts them. Pure: no clock, lock or goroutine.
package elastic
