// Package dispatcher is a node: it puts the parts together, in order, and takes them apart in order.
//
//	          data directory (lock, store, etcd)        or a store and a registry from outside
//	                   │
//	member ──won, lost──▶ owners ──acquired, drop, release──▶ loop ◀──▶ api, push ◀── gRPC
//	  ▲                    │  (R10: look, raise, look, load)   │
//	  └──── give back ◀────┴────────── lost, released ◀─────────┘
//
// # Start
//
// The listeners are bound first, so that a taken port costs nothing. Then the store (which locks the
// directory), etcd, the loop, the membership. A partition that is won is acquired, and served from then on;
// the grace of a takeover holds back its old tasks, not its new ones. The node is ready once it serves
// every partition that the leader wants it to have.
//
// # Stop
//
// When Run's context ends: health says NOT_SERVING, new calls are refused and waits are ended, executors are told
// that the node goes away, every partition is released (R13: what runs is recorded, and goes on at
// the executors), its key is given back, sessions are ended, calls under way get two seconds, the lease is
// given back, the files are closed. Config.Drain bounds the whole but for those two seconds.
//
// # Failure
//
// A partition whose commit is fenced, unknown or panicked is lost by the core and acquired again while its
// key is held. An etcd that is gone stops nothing but changes. A loop that has ended ends the node.
package dispatcher
