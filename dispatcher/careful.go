package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/headrace/headrace/internal/telemetry"
	"github.com/headrace/headrace/shard"
	"github.com/headrace/headrace/shard/member"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// How suspects are tried.
const (
	trialTime = 100 * time.Millisecond // until the next group follows: whoever kills does it by then
	aloneTime = 250 * time.Millisecond // the same for a single one that an owner has died with before
	passAfter = 5 * time.Second        // after the opening and the last trial: others need not wait any longer
)

// careful guards a quarantined partition (docs/adr/0025): each task that was read is noted in the registry before
// the core gets it, and suspects come group by group. What this node dies of is in the notes then.
type careful struct {
	partition uint32
	keys      keys
	log       *zap.Logger

	turn  chan struct{} // capacity 1: one Admit at a time; guards following
	hands shard.Hands
	group int
	next  time.Time // the end of the trial

	mu   sync.Mutex // guards following
	busy time.Time  // the end of the last trial; zero: none yet
}

// openCarefully reads what the last owner left, and writes what this one begins with.
func (o *owners) openCarefully(ctx context.Context, id uint32) (*careful, error) {
	was, err := o.keys.Hands(ctx, id)
	if err != nil {
		return nil, err
	}
	node := o.keys.Tenure(id).Node
	g := &careful{partition: id, keys: o.keys, log: o.log.With(telemetry.Partition(id)), turn: make(chan struct{}, 1), hands: was.Open(node)}
	g.group = g.hands.Group()
	if err := g.note(ctx); err != nil {
		return nil, err
	}
	g.log.Warn("opens a quarantined partition with care", zap.Int("deaths", len(o.keys.Tenure(id).Deaths)),
		zap.Int("suspects", len(g.hands.Suspects)), zap.Strings("condemned", g.hands.Condemned))
	return g, nil
}

func (g *careful) note(ctx context.Context) error { return g.keys.SetHands(ctx, g.partition, g.hands) }

// recovered notes the tasks that the core handles with the opening, all at once, and returns those that are
// condemned.
func (g *careful) recovered(ctx context.Context, r *store.Recovered) ([]task.ID, error) {
	var ids []string
	for _, rows := range [][]*store.Task{r.Recorded, r.Cancels} {
		for _, t := range rows {
			ids = append(ids, t.ID.String())
		}
	}
	if len(ids) > 0 {
		g.hands.Begin(ids)
		if err := g.note(ctx); err != nil {
			return nil, err
		}
		g.tried(trialTime)
	}
	var condemned []task.ID
	for _, s := range g.hands.Condemned {
		id, err := task.ParseID(s)
		if err != nil {
			return nil, fmt.Errorf("read the condemned: %w", err)
		}
		condemned = append(condemned, id)
	}
	return condemned, nil
}

// Admit is loop.Guard's.
func (g *careful) Admit(ctx context.Context, rows []*store.Task) (int, error) {
	select {
	case g.turn <- struct{}{}:
		defer func() { <-g.turn }()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	if err := g.endTrial(ctx); err != nil {
		return 0, err
	}
	ids := make([]string, len(rows))
	for i, t := range rows {
		ids[i] = t.ID.String()
	}
	after := g.hands
	n := after.Take(ids, g.group)
	before := g.hands
	g.hands = after
	if err := g.note(ctx); err != nil {
		g.hands = before
		return 0, fmt.Errorf("note what is in hand: %w", err)
	}
	if len(after.Trial) > 0 {
		wait := trialTime
		if after.Alone > 0 {
			wait = aloneTime
		}
		g.tried(wait)
	}
	return n, nil
}

func (g *careful) tried(wait time.Duration) {
	g.next = time.Now().Add(wait)
	g.mu.Lock()
	g.busy = g.next
	g.mu.Unlock()
}

// endTrial waits for the end of the trial, if there is one, and clears its tasks.
func (g *careful) endTrial(ctx context.Context) error {
	if len(g.hands.Trial) == 0 {
		return nil
	}
	timer := time.NewTimer(time.Until(g.next))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	before := g.hands
	g.hands.Clear()
	if err := g.note(ctx); err != nil {
		g.hands = before
		return fmt.Errorf("note the end of a trial: %w", err)
	}
	return nil
}

// passed waits until nothing was in trial for passAfter.
func (g *careful) passed(ctx context.Context, opened time.Time) error {
	for {
		g.mu.Lock()
		until := opened
		if g.busy.After(until) {
			until = g.busy
		}
		g.mu.Unlock()
		if time.Since(until) >= passAfter {
			break
		}
		if err := sleep(ctx, time.Until(until.Add(passAfter))); err != nil {
			return err
		}
	}
	select {
	case g.turn <- struct{}{}:
		defer func() { <-g.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := g.endTrial(ctx); err != nil {
		return err
	}
	return g.keys.Passed(ctx, g.partition)
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// settle ends the tenure of a partition once it was owned for shard.TenureCalm; a quarantined one passes before, and
// so does one over which the core panicked. It ends with ctx, or with unsettle.
func (o *owners) settle(ctx context.Context, id uint32, g *careful) {
	o.unsettle(id)
	caught := o.caught[id]
	if g == nil && !o.keys.Tenure(id).Open && caught.Panics == 0 {
		return // claimed by rules of before
	}
	one, cancel := context.WithCancel(ctx)
	o.settled[id] = cancel
	opened := time.Now()
	o.wg.Go(func() {
		defer cancel()
		try := func(what string, f func(context.Context) error) bool {
			for {
				err := f(one)
				if err == nil {
					return true
				}
				if one.Err() != nil || errors.Is(err, member.ErrNotHeld) {
					return false
				}
				o.log.Warn(what, telemetry.Partition(id), telemetry.Err(err))
				if sleep(one, time.Second) != nil {
					return false
				}
			}
		}
		if g != nil {
			if !try("a quarantined partition passes", func(ctx context.Context) error { return g.passed(ctx, opened) }) {
				return
			}
			g.log.Info("a quarantined partition has passed: nothing that it holds kills this node at once")
		}
		if caught.Panics > 0 {
			caught.Passed = true
			if sleep(one, time.Until(opened.Add(passAfter))) != nil ||
				!try("a partition passes after a panic", func(ctx context.Context) error { return o.keys.Caught(ctx, id, caught) }) {
				return
			}
		}
		if sleep(one, time.Until(opened.Add(shard.TenureCalm))) != nil {
			return
		}
		if !try("end a tenure", func(ctx context.Context) error { return o.keys.Calm(ctx, id) }) {
			return
		}
		if g != nil {
			o.engine.Guard(id, nil)
			g.log.Info("a partition is quarantined no more")
		}
		if caught.Panics > 0 {
			o.inbox.put(said{calm: caught.Panics, partition: id})
		}
	})
}

func (o *owners) unsettle(id uint32) {
	if cancel := o.settled[id]; cancel != nil {
		cancel()
		delete(o.settled, id)
	}
}
