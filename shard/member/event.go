package member

import (
	"context"
	"fmt"
)

// Kind says what happened.
type Kind uint8

// The kinds of events.
const (
	// Won: this node holds the partition's key. Acquire: raise its epoch in the store, look again
	// (Holds), load (takeover.md R10).
	Won Kind = iota + 1
	// Lost: it does not hold the key any more (Reason says why). Drop the partition's state, push
	// nothing more of it.
	Lost
	// Assigned: the leader wants it here. The key is claimed as soon as nobody holds it.
	Assigned
	// Unassigned: the leader wants it elsewhere. If it is held: hand it over (R13), then Release.
	Unassigned
	// Directory: nodes, owners or partitions changed; see Member.Directory. Several become one.
	Directory
	// Joined: the node is a member under a new lease.
	Joined
	// LeaseLost: the registry forgot the node; after the Lost of all that it held. It joins again by itself.
	LeaseLost
	// Isolated: no keep-alive got through for a TTL. Nothing is lost yet that is known; raise an alarm.
	Isolated
	// Reconnected: the end of Isolated, under the same lease.
	Reconnected
)

func (k Kind) String() string {
	names := [...]string{"?", "won", "lost", "assigned", "unassigned", "directory", "joined", "lease_lost", "isolated", "reconnected"}
	if int(k) < len(names) {
		return names[k]
	}
	return names[0]
}

// Reason says why a partition was lost.
type Reason uint8

// The reasons of Lost.
const (
	Released  Reason = iota + 1 // by Release
	Taken                       // the key is gone or another's
	LeaseGone                   // with the lease
)

func (r Reason) String() string {
	names := [...]string{"?", "released", "taken", "lease_gone"}
	if int(r) < len(names) {
		return names[r]
	}
	return names[0]
}

// Event tells the node one thing.
type Event struct {
	Kind      Kind
	Partition uint32 // Won, Lost, Assigned, Unassigned
	Reason    Reason // Lost
	Again     bool   // Won: asked for by Reacquire, the key was held all the time
	Revision  int64  // Won: of the owner key; for diagnosis only, revisions go back when a registry is restored
}

func (e Event) String() string {
	switch e.Kind {
	case Won:
		if e.Again {
			return fmt.Sprintf("won %d again", e.Partition)
		}
		return fmt.Sprintf("won %d", e.Partition)
	case Lost:
		return fmt.Sprintf("lost %d %v", e.Partition, e.Reason)
	case Assigned, Unassigned:
		return fmt.Sprintf("%v %d", e.Kind, e.Partition)
	}
	return e.Kind.String()
}

// maxEvents bounds what the node has not read yet. The node's loop never blocks, so thousands behind
// mean that it is dead; Run then ends, and with it the lease.
const maxEvents = 100_000

// pump carries events to the node without ever making the sender wait.
type pump struct {
	in  chan Event // unbuffered; run is always ready to receive until its ctx ends
	out chan Event // read by the node; closed by run
}

func newPump() *pump { return &pump{in: make(chan Event), out: make(chan Event)} }

// run ends with ctx, or with an error when the node does not read.
func (p *pump) run(ctx context.Context) error {
	defer close(p.out)
	var queue []Event
	directory := false // one is in the queue
	for {
		var out chan Event
		var first Event
		if len(queue) > 0 {
			out, first = p.out, queue[0]
		}
		select {
		case <-ctx.Done():
			return nil
		case e := <-p.in:
			if e.Kind == Directory {
				if directory {
					continue
				}
				directory = true
			}
			if len(queue) == maxEvents {
				return fmt.Errorf("events: the node has not read the last %d", maxEvents)
			}
			queue = append(queue, e)
		case out <- first:
			if first.Kind == Directory {
				directory = false
			}
			queue = queue[1:]
		}
	}
}

// send gives an event to the pump; it is dropped when Run is ending.
func (p *pump) send(ctx context.Context, e Event) {
	select {
	case p.in <- e:
	case <-ctx.Done():
	}
}
