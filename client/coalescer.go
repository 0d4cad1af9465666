package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/connectivity"
)

// A coalescer makes calls of many tasks out of submits of one task each. There is no timer: at most
// MaxInFlight senders call, and what arrives while they do gathers for the next one that is free. A
// submit that finds a free sender leaves at once.
//
//	                 taken by a sender               answered
//	queued (item) ─────────────────────▶ calling ─────────────────▶ over
//	   ▲                                  │ ▲ │
//	   └───── no server can have seen it ─┘ │ └─▶ waiting (batch): after a lost answer the same batch
//	                                        │       with the same id; after "not now" of its first call a
//	                                        └────── new one of those items, exactly when the server said
//
// A caller whose context ends leaves alone: its item stays in a batch that was sent and must stay the
// same, and leaves any other. A batch that nobody waits for is given up.
type coalescer struct {
	c       *Client
	senders sync.WaitGroup

	mu      sync.Mutex // guards following
	queue   []*item    // in order of arrival
	left    int        // of them, those whose caller has gone
	ready   []*batch   // waited long enough
	running int        // senders
	offline error      // why the last call could not be sent; nil once one was
	closed  bool
}

// submitOne submits one task through the coalescer.
func (c *Client) submitOne(ctx context.Context, t Task) (Submitted, error) {
	if ctx.Err() != nil {
		return Submitted{}, &unanswered{ErrNotSent, nil, ended(ctx)}
	}
	spec, err := c.spec(ctx, t)
	if err != nil {
		return Submitted{}, err
	}
	// The caller may change its own once its context has ended, while a batch still goes out for others.
	spec.Payload, spec.Labels = bytes.Clone(spec.Payload), maps.Clone(spec.Labels)
	it := &item{spec: spec, size: spec.SizeVT(), answer: make(chan Outcome, 1)}
	if !c.queue.add(it) {
		return Submitted{}, &unanswered{ErrNotSent, nil, ErrClosed}
	}
	select {
	case o := <-it.answer:
		return o.Submitted, o.Err
	case <-ctx.Done():
		return c.queue.leave(it, ended(ctx))
	case <-c.ctx.Done():
		return c.queue.leave(it, ErrClosed)
	}
}

// add queues it; false means that the client is closed.
func (q *coalescer) add(it *item) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	q.queue = append(q.queue, it)
	q.wake()
	return true
}

// wake starts a sender if one may run. The caller holds mu.
func (q *coalescer) wake() {
	if q.running < q.c.cfg.MaxInFlight && !q.closed {
		q.running++
		q.senders.Go(q.send)
	}
}

// send calls as long as there is something to send.
func (q *coalescer) send() {
	for unsent := 0; ; {
		if q.c.usable(q.c.ctx) != nil {
			return // closed: the callers know it by themselves
		}
		// Those who were just answered may come again at once: let them, then one call takes them all.
		runtime.Gosched()
		b, ctx := q.take()
		if b == nil {
			return
		}
		answers, nothing := q.c.call(ctx, b)
		q.settle(b, answers, nothing)
		if !nothing {
			unsent = 0
			continue
		}
		unsent++
		q.c.offline(q.c.ctx, unsent)
	}
}

// take returns what to send next, or nil if there is nothing: then the sender has ended. The context
// bounds the call.
func (q *coalescer) take() (*batch, context.Context) {
	q.mu.Lock()
	defer q.mu.Unlock()
	b := q.next()
	if b == nil {
		q.running--
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(q.c.ctx, q.c.cfg.CallTimeout)
	b.calling, b.cancel = true, cancel
	return b, ctx
}

// next removes and returns the next batch. The caller holds mu.
func (q *coalescer) next() *batch {
	for len(q.ready) > 0 {
		b := q.ready[0]
		q.ready = q.ready[1:]
		if b.live == 0 {
			continue
		}
		if !b.sent {
			b.items = slices.DeleteFunc(b.items, func(it *item) bool { return it.over })
		}
		return b
	}
	// Tasks with an id of their own may go to fewer places, and wait longer: others don't wait with them.
	n, size := 0, 0
	var items, rest []*item
scan:
	for _, it := range q.queue {
		switch {
		case it.over:
			q.left--
		case len(items) > 0 && (it.spec.ClientId == "") != (items[0].spec.ClientId == ""):
			if len(rest) == q.c.cfg.MaxBatch {
				break scan
			}
			rest = append(rest, it)
		default:
			if len(items) == q.c.cfg.MaxBatch || len(items) > 0 && size+it.size > q.c.cfg.MaxBatchBytes {
				break scan
			}
			items = append(items, it)
			size += it.size + 6 // tag and length
		}
		n++
	}
	q.queue = q.queue[n-len(rest):]
	copy(q.queue, rest) // they were among the n
	if len(q.queue) == 0 {
		q.queue = nil
	}
	if len(items) == 0 {
		return nil
	}
	b := newBatch(items)
	for _, it := range items {
		it.batch = b
	}
	return b
}

// settle takes the answers of a call of b.
func (q *coalescer) settle(b *batch, answers []itemAnswer, unsent bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	b.cancel()
	b.calling, b.cancel = false, nil
	q.offline = nil
	if unsent {
		q.offline = answers[0].outcome.Err
		if !b.sent {
			q.requeue(b)
		} else if b.live > 0 {
			q.ready = append(q.ready, b) // the sender waits for the connection
		}
		return
	}
	lost, after := false, time.Duration(0)
	for i, it := range b.items {
		if it.over {
			continue
		}
		a := answers[i]
		switch {
		case a.stored || a.verdict == refused:
			q.finish(it, a.outcome)
		default:
			lost, after = lost || a.verdict == ambiguous, max(after, a.after)
			it.last = a.outcome.Err
		}
	}
	switch {
	case b.live == 0:
	case lost:
		b.sent = true
		q.wait(b, max(after, backoff(b.tries)))
	case b.sent:
		q.wait(b, after)
	default:
		q.postpone(b, answers)
	}
}

// postpone handles the items of b that its only call refused for now; no others are left. Were there an
// earlier call without an answer, it could store them yet, and a new id would make a second task.
func (q *coalescer) postpone(b *batch, answers []itemAnswer) {
	var groups [][]*item // each with its pause; mostly there is one
	var pauses []time.Duration
	for i, it := range b.items {
		if it.over {
			continue
		}
		if q.c.cfg.FailOnBackpressure && answers[i].verdict == later {
			q.finish(it, answers[i].outcome)
			continue
		}
		g := slices.Index(pauses, answers[i].after)
		if g < 0 {
			g = len(groups)
			groups, pauses = append(groups, nil), append(pauses, answers[i].after)
		}
		groups[g] = append(groups[g], it)
	}
	for g, items := range groups {
		b := newBatch(items)
		for _, it := range items {
			it.batch = b
		}
		q.wait(b, pauses[g])
	}
}

// requeue puts items that certainly never left back to where they came from.
func (q *coalescer) requeue(b *batch) {
	var items []*item
	for _, it := range b.items {
		if !it.over {
			it.batch = nil
			items = append(items, it)
		}
	}
	q.queue = append(items, q.queue...)
}

// wait makes b ready after d.
func (q *coalescer) wait(b *batch, d time.Duration) {
	b.timer = time.AfterFunc(d, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		b.timer = nil
		if b.live > 0 {
			q.ready = append(q.ready, b)
			q.wake()
		}
	})
}

// finish answers the caller of it.
func (q *coalescer) finish(it *item, o Outcome) {
	it.over = true
	it.batch.live--
	it.answer <- o // has room
}

// leave is called by a caller that waits no longer, because of end. It returns the answer if there is
// one by now, and otherwise what is true of the task.
func (q *coalescer) leave(it *item, end error) (Submitted, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if it.over {
		o := <-it.answer
		return o.Submitted, o.Err
	}
	it.over = true
	err := &unanswered{ErrNotSent, it.last, end}
	b := it.batch
	if b == nil {
		if q.left++; q.left > len(q.queue)/2 {
			q.queue = slices.DeleteFunc(q.queue, func(it *item) bool { return it.over })
			q.left = 0
		}
	} else {
		if b.calling || b.sent {
			err.kind = ErrOutcomeUnknown
		}
		if b.live--; b.live == 0 {
			if b.calling {
				b.cancel()
			}
			if b.timer != nil {
				b.timer.Stop()
			}
		}
	}
	if q.offline != nil {
		err.last = q.offline
	} else if s := q.c.conn.current().GetState(); err.last == nil && s != connectivity.Ready {
		err.last = fmt.Errorf("no connection to %s (%v)", q.c.cfg.Addr, s)
	}
	return Submitted{}, err
}

// stop returns when all senders have ended; the client's context has.
func (q *coalescer) stop() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.senders.Wait()
}

// isUnanswered reports whether err is of a submit that was given up.
func isUnanswered(err error) bool {
	var u *unanswered
	return errors.As(err, &u)
}
