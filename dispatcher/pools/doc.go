// Package pools knows the executor pools of the whole cluster: what waits for each, which executors it has, how many it
// should have and why (flowcontrol/elastic), and which of them is to leave first.
//
//	core.Loads ──▶ Step, once a second ──▶ Stats, told to the peers with the statistics
//	                 ▲        │
//	     the peers' Stats     ▼
//	                        View ──▶ PoolService, the KEDA scaler, /metrics
//
// Every node measures what it owns, and adds up what all nodes that own something have told: each has the same
// picture, a second old. Means (arrivals, time of a try) are made where the tasks are, and begin anew with a new owner;
// how many executors a pool had lately is remembered by each node that is asked.
//
// # What is a pool
//
// The executors that run the same functions, as in dispatcher/core; its name is theirs joined by "+". A function that
// several pools run is divided among them by their slots. One that no executor runs is a pool of its own, without
// executors. How many slots an executor has is remembered after the last one is gone.
//
// # Limits
//
// A node tells of at most 1,000 functions, those with most, of 2,000 executors, and of pools that have 50,000 names of functions
// together, 1,000 of each, those with few first: what runs in the others seems to have no executor. Stats that are older than 30 s count
// no more: View.Missing names the nodes, and who must not err for want of them (the scaler) refuses to answer.
//
// # Goroutines
//
// Run owns one, which calls Step. Views never change.
package pools
