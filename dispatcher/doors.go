package dispatcher

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/headrace/headrace/internal/telemetry"
	"github.com/headrace/headrace/shard/member"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// doors is what one acquisition asks of the membership and the store. The registry remembers the highest epoch of
// each partition, for a database that is restored from a backup: the epoch is raised above that, too, and the look
// after it notes the new one.
//
// Waiting tasks wait for it, so what does not depend on another answer is asked beside it: both epochs with the first
// look, and everything that is loaded with the second one. Acquire takes nothing of that before the look's answer, and all of it
// was asked for after the raise, which is what R10 is about: a commit of an older epoch can't come after it.
type doors struct {
	*owners
	ctx       context.Context
	partition uint32
	db        store.Store
	cares     bool        // the partition is quarantined
	careful   *careful    // nil: it is not, or not opened yet
	condemned []task.ID   // tasks that owners have died of
	above     store.Epoch // that the registry or an executor knows
	raised    store.Epoch // 0: not yet

	epoch   func() (store.Epoch, error) // in the database, once it has answered
	noted   func() (uint64, error)      // in the registry
	recover func() (*store.Recovered, error)
	flows   func() ([]store.FlowStat, error)

	began, looked, raisedAt, lookedAgain time.Time
}

func newDoors(ctx context.Context, o *owners, partition uint32, db store.Store, above store.Epoch) *doors {
	return &doors{owners: o, ctx: ctx, partition: partition, db: db, above: above, began: time.Now()}
}

// beside calls f on a goroutine of its own, whose end the owners wait for, and returns what waits for its answer.
func beside[T any](d *doors, f func() (T, error)) func() (T, error) {
	once := sync.OnceValues(f)
	d.wg.Go(func() { _, _ = once() })
	return once
}

func (d *doors) Look() error {
	look := d.keys.Holds
	if d.raised == 0 {
		d.epoch = beside(d, func() (store.Epoch, error) { return d.db.Epoch(d.ctx, d.partition) })
		d.noted = beside(d, func() (uint64, error) { return d.keys.Epoch(d.ctx, d.partition) })
	} else {
		look = func(ctx context.Context, id uint32) (bool, error) { return d.keys.Remember(ctx, id, d.raised) }
		d.raisedAt = time.Now()
		if d.cares = d.keys.Tenure(d.partition).Careful(); !d.cares { // care writes notes, which only the key's holder may
			d.recover = beside(d, d.load)
			d.flows = beside(d, func() ([]store.FlowStat, error) { return d.db.Flows(d.ctx, d.partition) })
		}
	}
	held, err := look(d.ctx, d.partition)
	if err == nil && !held {
		err = member.ErrNotHeld
	}
	if d.raised == 0 {
		d.looked = time.Now()
	} else {
		d.lookedAgain = time.Now()
	}
	return err
}

func (d *doors) Now() time.Time { return d.now() }

func (d *doors) Epoch() (store.Epoch, error) {
	noted, err := d.noted()
	if err != nil {
		return 0, err
	}
	d.above = max(d.above, noted)
	return d.epoch()
}

func (d *doors) Raise(from store.Epoch) (_ store.Epoch, err error) {
	if d.above > from {
		d.log.Error("a partition's epoch went back: its database was restored from a backup", telemetry.Partition(d.partition),
			telemetry.Epoch(from), zap.Uint64("known", d.above))
	}
	d.raised, err = d.db.AcquireAbove(d.ctx, d.partition, from, d.above)
	return d.raised, err
}

// Recover comes after the raise, and so does the look at the pause rules: one that was answered before by the owner
// before holds from the first push on.
func (d *doors) Recover() (*store.Recovered, error) {
	if d.recover != nil {
		return d.recover()
	}
	return d.load()
}

func (d *doors) load() (*store.Recovered, error) {
	rules := beside(d, func() (struct{}, error) { return struct{}{}, d.rules(d.ctx) })
	if d.cares {
		g, err := d.openCarefully(d.ctx, d.partition)
		if err != nil {
			return nil, err
		}
		d.careful = g
	}
	r, err := d.db.Recover(d.ctx, d.partition)
	if err == nil && d.careful != nil {
		d.condemned, err = d.careful.recovered(d.ctx, r)
	}
	if err == nil {
		_, err = rules()
	}
	return r, err
}

func (d *doors) Flows() ([]store.FlowStat, error) {
	if d.flows != nil {
		return d.flows()
	}
	return d.db.Flows(d.ctx, d.partition)
}

// stages say where the time of an acquisition went.
func (d *doors) stages() []zap.Field {
	return []zap.Field{zap.Duration("look", d.looked.Sub(d.began)), zap.Duration("raise", d.raisedAt.Sub(d.looked)),
		zap.Duration("look_again", d.lookedAgain.Sub(d.raisedAt)), zap.Duration("load", time.Since(d.lookedAgain)), telemetry.Took(time.Since(d.began))}
}
