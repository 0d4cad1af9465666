package dispatcher

import (
	"context"
	"errors"
	"time"

	"github.com/headrace/headrace/dispatcher/loop"
	"github.com/headrace/headrace/internal/telemetry"
	"github.com/headrace/headrace/shard"
)

// What a node does about a panic that its loop caught: the partition is dropped and opened again after a back-off
// (package ownership); until that has gone well for passAfter it is listed as quarantined, and until it has for
// shard.TenureCalm there is an alarm. The other partitions hear nothing of it.

// noteMax bounds the note of a panic in the registry: it must not hold back the opening for long.
const noteMax = time.Second

// panicked takes the loss of a partition, if it was a panic. Run's goroutine only.
func (o *owners) panicked(id uint32, reason error) {
	if !errors.Is(reason, loop.ErrPanic) {
		return
	}
	c := o.caught[id]
	c.Panics++
	c.Task, c.Passed = "", false
	if e := (*loop.PanicError)(nil); errors.As(reason, &e) && !e.Task.IsZero() {
		c.Task = e.Task.String()
	}
	o.caught[id] = c
	o.alarm(id, c.String())
}

// uncaught forgets the panics over a partition: it is calm, or somebody else's. Run's goroutine only.
func (o *owners) uncaught(id uint32) {
	if o.caught[id].Panics > 0 {
		delete(o.caught, id)
		o.alarm(id, "")
	}
}

// noteCaught tells the registry, for the list of partitions. Nothing else hangs on it.
func (o *owners) noteCaught(ctx context.Context, id uint32, c shard.Caught, pause time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, noteMax)
	defer cancel()
	c.Next = time.Now().Add(pause).UTC()
	if err := o.keys.Caught(ctx, id, c); err != nil {
		o.log.Warn("note a panic", telemetry.Partition(id), telemetry.Err(err))
	}
}
