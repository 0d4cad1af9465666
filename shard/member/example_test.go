package member_test

import (
	"context"
	"fmt"

	"github.com/headrace/headrace/shard"
	"github.com/headrace/headrace/shard/member"
	"github.com/headrace/headrace/shard/memshard"
)

// A node joins, wins its partition and acquires it in the order of takeover.md R10. With etcd only the
// registry differs: etcdshard.StartEmbedded(…).KV() or etcdshard.Dial(…).
func Example() {
	registry := memshard.New()
	defer registry.Close()

	m, err := member.New(member.Config{
		Node:       shard.Node{ID: member.NewID(), Addr: "127.0.0.1:7070"},
		Partitions: []shard.Partition{{ID: 0, Zone: "file"}}, // written if the registry has none
		Sole:       true,                                     // the data directory's lock is ours
	}, registry.Connect())
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()

	for e := range m.Events() { // the node: hand them to its loop
		switch e.Kind {
		case member.Won:
			// epoch, err := store.Acquire(ctx, e.Partition, seen)
			still, err := m.Holds(ctx, e.Partition)
			fmt.Println(e, "- still held:", still, err)
			// load, open; when a commit says ErrFenced: drop the state, m.Reacquire(e.Partition)
			stop()
		case member.Lost:
			// drop the partition's state, now
		case member.Unassigned:
			// hand over (R13), then m.Release(ctx, e.Partition)
		case member.Directory:
			// publish m.Directory() to executors and api
		}
	}
	fmt.Println(<-ended)
	// Output:
	// won 0 - still held: true <nil>
	// context canceled
}
