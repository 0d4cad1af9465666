// Package shares divides a limit among the nodes of a cluster, and never hands out more than there is.
//
// Each limit has a coordinator: the node that rendezvous picks of those that live. Four times a second each node
// reports to each coordinator what it uses and what waits (Report), and is told its shares (Answer). A node may start tries
// up to its share, for Life after it asked; without an answer it starts none. What runs goes on.
//
// # Why the limit holds
//
// The coordinator keeps for each node the most that it may have in use: the larger of what it last reported and what
// it was granted since. Only what all of these leave is granted, so that a share shrinks before another grows.
//
//   - A message that is lost, late or doubled changes nothing: reports are numbered, and until a node has reported that it
//     applies a smaller share the larger one counts.
//   - A node that is silent keeps what it has. One that has left the membership keeps it until every partition is open
//     again in reports that are newer: by then whoever owns a partition has counted what runs in it.
//   - A node that loses a partition goes on counting what ran there until a node has reported that partition open under
//     a newer epoch.
//   - A new coordinator grants nothing for one Life, nor before every member has reported, nor before every
//     partition is open in such a report: then it knows all that runs.
//   - A node that lost its membership and has another begins anew as such a coordinator, also if it noticed nothing of the time
//     between (it was paused): others coordinated then.
//   - Two nodes with different views of the membership or of the limits notice it by Report.Known: what a report leaves
//     out counts as nothing only if both speak of the same limits.
//
// A partition that nobody opens (its database is away) holds this up for SettleMax at most: executors end what nobody owns.
//
// Limits of starts a second are handed out as tokens, one a start, from one bucket at the coordinator; a node may keep them
// for Life. So within any time no more start than the rate and the burst allow in that time and one Life.
//
// Pure: the caller passes the time. No clock, lock or goroutine.
package shares
