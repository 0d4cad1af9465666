// Package fairqueue decides whose turn it is.
//
// Queue is start-time fair queueing over tenants that share the slots of one executor pool. A tenant's
// next task starts at max(the queue's virtual time, where its last task ended); the smallest start is
// served, and its cost over the tenant's weight is added. So a tenant that was idle gets no credit for
// the time, and any two tenants that both wait differ by at most one largest task over their weights.
//
// Costs are expected slot-milliseconds and corrected once the real ones are known. Tags are integers,
// cost·2^20/weight with the remainder carried, so that no rounding makes a tenant drift: with float
// tags, a weight of 5 gave runs of 5, 6, 4 and 5.
//
// Stride shares turns 16 : 4 : 1, among the bands of a tenant or the classes of tenants. It is deterministic: in any 21
// turns in which all wait each gets its share exactly, where a lottery would leave low without a
// turn in 100 draws once in 130 times.
//
// Pure: no clock, lock or goroutine.
package fairqueue
