// Package memshard is a registry in memory that keeps the same promises as etcd as far as membership
// uses them (member.KV): revisions, conditional transactions, leases, watches. It is shardtest's second
// subject, and what tests and simulations of whole clusters run on: all its waits are channels and
// timers, so it works in a testing/synctest bubble, where a lease runs out in no time.
//
// One Registry stands for the etcd cluster; each node has a Conn of its own. The switches are on
// both: Conn.Cut and Heal, Conn.Delay, Registry.Stop and Start (an outage for all), Registry.Expire.
//
// Nothing is random and no map order shows: what happens depends on the order of the calls only.
package memshard
