package peer

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/internal/telemetry"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// Explain asks the owner why a task does not run. T is its row as the store has it. That nobody can say is an answer, too.
func (r *Router) Explain(ctx context.Context, t *store.Task) (core.Explanation, error) {
	partition := t.ID.Partition()
	here, p := r.owner(partition)
	var e core.Explanation
	owned := false
	switch {
	case here:
		var err error
		if e, err = r.local.Explain(ctx, t); err != nil && !errors.Is(err, core.ErrNotOwner) {
			return e, err
		}
		owned = err == nil
	case p != nil:
		var err error
		if e, owned, err = p.explain(ctx, t); err != nil {
			if ctx.Err() != nil {
				return e, context.Cause(ctx)
			}
			p.log.Debug("a task is not explained", telemetry.Err(err))
			return core.Explanation{Why: core.WhyNodeAway, Text: fmt.Sprintf("node %s, which owns its partition %d, does not answer", p.id, partition)}, nil
		}
	}
	if !owned {
		return core.Explanation{Why: core.WhyNoOwner, Text: fmt.Sprintf("no node owns its partition %d now: it waits until one takes that over", partition)}, nil
	}
	return e, nil
}

// explain asks the peer. Not owned: it does not own the partition.
func (p *peer) explain(ctx context.Context, t *store.Task) (e core.Explanation, owned bool, err error) {
	res, err := read(ctx, p, headracev1.PeerServiceClient.ExplainTask, &headracev1.ExplainTaskRequest{Task: store.EncodeBare(nil, t)})
	if err != nil {
		return e, false, err
	}
	if res.Error != nil {
		err := readError(res.Error)
		if errors.Is(err, core.ErrNotOwner) {
			err = nil
		}
		return e, false, err
	}
	m := res.Explanation
	e = core.Explanation{Why: core.Why(m.GetReason()), Text: m.GetText(), Queued: m.GetQueued(), Ahead: m.GetAhead(), AheadMax: m.GetAheadMax()}
	if m.GetEtaMin() != nil && m.GetEtaMax() != nil {
		e.ETAOK, e.Soonest, e.Latest = true, m.EtaMin.AsDuration(), m.EtaMax.AsDuration()
	}
	return e, true, nil
}

// Explanation is the answer on the wire.
func Explanation(e core.Explanation) *headracev1.Explanation {
	m := &headracev1.Explanation{Reason: string(e.Why), Text: e.Text, Queued: e.Queued, Ahead: e.Ahead, AheadMax: e.AheadMax}
	if e.ETAOK {
		m.EtaMin, m.EtaMax = durationpb.New(e.Soonest), durationpb.New(e.Latest)
	}
	return m
}

// ExplainTask says why a task of this node does not run.
func (s *Service) ExplainTask(ctx context.Context, req *headracev1.ExplainTaskRequest) (*headracev1.ExplainTaskResponse, error) {
	t, err := store.Decode(req.Task)
	if err != nil {
		return nil, &task.FieldError{Field: "task", Want: "a stored task"}
	}
	e, err := s.local.Explain(ctx, t)
	if err = unknown(ctx, err, nil); err != nil {
		return &headracev1.ExplainTaskResponse{Error: writeError(err)}, nil
	}
	return &headracev1.ExplainTaskResponse{Explanation: Explanation(e)}, nil
}
