package api

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/dispatcher/peer"
	"github.com/headrace/headrace/internal/grpcx"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// maxInFlight bounds the payload bytes of submits that wait for their commit, on the whole node.
const maxInFlight = 128 << 20

// Tasks is the TaskService.
type Tasks struct {
	headracev1.UnimplementedTaskServiceServer
	*Services
}

// Submit stores one task.
func (s *Tasks) Submit(ctx context.Context, req *headracev1.SubmitRequest) (*headracev1.SubmitResponse, error) {
	if err := s.checkSubmit(req.Tenant, req.RequestId); err != nil {
		return nil, err
	}
	now := s.cfg.Now()
	t, err := s.build(req.Tenant, string(req.RequestId), req.Task, now)
	if err != nil {
		return nil, within("task.", err)
	}
	var delay time.Duration
	if !t.DueAt.IsZero() {
		delay = t.DueAt.Sub(now)
	}
	items, err := s.store(ctx, req.Tenant, string(req.RequestId), req.Retry, []*store.Task{t})
	if err != nil {
		return nil, err
	}
	if items[0].Err != nil {
		return nil, items[0].Err
	}
	load, known := s.engine.Load(items[0].ID.Partition())
	res := &headracev1.SubmitResponse{Id: items[0].ID.String(), Deduplicated: items[0].Dedup,
		Pressure: max(load.Pressure, s.cfg.Door.Pressure(req.Tenant))}
	if soonest, latest, ok := eta(load, delay); ok && known && !items[0].Dedup {
		res.EtaMin, res.EtaMax = durationpb.New(soonest), durationpb.New(latest)
	}
	return res, nil
}

// SubmitBatch stores many tasks in one commit. Items that are wrong are refused one by one.
func (s *Tasks) SubmitBatch(ctx context.Context, req *headracev1.SubmitBatchRequest) (*headracev1.SubmitBatchResponse, error) {
	if err := s.checkSubmit(req.Tenant, req.RequestId); err != nil {
		return nil, err
	}
	n := len(req.Tasks)
	if n < 1 || n > task.MaxBatchItems {
		return nil, &task.FieldError{Field: "tasks", Value: fmt.Sprintf("%d items", n), Want: "1 to 1000 items"}
	}
	size := 0
	for _, spec := range req.Tasks {
		size += len(spec.GetPayload())
	}
	if n > 1 && size > task.MaxBatchBytes { // one alone may be as large as a payload may
		return nil, &task.FieldError{Field: "tasks", Value: fmt.Sprintf("%d bytes of payload", size), Want: "at most 4194304 bytes in a batch"}
	}
	now, requestID := s.cfg.Now(), string(req.RequestId)
	outcomes := make([]headracev1.SubmitOutcome, n)
	res := &headracev1.SubmitBatchResponse{Outcomes: make([]*headracev1.SubmitOutcome, n)}
	rows := make([]*store.Task, 0, n)
	at := make([]int, 0, n) // index of each row's item
	last := ""
	for i, spec := range req.Tasks {
		res.Outcomes[i] = &outcomes[i]
		t, err := s.build(req.Tenant, requestID, spec, now)
		if err != nil {
			outcomes[i].Error = s.submitError(within(fmt.Sprintf("tasks[%d].", i), err))
			continue
		}
		if t.Function == last {
			t.Function = last // one string for the whole batch, not one a task
		}
		last = t.Function
		rows, at = append(rows, t), append(at, i)
	}
	if len(rows) > 0 {
		items, err := s.store(ctx, req.Tenant, requestID, req.Retry, rows)
		if err != nil {
			return nil, err
		}
		for j, item := range items {
			o := &outcomes[at[j]]
			if item.Err != nil {
				o.Error = s.submitError(item.Err)
				continue
			}
			o.Id, o.Deduplicated = item.ID.String(), item.Dedup
		}
	}
	for _, o := range res.Outcomes {
		if id, err := task.ParseID(o.Id); err == nil { // all are in one partition, but for some that were there before
			load, _ := s.engine.Load(id.Partition())
			res.Pressure = load.Pressure
			break
		}
	}
	res.Pressure = max(res.Pressure, s.cfg.Door.Pressure(req.Tenant))
	return res, nil
}

func (s *Tasks) checkSubmit(tenant string, requestID []byte) error {
	if err := s.admit(); err != nil {
		return err
	}
	if err := task.Name("tenant", tenant); err != nil {
		return err
	}
	if n := len(requestID); n != 0 && n != 16 {
		return &task.FieldError{Field: "request_id", Value: fmt.Sprintf("%d bytes", n), Want: "16 bytes, or none"}
	}
	return nil
}

// store has rows stored, as many of the first ones as the door lets in, and returns what became of each. A retry of
// them is let in whole, or not at all: what an earlier call has stored of it is found.
func (s *Tasks) store(ctx context.Context, tenant, requestID string, retry bool, rows []*store.Task) (_ []core.SubmitItem, err error) {
	pass, refusal := s.cfg.Door.Admit(tenant, len(rows), func(i int) int { return len(rows[i].Payload) }, retry)
	if pass.Items == 0 && refusal != nil && len(rows) == 1 {
		return nil, refusal
	}
	var items []core.SubmitItem
	if pass.Items > 0 {
		defer pass.Done()
		if items, err = s.storeAll(ctx, tenant, requestID, retry, rows[:pass.Items]); err != nil {
			return nil, err
		}
	}
	for range len(rows) - pass.Items {
		items = append(items, core.SubmitItem{Err: refusal})
	}
	return items, nil
}

// storeAll has one of the tenant's partitions store rows, and returns what became of each.
func (s *Tasks) storeAll(ctx context.Context, tenant, requestID string, retry bool, rows []*store.Task) (_ []core.SubmitItem, err error) {
	size := int64(0)
	for _, t := range rows {
		size += int64(len(t.Payload))
	}
	defer s.inFlight.Add(-size)
	if s.inFlight.Add(size) > maxInFlight {
		return nil, errBusy
	}
	key := requestID
	if key == "" {
		key, retry = randomID(), false
	}
	to, err := s.candidates(ctx, tenant, key, retry, rows)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	var answer core.SubmitAnswer
	var chosen uint32
	for try := 1; ; try++ {
		if answer, chosen, err = s.once(ctx, tenant, requestID, retry, rows, to); err != nil {
			break
		}
		if retry && answer.Err == nil && len(answer.Items) < len(rows) && peer.Again(ctx, began) {
			continue // it met a call that the door had let in in part: now that is known
		}
		// A partition that changes its owner has another in a moment. Others of the tenant may have theirs.
		if !errors.Is(answer.Err, core.ErrNotOwner) {
			break
		}
		if !retry && s.goesElsewhere(to) {
			if requestID != "" {
				answer.Err = errElsewhere
				break
			}
			if to, err = s.candidates(ctx, tenant, randomID(), false, rows); err != nil { // no retry will look for it
				return nil, err
			}
			if try < maxDraws {
				continue
			}
		}
		if missing := s.missing(to); missing != nil { // that takes longer than a change of owners
			answer.Err = missing
			break
		}
		if !s.hold(ctx, began, to, try) {
			break
		}
	}
	switch {
	case err != nil:
		return nil, err
	case answer.Err != nil:
		return nil, answer.Err
	case len(answer.Items) != len(rows):
		return nil, fmt.Errorf("submit to partition %d: %d answers for %d tasks", chosen, len(answer.Items), len(rows))
	}
	return answer.Items, nil
}

// maxDraws is how often a submit without an id is given other candidates at once.
const maxDraws = 8

// once sends a submit to one of its candidates; if that certainly stored nothing, to the other one as well.
func (s *Tasks) once(ctx context.Context, tenant, requestID string, retry bool, rows []*store.Task, to route) (answer core.SubmitAnswer, chosen uint32, err error) {
	// All retries of a request meet at one owner, which looks in the other candidate (package peer).
	chosen, ok := to.a, true
	if !retry {
		chosen, ok = s.engine.Pick(to.a, to.b, len(rows))
	}
	answer = core.SubmitAnswer{Err: core.ErrNotOwner}
	if ok {
		answer, err = s.try(ctx, tenant, requestID, retry, rows, chosen, to)
	}
	if err == nil && nothingStored(answer.Err) && !retry && to.a != to.b {
		other := to.a
		if chosen == to.a {
			other = to.b
		}
		first := answer
		if answer, err = s.try(ctx, tenant, requestID, retry, rows, other, to); errors.Is(answer.Err, core.ErrNotOwner) {
			answer = first // what the one that was chosen said tells more
		}
	}
	return answer, chosen, err
}

// elsewhereAfter is how long both candidates of a submit have to be away until it is better sent anew, with others: an
// orderly hand-over is over sooner. A database that is away is away for longer.
const elsewhereAfter = 300 * time.Millisecond

// goesElsewhere reports whether a submit that both candidates refused is better sent anew: they have been away for a while, and
// another partition of the tenant is not.
func (s *Tasks) goesElsewhere(to route) bool {
	for _, p := range []uint32{to.a, to.b} {
		since, away := s.engine.Away(p)
		if !away || time.Since(since) < elsewhereAfter && s.away([]uint32{p}) == "" {
			return false
		}
	}
	return slices.ContainsFunc(to.others, func(p uint32) bool { return p != to.a && p != to.b && s.engine.Up(p) })
}

// missing says that the database of a submit's candidates is away, if it is.
func (s *Services) missing(to route) error {
	if name := s.away([]uint32{to.a, to.b}); name != "" {
		return &missingError{database: name, submit: true, cause: core.ErrNotOwner}
	}
	return nil
}

// maxHeld bounds the submits of a node that wait for an owner. Their payloads count in maxInFlight.
const maxHeld = 1024

// hold waits until a submit is to be tried again; false: it is to be refused. It is held for as long as a change of
// owners may take, by when that began: while a database is away for long, nobody waits here.
func (s *Tasks) hold(ctx context.Context, began time.Time, to route, try int) bool {
	defer s.held.Add(-1)
	if s.held.Add(1) > maxHeld {
		return false
	}
	var since time.Time // when the one that went away last did
	for _, p := range []uint32{to.a, to.b} {
		at, away := s.engine.Away(p)
		if !away {
			at = began
		}
		if at.After(since) {
			since = at
		}
	}
	return peer.Hold(ctx, since, try)
}

// nothingStored reports whether a refusal leaves the other candidate free to be tried.
func nothingStored(err error) bool {
	return errors.Is(err, core.ErrNotOwner) || errors.Is(err, core.ErrStoreSlow) || errors.Is(err, store.ErrFull)
}

func (s *Tasks) try(ctx context.Context, tenant, requestID string, retry bool, rows []*store.Task, chosen uint32, to route) (core.SubmitAnswer, error) {
	sub := &core.Submit{Tenant: tenant, Partition: chosen, RequestID: requestID, Retry: retry, Tasks: rows}
	if retry {
		sub.Candidates = to.all()
	}
	return s.engine.Submit(ctx, sub)
}

// submitError is what Submit would have answered for one item.
func (s *Tasks) submitError(err error) *headracev1.SubmitError {
	info := s.info("SubmitBatch item", err)
	e := &headracev1.SubmitError{Code: int32(info.Code), Reason: info.Reason, Message: info.Message,
		ExistingId: info.Metadata[grpcx.MetaExistingID], Metadata: info.Metadata}
	if info.RetryAfter > 0 {
		e.RetryAfter = durationpb.New(info.RetryAfter)
	}
	if info.Code == codes.OK {
		e.Code = int32(codes.Internal)
	}
	return e
}

// eta guesses when a task starts that is due after delay: not before that, and not after all that waits at its owner now,
// at the rate at which that node starts tries. False: nothing is known of that rate.
func eta(load peer.Load, delay time.Duration) (soonest, latest time.Duration, ok bool) {
	if load.Rate <= 0 {
		return 0, 0, false
	}
	wait := time.Duration(float64(load.Backlog) / load.Rate * float64(time.Second))
	if wait < 0 || wait > task.MaxDelay {
		return 0, 0, false
	}
	return delay, delay + max(wait, 100*time.Millisecond), true
}
