package api

import (
	"context"
	"errors"
	"fmt"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/dispatcher/peer"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// Explain says why a task does not run.
func (s *Tasks) Explain(ctx context.Context, req *headracev1.ExplainRequest) (*headracev1.ExplainResponse, error) {
	id, err := s.resolve(ctx, req.Tenant, req.Task)
	if err != nil {
		return nil, err
	}
	t, err := s.get(ctx, id)
	var missing *missingError
	switch {
	case errors.As(err, &missing):
		return s.explainAway(ctx, req.Tenant, id)
	case err != nil:
		return nil, err
	}
	if t.Tenant != req.Tenant {
		return nil, store.ErrNotFound
	}
	if t.State.Terminal() {
		return &headracev1.ExplainResponse{Task: s.describe(t, nil),
			Explanation: peer.Explanation(core.Explanation{Why: core.WhyFinished, Text: "it has ended: " + t.State.String()})}, nil
	}
	e, err := s.engine.Explain(ctx, t)
	if err != nil {
		return nil, fmt.Errorf("explain task %s: %w", id, err)
	}
	live, err := s.live(ctx, id)
	if err != nil {
		return nil, err
	}
	m := s.describe(t, nil)
	if live.Task != nil {
		m = s.describe(live.Task, &live.View)
	}
	return &headracev1.ExplainResponse{Task: m, Explanation: peer.Explanation(e)}, nil
}

// explainAway explains a task whose database does not answer, as far as its owner has it in memory.
func (s *Tasks) explainAway(ctx context.Context, tenant string, id task.ID) (*headracev1.ExplainResponse, error) {
	i, _ := s.cfg.DatabaseOf(id.Partition())
	e := core.Explanation{Why: core.WhyStoreAway, Text: fmt.Sprintf("its %s does not answer: nothing of partition %d starts until it does", s.databaseName(i), id.Partition())}
	res := &headracev1.ExplainResponse{Explanation: peer.Explanation(e)}
	live, err := s.live(ctx, id)
	if err != nil {
		return nil, err
	}
	if live.Task != nil {
		if live.Task.Tenant != tenant {
			return nil, store.ErrNotFound
		}
		res.Task = s.describe(live.Task, &live.View)
		if live.View.Running { // whatever its database does
			if e, err = s.engine.Explain(ctx, live.Task); err != nil {
				return nil, err
			}
			res.Explanation = peer.Explanation(e)
		}
	}
	return res, nil
}

// live returns what the owner's memory has of a task; one that can't be asked has nothing.
func (s *Services) live(ctx context.Context, id task.ID) (core.Live, error) {
	views, err := s.engine.Views(ctx, []task.ID{id})
	if _, err = peer.Missing(err); err != nil {
		return core.Live{}, fmt.Errorf("look at the owner: %w", err)
	}
	return views[0], nil
}
