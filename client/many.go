package client

import (
	"context"
	"sync"
	"time"
)

// submitMany submits tasks in calls of up to 1,000 or 4 MiB, MaxInFlight at once.
func (c *Client) submitMany(ctx context.Context, tasks []Task) ([]Outcome, error) {
	ctx, cancel := c.during(ctx)
	defer cancel()
	m := &many{c: c, tasks: tasks, out: make([]Outcome, len(tasks))}
	var wg sync.WaitGroup
	for range min(c.cfg.MaxInFlight, 1+len(tasks)/bulkItems) {
		wg.Go(func() {
			for {
				b := m.next(ctx)
				if b == nil {
					return
				}
				m.deliver(ctx, b)
			}
		})
	}
	wg.Wait()
	for i := range m.out {
		if isUnanswered(m.out[i].Err) {
			return m.out, m.out[i].Err
		}
	}
	return m.out, nil
}

// Bounds of a call of SubmitBatch: those of the server, less room for what surrounds the tasks.
const (
	bulkItems = 1000
	bulkBytes = 4<<20 - 64<<10
)

// many is one SubmitBatch under way.
type many struct {
	c   *Client
	out []Outcome // each written by the goroutine that delivers its item

	mu    sync.Mutex // guards following
	tasks []Task
	done  int // tasks that are in a batch, or refused here
}

// next cuts the next batch off, or returns nil when there are no more tasks.
func (m *many) next(ctx context.Context) *batch {
	m.mu.Lock()
	defer m.mu.Unlock()
	var items []*item
	for size := 0; m.done < len(m.tasks) && len(items) < bulkItems; m.done++ {
		spec, err := m.c.spec(ctx, m.tasks[m.done])
		if err != nil {
			m.out[m.done].Err = err
			continue
		}
		n := spec.SizeVT() + 6
		if len(items) > 0 && size+n > bulkBytes {
			break
		}
		size += n
		items = append(items, &item{spec: spec, pos: m.done})
	}
	if len(items) == 0 {
		return nil
	}
	return newBatch(items)
}

// deliver sends b until each item has its outcome or ctx ends.
func (m *many) deliver(ctx context.Context, b *batch) {
	for unsent := 0; b != nil; {
		if err := m.c.usable(ctx); err != nil {
			m.giveUp(b, err)
			return
		}
		call, cancel := context.WithTimeout(ctx, m.c.cfg.CallTimeout)
		answers, nothing := m.c.call(call, b)
		cancel()
		if nothing {
			for _, it := range b.items {
				it.last = answers[0].outcome.Err
			}
			unsent++
			m.c.offline(ctx, unsent)
			continue
		}
		unsent = 0
		b = m.settle(ctx, b, answers)
	}
}

// settle writes the outcomes that are final, pauses as the others ask for, and returns what is to be
// sent next: b again if an answer is missing, a new batch of those that are refused for now, or nil.
func (m *many) settle(ctx context.Context, b *batch, answers []itemAnswer) *batch {
	var open []*item
	lost, busy, after := false, false, time.Duration(0)
	for i, it := range b.items {
		if it.over {
			continue
		}
		a := answers[i]
		if a.stored || a.verdict == refused {
			m.out[it.pos], it.over = a.outcome, true
			continue
		}
		lost, busy, after = lost || a.verdict == ambiguous, busy || a.verdict == later, max(after, a.after)
		it.last = a.outcome.Err
		open = append(open, it)
	}
	switch {
	case len(open) == 0:
		return nil
	case lost:
		b.sent = true
		after = max(after, backoff(b.tries))
	case b.sent: // refused for now, but an earlier call may store them yet: the same id, then
	case busy && m.c.cfg.FailOnBackpressure:
		for _, it := range open {
			m.out[it.pos].Err = it.last
		}
		return nil
	default:
		b = newBatch(open)
	}
	if err := pause(ctx, after); err != nil {
		m.giveUp(b, err)
		return nil
	}
	return b
}

// giveUp tells of each task of b that has no answer what is true of it.
func (m *many) giveUp(b *batch, end error) {
	kind := ErrNotSent
	if b.sent {
		kind = ErrOutcomeUnknown
	}
	for _, it := range b.items {
		if !it.over {
			m.out[it.pos].Err = &unanswered{kind, it.last, end}
		}
	}
}
