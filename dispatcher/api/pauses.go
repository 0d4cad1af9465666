package api

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/headrace/headrace/dispatcher/peer"
	"github.com/headrace/headrace/internal/telemetry"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/shard"
	"github.com/headrace/headrace/shard/pause"
	"github.com/headrace/headrace/task"
)

// Times of a pause.
const (
	pauseWait   = 15 * time.Second // for the owners: a dead one's lease, and the grace of its successor
	pauseMax    = time.Minute
	pauseRound  = 50 * time.Millisecond  // between two rounds of questions
	pauseAsk    = 4 * time.Second        // one question: the core answers within 3.5 s
	pauseMargin = 250 * time.Millisecond // the answer is on its way before the caller's deadline
	resumeTell  = time.Second
)

// Pauses is the PauseService.
type Pauses struct {
	headracev1.UnimplementedPauseServiceServer
	*Services
}

// scopeOf reads what a rule is to cover.
func scopeOf(tenant, function string, band headracev1.Band) (task.Pause, error) {
	scope := task.Pause{Function: function, Band: task.AnyBand}
	if err := task.Name("tenant", tenant); err != nil {
		return scope, err
	}
	if band != headracev1.Band_BAND_UNSPECIFIED {
		if band < 0 || int(band) > task.Bands {
			return scope, &task.FieldError{Field: "band", Value: fmt.Sprint(int32(band)), Want: "high, normal or low, or none for all"}
		}
		scope.Band = task.Band(band - 1)
	}
	return scope, nil
}

// Pause stores a rule, tells all owners, and waits for them.
func (s *Pauses) Pause(ctx context.Context, req *headracev1.PauseRequest) (*headracev1.PauseResponse, error) {
	if err := s.admit(); err != nil {
		return nil, err
	}
	rule, err := scopeOf(req.Tenant, req.Function, req.Band)
	if err != nil {
		return nil, err
	}
	wait := pauseWait
	if req.Timeout != nil {
		if wait = req.Timeout.AsDuration(); wait < time.Millisecond || wait > pauseMax {
			return nil, &task.FieldError{Field: "timeout", Value: wait.String(), Want: "1ms to 60s"}
		}
	}
	rule.Reason = req.Reason
	if req.UntilTime != nil {
		if err := req.UntilTime.CheckValid(); err != nil {
			return nil, &task.FieldError{Field: "until_time", Want: "a time in the next ten years"}
		}
		rule.Until = req.UntilTime.AsTime()
	}
	rules, err := s.cfg.Pauses.Pause(ctx, req.Tenant, rule)
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(rules.Rules, rule.Same); i >= 0 {
		rule = rules.Rules[i]
	}
	until := time.Now().Add(wait)
	if deadline, ok := ctx.Deadline(); ok && deadline.Add(-pauseMargin).Before(until) {
		until = deadline.Add(-pauseMargin)
	}
	w := pauseAwait{s: s.Services, rules: rules, scope: rule, acked: map[uint32]shard.NodeID{}, nodes: map[shard.NodeID]bool{}}
	missing, err := w.run(ctx, until)
	if err != nil {
		return nil, err
	}
	return &headracev1.PauseResponse{Rule: ruleOf(req.Tenant, rule), Missing: missing}, nil
}

// pauseAwait is one wait for the owners.
type pauseAwait struct {
	s     *Services
	rules pause.Rules
	scope task.Pause

	mu    sync.Mutex // guards following
	acked map[uint32]shard.NodeID
	nodes map[shard.NodeID]bool // that have answered: a partition that comes to one later finds the rules there
	why   map[shard.NodeID]error
}

// run asks the owners until none is missing, and returns those that are at last. Its error is the caller's end.
//
// Who owns what is read anew in each round, from the registry and after the rule was stored. So whoever comes to
// own a partition after its owner has answered raises its epoch later than that, and reads the rules later still.
func (w *pauseAwait) run(ctx context.Context, until time.Time) ([]*headracev1.PauseMissing, error) {
	wait, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	var missing []*headracev1.PauseMissing
	for {
		owners, err := w.s.cluster.Owners(wait)
		if err != nil && wait.Err() != nil && missing != nil {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			return missing, nil // as they were a moment ago
		}
		if err != nil {
			missing = []*headracev1.PauseMissing{{Partitions: w.required(), Why: "who owns them is not known: the registry does not answer"}}
		} else {
			w.ask(wait, owners)
			if missing = w.missing(owners); len(missing) == 0 {
				return nil, nil
			}
		}
		t := time.NewTimer(pauseRound)
		select {
		case <-t.C:
		case <-wait.Done():
			t.Stop()
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			return missing, nil
		}
	}
}

// ask asks those owners that have to answer still, all at once.
func (w *pauseAwait) ask(ctx context.Context, owners map[uint32]shard.NodeID) {
	w.why = map[shard.NodeID]error{}
	need := map[shard.NodeID]bool{}
	for _, id := range owners {
		need[id] = need[id] || !w.nodes[id]
	}
	for _, p := range w.required() {
		if id, owned := owners[p]; owned && w.acked[p] != id {
			need[id] = true
		}
	}
	q := peer.Pauses{Tenant: w.rules.Tenant, Record: pause.Encode(w.rules.Rules), Revision: w.rules.Revision, Await: true, Function: w.scope.Function, Band: w.scope.Band}
	var wg sync.WaitGroup
	for id, ask := range need {
		if !ask {
			continue
		}
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, pauseAsk)
			defer cancel()
			list, err := w.s.engine.ApplyPauses(ctx, id, q)
			w.mu.Lock()
			defer w.mu.Unlock()
			if err != nil {
				w.why[id] = err
				return
			}
			w.nodes[id] = true
			for _, p := range list {
				w.acked[p] = id
			}
		})
	}
	wg.Wait()
}

// required are the partitions where the tenant may have tasks: those of its placement, or all if it was ever moved.
func (w *pauseAwait) required() []uint32 {
	tenant := w.rules.Tenant
	look := w.s.cfg.Placements.Look(tenant)
	list := append(slices.Clone(look.Members), look.Before...)
	if p, stored := w.s.cfg.Placements.Snapshot().Get(tenant); stored {
		list = append(append(list, p.Members...), p.Before...)
		if p.Version > 1 {
			list = shard.IDs(w.s.cluster.Directory().Partitions)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// missing lists who has not answered, by node.
func (w *pauseAwait) missing(owners map[uint32]shard.NodeID) []*headracev1.PauseMissing {
	by := map[shard.NodeID][]uint32{}
	for p, id := range owners {
		if !w.nodes[id] {
			by[id] = append(by[id], p)
		}
	}
	for _, p := range w.required() {
		if id := owners[p]; id == "" || w.acked[p] != id && w.nodes[id] {
			by[id] = append(by[id], p)
		}
	}
	d := w.s.cluster.Directory()
	var out []*headracev1.PauseMissing
	for _, id := range slices.Sorted(maps.Keys(by)) {
		slices.Sort(by[id])
		m := &headracev1.PauseMissing{Partitions: by[id], NodeId: string(id)}
		if n, known := d.Node(id); known {
			m.NodeName, m.Address = n.Name, n.Addr
		}
		database := w.s.away(by[id]) // asked once: it may come back between two
		switch {
		case id == "":
			m.Why = "nobody owns them now; their next owner reads the rule before it pushes anything"
		case database != "":
			m.Why = "database " + database + " does not answer; who opens them next reads the rule before it pushes anything"
		case w.why[id] != nil:
			m.Why = "the owner does not answer"
			w.s.log.Debug("a pause is not acknowledged", telemetry.Text("owner", string(id)), telemetry.Err(w.why[id]))
		default:
			m.Why = "the owner has just changed, or its database can't be reached"
		}
		out = append(out, m)
	}
	return out
}

// Resume takes rules away and tells all owners. Who can't be told hears of it from the registry.
func (s *Pauses) Resume(ctx context.Context, req *headracev1.ResumeRequest) (*headracev1.ResumeResponse, error) {
	if err := s.admit(); err != nil {
		return nil, err
	}
	scope, err := scopeOf(req.Tenant, req.Function, req.Band)
	if err == nil && scope.Function != "" {
		err = task.Name("function", scope.Function)
	}
	if err != nil {
		return nil, err
	}
	if req.All && (req.Function != "" || req.Band != headracev1.Band_BAND_UNSPECIFIED) {
		return nil, &task.FieldError{Field: "all", Value: "true", Want: "no function and no band with it"}
	}
	left, removed, err := s.cfg.Pauses.Resume(ctx, req.Tenant, scope, req.All)
	if err != nil {
		return nil, err
	}
	tell, cancel := context.WithTimeout(ctx, resumeTell)
	defer cancel()
	var wg sync.WaitGroup
	q := peer.Pauses{Tenant: left.Tenant, Record: pause.Encode(left.Rules), Revision: left.Revision}
	for id := range ownedBy(s.cluster.Directory()) {
		wg.Go(func() { _, _ = s.engine.ApplyPauses(tell, id, q) })
	}
	wg.Wait()
	res := &headracev1.ResumeResponse{}
	for _, p := range removed {
		res.Removed = append(res.Removed, ruleOf(req.Tenant, p))
	}
	for _, p := range left.Rules {
		if meet := (scope.Function == "" || p.Function == "" || p.Function == scope.Function) &&
			(scope.Band == task.AnyBand || p.Band == task.AnyBand || p.Band == scope.Band); meet {
			res.Remaining = append(res.Remaining, ruleOf(req.Tenant, p))
		}
	}
	return res, nil
}

// ListPauses returns a page of the rules, by tenant. The page token is the last one's.
func (s *Pauses) ListPauses(ctx context.Context, req *headracev1.ListPausesRequest) (*headracev1.ListPausesResponse, error) {
	if req.PageSize > maxPage {
		return nil, &task.FieldError{Field: "page_size", Value: fmt.Sprint(req.PageSize), Want: "1 to 1000, or 0 for 1000"}
	}
	for field, name := range map[string]string{"tenant": req.Tenant, "page_token": req.PageToken} {
		if name != "" {
			if err := task.Name(field, name); err != nil {
				return nil, err
			}
		}
	}
	call, cancel := context.WithTimeout(ctx, resumeTell)
	defer cancel()
	// Without the registry, what this node knows is what it obeys.
	if err := s.cfg.Pauses.Current(call); err != nil && ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	now := s.cfg.Now()
	res := &headracev1.ListPausesResponse{}
	add := func(tenant string, rules []task.Pause) {
		for _, p := range rules {
			if !p.Over(now) {
				res.Rules = append(res.Rules, ruleOf(tenant, p))
			}
		}
	}
	if req.Tenant != "" {
		add(req.Tenant, s.cfg.Pauses.Of(req.Tenant))
		return res, nil
	}
	all := s.cfg.Pauses.All(req.PageToken)
	for i, t := range all {
		if i == cmp.Or(int(req.PageSize), maxPage) {
			res.NextPageToken = all[i-1].Tenant
			break
		}
		add(t.Tenant, t.Rules)
	}
	return res, nil
}

func ruleOf(tenant string, p task.Pause) *headracev1.PauseRule {
	m := &headracev1.PauseRule{Tenant: tenant, Function: p.Function, Reason: p.Reason, CreateTime: stamp(p.At), UntilTime: stamp(p.Until), Name: p.Name(tenant)}
	if p.Band != task.AnyBand {
		m.Band = headracev1.Band(p.Band + 1)
	}
	return m
}
