// Package peer joins the nodes of a cluster: it finds the owner of a partition, here or elsewhere, and asks
// it. The door (package api) talks to a Router as if one node owned everything.
//
//	api ──▶ Router ──here──▶ loop
//	           │
//	           └──elsewhere──▶ peer ──PeerService──▶ Service of the owner ──▶ its loop
//
// # Where a call goes
//
// The loop knows what it holds; for the rest the directory says who holds the key. Both may be late, and
// neither makes anything safe: an owner refuses what it does not own, and the caller looks again.
//
// # What a broken call means
//
// A call that was never sent has done nothing: it counts as "not the owner", and another may be asked. A
// submit whose answer got lost is answered core.ErrUnknownOutcome, so that the SDK sends it again, marked as
// a retry. A retry goes to the owner of the request's first candidate, which asks the owner of the second one
// (Elsewhere): the first has whoever retries at the same time, the second knows what is under way there
// and takes no first call of it from then on. Only if both have answered is anything inserted. So while
// one of the two has no owner a retry is answered UNAVAILABLE. A first call that is delayed so long that
// the second candidate has changed its owner after the look is not caught: such a message would have to
// survive the connection that its sender gave up, for longer than a takeover takes.
//
// # Connections
//
// One for each node in the directory, for all its calls, with keep-alive pings; it is closed when the node
// leaves, once the writes under way are answered, after a second at the latest: those that are not then have an unknown
// outcome. A stream of statistics runs in it: every 250 ms the peer's backlogs, which
// with our own sends since feed the choice between two candidates, how near it is to refusing and how fast it starts
// tries, for the answers to submits, and once a second what `node list` shows. What is older than two seconds is not
// shown as the present. Another carries all watches. A dead peer costs the calls to it and nothing else.
//
// # Partitions that are away
//
// A router notes which partitions took no submit lately, and prefers the other candidate (Pick). A submit that found no owner
// may be held until there is one (Hold): for 10 s at most, and up to 250 ms before the call's deadline, so that its
// caller hears that nothing was stored; the wait for a connection ends by then, too (ADR 19).
//
// # Shares of limits
//
// Shares asks the coordinators of the limits that users set for this node's part, and answers as one of them
// (flowcontrol/shares).
//
// # The roster
//
// Who may hold a push of this node is told to all that may take over from it, before the push (Roster). Each peer
// is polled for its own; what it said last ends the grace early when its partitions come here (ADR 24).
package peer
