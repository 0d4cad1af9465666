package executor

import (
	"sync"

	"github.com/headrace/headrace/executor/engine"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
)

// box is the loop's mailbox. Everybody may put into it and nobody waits: what is bounded is bounded by
// the sender (tries by slots, messages by stream.inbox, reports by one for each try). Batches form by
// themselves while the loop is busy.
type box struct {
	wake chan struct{} // capacity 1; the loop receives

	mu     sync.Mutex // guards following
	events events
}

type events struct {
	ended    []endedCall
	reports  []*call
	received []receivedMessage
	sent     []sentMessage
	calls    []func() // rare things
}

type endedCall struct {
	call   *call
	result engine.Result
}

type receivedMessage struct {
	stream  *stream
	message *headracev1.SessionResponse
}

type sentMessage struct {
	stream  *stream
	message *headracev1.SessionRequest
}

func (e *events) empty() bool {
	return len(e.ended)+len(e.reports)+len(e.received)+len(e.sent)+len(e.calls) == 0
}

// reset empties e and keeps its memory.
func (e *events) reset() {
	clear(e.ended)
	clear(e.reports)
	clear(e.received)
	clear(e.sent)
	clear(e.calls)
	e.ended, e.reports, e.received, e.sent, e.calls = e.ended[:0], e.reports[:0], e.received[:0], e.sent[:0], e.calls[:0]
}

// put adds to the events, and wakes the loop if it has none yet.
func (b *box) put(add func(*events)) {
	b.mu.Lock()
	was := b.events.empty()
	add(&b.events)
	b.mu.Unlock()
	b.tell(was)
}

func (b *box) tell(was bool) {
	if was {
		select {
		case b.wake <- struct{}{}:
		default:
		}
	}
}

// ended is put for the hot path.
func (b *box) ended(c *call, r engine.Result) {
	b.mu.Lock()
	was := b.events.empty()
	b.events.ended = append(b.events.ended, endedCall{c, r})
	b.mu.Unlock()
	b.tell(was)
}

func (b *box) reported(c *call) { b.put(func(e *events) { e.reports = append(e.reports, c) }) }
func (b *box) call(f func())    { b.put(func(e *events) { e.calls = append(e.calls, f) }) }

// take gives the events for an empty set in return.
func (b *box) take(empty events) events {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.events
	b.events = empty
	return e
}
