package peer

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/dispatcher/door"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// codes are the errors that cross the wire as what they are.
var codes = map[headracev1.PeerErrorCode]error{
	headracev1.PeerErrorCode_PEER_ERROR_CODE_NOT_OWNER:       core.ErrNotOwner,
	headracev1.PeerErrorCode_PEER_ERROR_CODE_STORE_SLOW:      core.ErrStoreSlow,
	headracev1.PeerErrorCode_PEER_ERROR_CODE_STORE_FULL:      store.ErrFull,
	headracev1.PeerErrorCode_PEER_ERROR_CODE_OUTCOME_UNKNOWN: core.ErrUnknownOutcome,
	headracev1.PeerErrorCode_PEER_ERROR_CODE_NOT_FOUND:       store.ErrNotFound,
}

func writeError(err error) *headracev1.PeerError {
	if err == nil {
		return nil
	}
	var exists *core.ExistsError
	if errors.As(err, &exists) {
		return &headracev1.PeerError{Code: headracev1.PeerErrorCode_PEER_ERROR_CODE_EXISTS,
			ExistingId: exists.ID[:], ExistingState: headracev1.TaskState(exists.State)}
	}
	for code, is := range codes { // the order does not matter: no error is two of them
		if errors.Is(err, is) {
			return &headracev1.PeerError{Code: code}
		}
	}
	return &headracev1.PeerError{Code: headracev1.PeerErrorCode_PEER_ERROR_CODE_INTERNAL, Message: err.Error()}
}

func readError(e *headracev1.PeerError) error {
	if e == nil {
		return nil
	}
	if e.Code == headracev1.PeerErrorCode_PEER_ERROR_CODE_EXISTS {
		id, err := task.IDFromBytes(e.ExistingId)
		if err != nil {
			return fmt.Errorf("the peer's answer: %w", err)
		}
		return &core.ExistsError{ID: id, State: task.State(e.ExistingState)}
	}
	if err := codes[e.Code]; err != nil {
		return err
	}
	return fmt.Errorf("the peer: %s", e.Message)
}

func writeItems(items []core.SubmitItem) []*headracev1.PeerSubmitItem {
	out := make([]*headracev1.PeerSubmitItem, len(items))
	for i, it := range items {
		out[i] = &headracev1.PeerSubmitItem{Id: it.ID[:], Deduplicated: it.Dedup, Error: writeError(it.Err)}
	}
	return out
}

func readItems(in []*headracev1.PeerSubmitItem) ([]core.SubmitItem, error) {
	out := make([]core.SubmitItem, len(in))
	for i, m := range in {
		id, err := task.IDFromBytes(m.Id)
		if err != nil {
			return nil, fmt.Errorf("the peer's answer: %w", err)
		}
		out[i] = core.SubmitItem{ID: id, Dedup: m.Deduplicated, Err: readError(m.Error)}
	}
	return out, nil
}

// writeLive leaves the payload out, and the result where bare says so.
func writeLive(l core.Live, bare bool) *headracev1.LiveTask {
	if l.Task == nil {
		return &headracev1.LiveTask{}
	}
	v := l.View
	m := &headracev1.LiveTask{
		Running: v.Running, Token: &headracev1.Token{Epoch: v.Token.Epoch, Push: v.Token.Push}, Executor: v.Executor,
		ChosenTime: stamp(v.ChosenAt), PushedTime: stamp(v.PushedAt), AckedTime: stamp(v.AckedAt),
		Progress: v.Progress, LogLines: v.LogLines, WaitReason: v.WaitReason, MaxAttempts: uint32(v.MaxAttempts),
	}
	if bare {
		m.Task = store.EncodeBare(nil, l.Task)
	} else {
		t := *l.Task
		t.Payload = nil
		m.Task = store.Encode(nil, &t)
	}
	return m
}

func readLive(m *headracev1.LiveTask) (core.Live, error) {
	if len(m.GetTask()) == 0 {
		return core.Live{}, nil
	}
	t, err := store.Decode(m.Task)
	if err != nil {
		return core.Live{}, fmt.Errorf("the peer's answer: %w", err)
	}
	return core.Live{Task: t, View: core.View{
		Running: m.Running, Token: task.Token{Epoch: m.Token.GetEpoch(), Push: m.Token.GetPush()}, Executor: m.Executor,
		ChosenAt: at(m.ChosenTime), PushedAt: at(m.PushedTime), AckedAt: at(m.AckedTime),
		Progress: m.Progress, LogLines: m.LogLines, WaitReason: m.WaitReason, MaxAttempts: int(m.MaxAttempts),
	}}, nil
}

// writeReport adds what the door knows to the statistics.
func writeReport(m *headracev1.StreamStatsResponse, report func() *door.Report) {
	if report == nil {
		return
	}
	r := report()
	if r == nil {
		return
	}
	m.SharedPressure = r.Shared
	m.Tenants = make([]*headracev1.PeerTenantUsage, len(r.Tenants))
	all := make([]headracev1.PeerTenantUsage, len(r.Tenants))
	for i, u := range r.Tenants {
		t := &all[i]
		t.Tenant, t.Ready, t.Rows, t.Bytes = u.Tenant, u.Ready, u.Rows, u.Bytes
		t.FinishRate, t.OfferedRate, t.AcceptedRate, t.OfferedCost = u.Finish, u.Offered, u.Accepted, u.Cost
		m.Tenants[i] = t
	}
}

// readReport returns what a peer's door knows.
func readReport(m *headracev1.StreamStatsResponse, at time.Time) *door.Report {
	r := &door.Report{At: at, Shared: m.SharedPressure, Tenants: make([]door.Usage, len(m.Tenants))}
	for i, t := range m.Tenants {
		r.Tenants[i] = door.Usage{Tenant: t.Tenant, Ready: t.Ready, Rows: t.Rows, Bytes: t.Bytes,
			Finish: t.FinishRate, Offered: t.OfferedRate, Accepted: t.AcceptedRate, Cost: t.OfferedCost}
	}
	return r
}

func stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func at(m *timestamppb.Timestamp) time.Time {
	if m == nil {
		return time.Time{}
	}
	return m.AsTime()
}
