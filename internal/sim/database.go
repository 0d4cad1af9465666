package sim

import (
	"context"
	"fmt"
	"time"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/store"
)

var background = context.Background()

// storeDelay draws how long the database takes for something, and whether a node reaches it at all. What
// an isolated node has sent either ends with an error or arrives when the isolation is over.
func (n *node) storeDelay(db core.Database, mean time.Duration) (d time.Duration, ok bool) {
	w := n.w
	d = w.around(mean)
	if n.pauseAmid > 0 && w.chance(4) {
		n.pauseNow()
	}
	if !w.calm && w.slowUntil[db] > w.now {
		d += w.slowUntil[db] - w.now
	}
	if n.withoutStore() {
		if w.chance(2) {
			return w.between(0, 2*time.Second), false
		}
		d += n.noStore - w.now
	}
	return d, true
}

// pauseNow stops the node for as long as a fault wants it to be stopped amid an exchange.
func (n *node) pauseNow() {
	if n.pauseAmid > 0 {
		n.w.pause(&n.process, n.pauseAmid)
		n.pauseAmid = 0
	}
}

// commit sends a batch to the database and brings the answer back, if there is one. A batch may be held up on its
// way, for longer than its node is the owner, or even lives; and an answer that nobody knows the outcome may come
// before the outcome.
func (n *node) commit(c *core.Commit) {
	w, life, sentAt := n.w, n.life, n.clock(n.w.now)
	w.log(n.name, "commit", "%s", batchText(c.Batch))
	late := time.Duration(0)
	answer := func(rs []store.PartResult, err error) {
		w.in(&n.process, life, late+w.around(time.Millisecond), func() {
			n.call("committed", func(now time.Time) { n.core.Committed(now, sentAt, c, rs, err) })
		})
	}
	w.on(&n.process, 0, func() {
		d, ok := n.storeDelay(c.Database, w.plan.commit)
		if w.faulty(faultHeld) && w.chance(60) {
			held := w.between(0, 15*time.Second)
			if w.chance(2) {
				late = held
				w.log("db", "held", "the answer to %s, %v", n.name, held)
			} else {
				d += held
				w.log("db", "held", "a commit of %s, %v", n.name, held)
			}
			if w.faulty(faultNodePause) && w.chance(2) {
				w.pause(&n.process, held)
			}
		}
		w.after(d, func() {
			dead := !n.up || n.life != life
			switch {
			case !ok:
				answer(nil, fmt.Errorf("simulated: %w", store.ErrUnknown))
			case dead && w.chance(2):
				w.log("db", "vanished", "a commit of %s", n.name)
			case !w.calm && w.fullUntil[c.Database] > w.now:
				answer(nil, fmt.Errorf("simulated: %w", store.ErrFull))
			case w.faulty(faultUnknown) && w.chance(25):
				w.log("db", "unknown", "a commit of %s", n.name)
				switch w.rand.IntN(3) {
				case 0:
					w.apply(n, c.Batch)
				case 1: // while the next owner reads, or later
					w.after(w.around(w.plan.commit*4), func() { w.apply(n, c.Batch) })
				}
				answer(nil, fmt.Errorf("simulated: %w", store.ErrUnknown))
			default:
				answer(w.apply(n, c.Batch), nil)
			}
		})
	})
}

// apply is the moment at which a batch reaches the disk.
func (w *world) apply(n *node, b *store.Batch) []store.PartResult {
	rs, err := w.store.Commit(background, b)
	if err != nil {
		w.fail("commit to the map store: %v", err)
		return nil
	}
	for i := range rs {
		if rs[i].Err == nil {
			w.oracle.applied(&b.Parts[i], rs[i])
		} else {
			w.log("db", "refused", "%s: %v", n.name, rs[i].Err)
		}
	}
	return rs
}

func (n *node) load(l *core.Load) {
	w, life := n.w, n.life
	if l.Kind == core.LoadRequest && l.Epoch == 0 {
		n.elsewhere(l)
		return
	}
	w.on(&n.process, 0, func() {
		d, ok := n.storeDelay(l.Database, w.plan.commit)
		w.after(d, func() {
			a := core.LoadAnswer{Err: errDown}
			if ok {
				a = w.read(l)
			}
			if w.trace.on {
				w.log("db", "read", "for %s: %s", n.name, loadText(l, a))
			}
			w.in(&n.process, life, w.around(time.Millisecond), func() {
				n.call("loaded", func(now time.Time) { n.core.Loaded(now, l, a) })
			})
		})
	})
}

func (w *world) read(l *core.Load) (a core.LoadAnswer) {
	if w.badRead(5) {
		a.Err = fmt.Errorf("simulated: %w", errDown)
		return a
	}
	switch l.Kind {
	case core.LoadReady:
		a.Rows, a.More, a.Err = w.store.Ready(background, l.Partition, l.Flow, l.After, l.Limit, l.MaxBytes, l.Inline)
	case core.LoadDue:
		a.Rows, a.More, a.Err = w.store.Due(background, l.Partition, l.After, l.Until, l.Limit, l.MaxBytes, l.Inline)
	case core.LoadGet:
		t, err := w.store.Get(background, l.ID)
		if a.Err = err; err == nil {
			a.Rows = []*store.Task{t}
		}
	case core.LoadRequest:
		a.Request, a.Err = w.store.Request(background, l.Partition, l.Tenant, l.RequestID, w.time())
	default:
		w.fail("load of kind %d", l.Kind)
	}
	return a
}

func (n *node) epochRead(r *core.EpochRead) {
	w, life, sentAt := n.w, n.life, n.clock(n.w.now)
	w.on(&n.process, 0, func() {
		n.pauseNow()
		d, ok := n.storeDelay(r.Database, w.plan.commit/2+100*time.Microsecond)
		w.after(d, func() {
			var err error
			epochs := make([]store.Epoch, len(r.Partitions))
			if !ok {
				err = errDown
			}
			for i, p := range r.Partitions {
				if err != nil {
					break
				}
				if epochs[i], err = w.readEpoch(p); err != nil {
					break
				}
			}
			late := time.Duration(0)
			if w.faulty(faultHeld) && w.chance(40) {
				late = w.between(0, 15*time.Second)
			}
			w.in(&n.process, life, late+w.around(time.Millisecond), func() {
				n.call("epochs", func(now time.Time) { n.core.EpochsRead(now, sentAt, r, epochs, err) })
			})
		})
	})
}

// badRead draws whether a read fails.
func (w *world) badRead(oneIn int) bool { return w.faulty(faultRead) && w.chance(oneIn) }

func (w *world) readEpoch(p uint32) (store.Epoch, error) {
	if w.badRead(10) {
		return 0, fmt.Errorf("simulated: %w", errDown)
	}
	return w.store.Epoch(background, p)
}

// raise is the compare-and-set of the epoch. Its answer may get lost.
func (w *world) raise(n *node, p uint32, from store.Epoch) (store.Epoch, error) {
	e, err := w.store.Acquire(background, p, from)
	if err != nil {
		return 0, err
	}
	w.log("db", "raised", "partition %d to epoch %d by %s", p, e, n.name)
	w.oracle.raised(p, e, w.released(p) == e-1)
	if w.faulty(faultUnknown) && w.chance(10) {
		return 0, fmt.Errorf("simulated: %w", store.ErrUnknown)
	}
	return e, nil
}

// released returns the last epoch of a partition that was given back in order.
func (w *world) released(p uint32) store.Epoch {
	rec, err := w.store.Recover(background, p)
	if err != nil {
		w.fail("recover: %v", err)
		return 0
	}
	return rec.Partition.Released
}
