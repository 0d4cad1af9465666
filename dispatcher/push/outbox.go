package push

import (
	"iter"
	"sync"

	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
)

// outbox holds what waits for a session's writer.
type outbox struct {
	limit int
	ready chan struct{} // capacity 1: there is something, or it was closed

	mu     sync.Mutex // guards following; held for an append or a swap, never while sending
	queue  []*headracev1.SessionResponse
	bytes  int
	reason error // why it is closed; nil: it is open
}

func newOutbox(limit int) *outbox { return &outbox{limit: limit, ready: make(chan struct{}, 1)} }

// Put appends a message, which is the outbox's from now on. False: too much waits already, or it is closed.
func (o *outbox) Put(m *headracev1.SessionResponse) bool {
	size := weight(m)
	o.mu.Lock()
	ok := o.reason == nil && o.bytes+size <= o.limit
	if ok {
		o.queue = append(o.queue, m)
		o.bytes += size
	}
	o.mu.Unlock()
	if ok {
		o.wake()
	}
	return ok
}

// Close lets the writer send what waits, and then end with the reason. The first reason counts.
func (o *outbox) Close(reason error) {
	o.mu.Lock()
	if o.reason == nil {
		o.reason = reason
	}
	o.mu.Unlock()
	o.wake()
}

func (o *outbox) wake() {
	select {
	case o.ready <- struct{}{}:
	default:
	}
}

// take moves what waits to the end of into; closed is the reason of Close, after which nothing comes.
func (o *outbox) take(into []*headracev1.SessionResponse) (out []*headracev1.SessionResponse, closed error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	into = append(into, o.queue...)
	clear(o.queue)
	o.queue, o.bytes = o.queue[:0], 0
	return into, o.reason
}

// Bounds of one merged message. Larger ones save little more, and delay what comes behind.
const (
	mergePushes = 256
	mergeBytes  = 1 << 20
)

// weight is about how many bytes a message has: exact where it matters, cheap always.
func weight(m *headracev1.SessionResponse) int {
	n := 64 * (1 + len(m.Committed) + len(m.Cancels) + len(m.Recorded) + len(m.Claims))
	for _, p := range m.Pushes {
		n += 192 + len(p.Payload) + len(p.Checkpoint)
	}
	return n
}

// merge joins neighbours into as few messages as the bounds allow. Peers read the kinds of one message
// in the order of its fields, so what of a try comes first stays first: a push before its cancel.
func merge(ms []*headracev1.SessionResponse) iter.Seq[*headracev1.SessionResponse] {
	return func(yield func(*headracev1.SessionResponse) bool) {
		var last *headracev1.SessionResponse
		size := 0
		for _, m := range ms {
			w := weight(m)
			if last == nil || !fits(last, m) || size+w > mergeBytes || len(last.Pushes)+len(m.Pushes) > mergePushes {
				if last != nil && !yield(last) {
					return
				}
				last, size = m, w
				continue
			}
			join(last, m)
			size += w
		}
		if last != nil {
			yield(last)
		}
	}
}

// fits reports whether b can ride in a's message.
func fits(a, b *headracev1.SessionResponse) bool {
	return b.Welcome == nil && !a.GoingAway && (a.BeatAnswer == nil || b.BeatAnswer == nil) &&
		// A push must not overtake the answers that were before it: they may free what it needs.
		(len(b.Pushes) == 0 || len(a.Cancels) == 0 && len(a.Claims) == 0)
}

func join(a, b *headracev1.SessionResponse) {
	a.Pushes = append(a.Pushes, b.Pushes...)
	a.Committed = append(a.Committed, b.Committed...)
	a.Cancels = append(a.Cancels, b.Cancels...)
	a.Recorded = append(a.Recorded, b.Recorded...)
	a.Claims = append(a.Claims, b.Claims...)
	if b.BeatAnswer != nil {
		a.BeatAnswer = b.BeatAnswer
	}
	switch {
	case b.Demand != nil:
		a.Demand = b.Demand
	case a.Demand != nil: // it is what is left after the message's pushes
		*a.Demand -= min(*a.Demand, uint32(len(b.Pushes)))
	}
	if b.Recalled != 0 {
		a.Returned, a.Recalled = b.Returned, b.Recalled
	}
	a.GoingAway = b.GoingAway
}
