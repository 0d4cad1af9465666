package client

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"

	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
)

// An item is one task on its way.
type item struct {
	spec   *headracev1.TaskSpec
	size   int          // bytes of spec on the wire
	pos    int          // submitMany: its place among the outcomes
	answer chan Outcome // coalescer: has room for the one answer

	// Of the coalescer, guarded by its mu.
	batch *batch // nil while it waits in the queue
	last  error  // what a server said of it last
	over  bool   // answered, or its caller has gone
}

// A batch is what one call carries. What it holds is fixed once it may have reached a server: the server
// knows the whole of it by its id, so a retry has to be the same.
type batch struct {
	id    [16]byte
	items []*item
	sent  bool // an earlier call may have reached a server, was not answered for all items, and may act yet
	tries int  // calls since it was made, for the back-off

	// Of the coalescer, guarded by its mu.
	live    int // items that are not over
	calling bool
	cancel  context.CancelFunc // of the call, while calling
	timer   *time.Timer        // while it waits for its next call
}

func newBatch(items []*item) *batch {
	b := &batch{items: items, live: len(items)}
	rand.Read(b.id[:]) // never fails: it would end the process
	return b
}

// An itemAnswer is what one call said of one item.
type itemAnswer struct {
	stored  bool
	verdict verdict // unless stored
	after   time.Duration
	outcome Outcome
}

// call sends b once. It returns an answer for each item; unsent is true if no server can have seen
// this call, in which case all answers are the same ambiguous one.
func (c *Client) call(ctx context.Context, b *batch) (answers []itemAnswer, unsent bool) {
	req := &headracev1.SubmitBatchRequest{
		Tenant:    c.cfg.Tenant,
		Tasks:     make([]*headracev1.TaskSpec, len(b.items)),
		RequestId: b.id[:],
		Retry:     b.sent,
	}
	for i, it := range b.items {
		req.Tasks[i] = it.spec
	}
	var to peer.Peer // set once a call has a stream of a connection: before that, nothing was sent
	b.tries++
	res, err := c.tasks.SubmitBatch(ctx, req, grpc.Peer(&to))
	answers = make([]itemAnswer, len(b.items))
	if err == nil && len(res.Outcomes) != len(b.items) {
		err = &Error{Code: codes.Internal, Message: fmt.Sprintf("server gave %d outcomes for %d tasks", len(res.Outcomes), len(b.items))}
	}
	if err != nil {
		v, after, public := judge(err)
		for i := range answers {
			answers[i] = itemAnswer{verdict: v, after: after, outcome: Outcome{Err: b.doubt(v, public)}}
		}
		unsent = v == ambiguous && to.Addr == nil
		c.noteFailure(ctx, v, public)
		return answers, unsent
	}
	noted := false
	for i, o := range res.Outcomes {
		if o.Error == nil {
			answers[i] = itemAnswer{stored: true, outcome: Outcome{Submitted: Submitted{o.Id, o.Deduplicated, res.Pressure}}}
			continue
		}
		v, after, public := judgeItem(o.Error)
		answers[i] = itemAnswer{verdict: v, after: after, outcome: Outcome{Err: b.doubt(v, public)}}
		if v != refused && !noted {
			c.noteFailure(ctx, v, public)
			noted = true
		}
	}
	return answers, false
}

// doubt adds to a refusal for good that an earlier call had no answer, and may have stored the task
// before, say, the key was revoked. What is wrong with the task itself was so then, too.
func (b *batch) doubt(v verdict, err error) error {
	if e, ok := err.(*Error); !b.sent || v != refused || !ok || e.Code == codes.InvalidArgument {
		return err
	}
	return fmt.Errorf("%w: an earlier call had no answer, the next was refused: %w", ErrOutcomeUnknown, err)
}
