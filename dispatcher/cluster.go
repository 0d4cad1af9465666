package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/headrace/headrace/internal/grpcx"
	"github.com/headrace/headrace/internal/telemetry"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/shard"
	"github.com/headrace/headrace/shard/member"
	"github.com/headrace/headrace/shard/truth"
)

// peerDial is what connections to other nodes are dialled with; nil if there can be none.
func (n *Node) peerDial(sole bool) []grpc.DialOption {
	if sole {
		return nil
	}
	// A node that restarts is found again within a second: submits wait for it.
	opts := append(grpcx.DialOptions(0), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 2 * time.Second,
		}))
	if n.cfg.PeerDialer != nil {
		return append(opts, grpc.WithContextDialer(n.cfg.PeerDialer))
	}
	return opts
}

// healthy ties the lease to the loop's life: a node whose loop hangs loses its partitions to others.
func (n *Node) healthy() error {
	if late := n.clock.Now().Sub(n.loop.Turned()); late > n.cfg.TTL/2 {
		return fmt.Errorf("the loop has not gone round for %v", late)
	}
	return nil
}

// leads reports whether this node is the leader.
func (n *Node) leads() bool { return n.member.Directory().Leader == n.id }

// heldWhy is why nothing is pushed, for the loop.
func (n *Node) heldWhy() string {
	if h := n.gate.Held(); h != nil {
		return h.Reason
	}
	return ""
}

// registryHeld is told when pushes are held, and when they are not any more.
func (n *Node) registryHeld(h *truth.Held) {
	if h == nil || h.Unsure {
		n.alarms.clear(alarmRestored, "")
		return
	}
	n.alarms.raise(alarmRestored, "", h.Reason)
}

// spare reports whether a node of a cluster that is assigned nothing has taken its place all the same: it is a
// member, and every partition is somebody's. A node of the same address is a predecessor whose lease runs
// out: what it owned may be about to come here.
func (n *Node) spare() bool {
	d := n.member.Directory()
	self, in := d.Node(n.id)
	if !in || len(d.Partitions) == 0 || slices.ContainsFunc(d.Nodes, func(o shard.Node) bool { return o.ID != n.id && o.Addr == self.Addr }) {
		return false
	}
	return !slices.ContainsFunc(shard.IDs(d.Partitions), func(p uint32) bool {
		owner := d.Assigned[p]
		_, there := d.Node(owner)
		return !there && !d.Withheld(p) || owner == n.id // assigned here, though the owners have not heard of it yet
	})
}

// Pauses between two attempts to write the catalogue.
const growPause = time.Second

// grow adds partitions that a database's configuration wants and the registry does not have. They are never taken
// away. The leader does it, once every node knows the database. It is called by the owners' goroutine
// after each change of the directory and must not wait.
func (n *Node) grow(ctx context.Context) {
	d := n.member.Directory()
	if d.Leader != n.id || !n.dbs.opened() || n.growing.Swap(true) {
		return
	}
	// A sealed partition may get a task until its owner has let go of it.
	closing := slices.ContainsFunc(d.Partitions, func(p shard.Partition) bool {
		_, owned := d.Owners[p.ID]
		return p.State == shard.Sealed && owned
	})
	if done := n.grown.Load(); done != nil && !closing && slices.Equal(*done, d.Partitions) {
		n.growing.Store(false)
		return
	}
	for _, node := range d.Nodes {
		for _, name := range n.dbs.names() {
			if !slices.Contains(node.Databases, name) {
				n.log.Debug("not all nodes know the database yet: no partitions are added", telemetry.Database(name), telemetry.Node(string(node.ID)))
				n.growing.Store(false)
				return
			}
		}
	}
	n.owners.wg.Go(func() {
		defer n.growing.Store(false)
		for ctx.Err() == nil && n.member.Directory().Leader == n.id {
			added, err := n.addMissing(ctx)
			if err == nil {
				if added > 0 {
					n.log.Info("added partitions", zap.Int("partitions", added))
				} else {
					if n.grown.Store(nil); !closing {
						n.grown.Store(&d.Partitions)
					}
				}
				return
			}
			if !errors.Is(err, member.ErrConflict) && ctx.Err() == nil {
				n.log.Error("add partitions: trying again", telemetry.Err(err))
			}
			select {
			case <-time.After(growPause):
			case <-ctx.Done():
			}
		}
	})
}

func (n *Node) addMissing(ctx context.Context) (added int, err error) {
	ctx, cancel := context.WithTimeout(ctx, acquireMax)
	defer cancel()
	var failed error
	err = n.member.ChangePartitions(ctx, func(have []shard.Partition) []shard.Partition {
		var add []shard.Partition
		add, failed = n.dbs.missing(ctx, have)
		added = len(add)
		return add
	})
	return added, errors.Join(failed, err)
}

// told is what the peers are told of this node. It never waits: a database that hangs must not hold back how
// much waits here, which goes out in the same message.
func (n *Node) told(m *headracev1.Node) {
	if !n.asking.Swap(true) {
		n.wg.Go(func() {
			defer n.asking.Store(false)
			facts := &headracev1.Node{}
			n.self(facts)
			n.facts.Store(facts)
		})
	}
	if facts := n.facts.Load(); facts != nil {
		proto.Merge(m, facts)
	}
	m.Alarms = n.alarms.list() // as they are now: an alarm must not wait for the database that it is about
}
