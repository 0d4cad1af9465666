// Package localcluster runs a whole cluster on this machine: etcd members, Postgres servers and nodes of
// Headrace, all of them real processes on loopback. `make cluster` is one for people, which goes on after the command;
// tests start one that ends with them, break it (kill -9, SIGSTOP, cut links) and mend it.
//
// All files are below one directory:
//
//	cluster.json   who belongs to it and at which addresses; written once
//	state.json     which processes run, by process id and start time; written before and after each start
//	bin/etcd       etcd's server, built from its Go module
//	e1 … db1 …     data of the etcd members and Postgres servers
//	n1.yaml …      configurations of the nodes
//	log/           what each process prints
//
// A process is ours only if its id and its start time are those in state.json, so nothing is ever sent to a
// stranger who got an old process id. Ports are below the range that the kernel gives to outgoing connections: a
// process that was killed finds its port free when it starts again.
//
// With Options.Proxied each node reaches every etcd member and every Postgres through a proxy of its own, and is
// reached through one that tells the other nodes from executors and clients; see Links. The package knows
// neither etcd's client nor a Postgres driver: it asks etcd's HTTP gateway, and psql.
package localcluster
