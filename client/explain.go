package client

import (
	"context"
	"fmt"
	"time"

	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
)

// Explanation says why a task does not run.
type Explanation struct {
	Task *TaskInfo // without payload and result; nil: its database does not answer
	// Reason is for programs: paused, no_executor, downstream_limit, turn, … (headrace.v1.Explanation lists them).
	Reason string
	Text   string // one sentence
	// Queued: it is due and waits for its turn. Then so many tasks of its function and band on its node are before it, at least
	// Ahead and at most AheadMax.
	Queued          bool
	Ahead, AheadMax int64
	// ETAKnown: it starts in Soonest to Latest from now, as far as can be known.
	ETAKnown        bool
	Soonest, Latest time.Duration
}

// Explain asks why a task does not run, and when it will. Its error wraps ErrNotFound where the tenant has no such task.
func (c *Client) Explain(ctx context.Context, ref Ref) (*Explanation, error) {
	req := &headracev1.ExplainRequest{Tenant: c.cfg.Tenant, Task: ref.proto()}
	res, err := repeat(ctx, c, func(ctx context.Context) (*headracev1.ExplainResponse, error) { return c.tasks.Explain(ctx, req) })
	if err != nil {
		return nil, fmt.Errorf("explain task %v: %w", ref, err)
	}
	m := res.Explanation
	e := &Explanation{Reason: m.GetReason(), Text: m.GetText(), Queued: m.GetQueued(), Ahead: m.GetAhead(), AheadMax: m.GetAheadMax()}
	if res.Task != nil {
		e.Task = infoOf(res.Task)
	}
	if m.GetEtaMin() != nil && m.GetEtaMax() != nil {
		e.ETAKnown, e.Soonest, e.Latest = true, m.EtaMin.AsDuration(), m.EtaMax.AsDuration()
	}
	return e, nil
}
