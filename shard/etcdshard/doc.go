// Package etcdshard is the registry that membership runs on in production: etcd, which is in here and
// nowhere else. It knows nothing of nodes and partitions; package member does, and names the keys.
//
//	Dial           a cluster's etcd, by its endpoints
//	StartEmbedded  an etcd of one member inside this process, in a data directory
//
// Both give a KV, and the code above is the same for both.
//
// # The embedded server
//
// It is an etcdserver without etcd's listeners: no port and no socket is opened, calls go straight to
// its API. Its data is small (quota 64 MB), compacted by itself, and worth little: what must not be lost is
// in the databases, epochs before all (docs/adr/0001), and etcd can be rebuilt from them. So a
// damaged directory is no reason not to start. It is moved aside, to <dir>.damaged-<time>, with one
// warning, and an empty one takes its place. Damage shows in one of four ways:
//
//   - the page check finds it: bbolt reads its file through mmap and trusts it, and a bad offset there
//     would be a fault that no recover catches, so the file's structure is walked first, on a copy in memory;
//   - etcd says so, by an error, or by a Fatal or Panic of its logger, whose hooks are ours: the goroutine ends
//     instead of the process;
//   - etcd panics while it opens its files;
//   - the process dies while etcd starts, by a panic in one of etcd's own goroutines: a marker beside the
//     directory (<dir>.starting) survives, and the next start takes it as damage. So does a kill -9 in that
//     fraction of a second; it costs nothing that matters.
//
// When etcd's logger says Fatal later on, the server is dead and the process is not: Failed tells it.
// The node goes on without etcd as it does in an outage, with an alarm.
//
// # Stopping
//
// Clients first, then the server: a watch that is open when the server closes holds it up for seconds.
// Embedded.Close does both in that order; call it after Member.Run has returned.
package etcdshard
