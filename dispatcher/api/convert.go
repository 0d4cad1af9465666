package api

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/headrace/headrace/dispatcher/core"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// Reasons to wait of a task that is not in the owner's memory: the core knows better where it has it.
const (
	waitDue   = "waits for its due time"
	waitRetry = "waits for its next try"
	waitTurn  = "waits for its turn"
)

// describe is describe with what this node knows beside the row: a waiting task of which the owner says nothing may be
// paused.
func (s *Services) describe(t *store.Task, v *core.View) *headracev1.Task {
	m := describe(t, v)
	if m.WaitReason == waitTurn {
		if p := task.PauseOf(s.cfg.Pauses.Of(t.Tenant), t.Function, t.Band, s.cfg.Now()); p != nil {
			m.WaitReason = p.Why(t.Tenant)
		}
	}
	return m
}

// describe returns a task as callers see it, without payload and result. V lays the owner's knowledge
// over it; nil: there is none.
func describe(t *store.Task, v *core.View) *headracev1.Task {
	m := &headracev1.Task{
		Id:                t.ID.String(),
		Tenant:            t.Tenant,
		Function:          t.Function,
		ClientId:          t.ClientID,
		State:             headracev1.TaskState(t.State),
		Attempt:           uint32(t.Attempt),
		MaxAttempts:       uint32(t.MaxAttempts),
		Losses:            uint32(t.Losses),
		Throttles:         uint32(t.Throttles),
		Snoozes:           uint32(t.Snoozes),
		Partition:         t.ID.Partition(),
		Priority:          uint32(t.Priority),
		Band:              headracev1.Band(t.Band + 1),
		CreateTime:        stamp(t.CreatedAt),
		DueTime:           stamp(t.DueAt),
		StartTime:         stamp(t.StartedAt),
		FinishTime:        stamp(t.FinishedAt),
		StartTtl:          span(t.StartTTL),
		DeadlineTime:      stamp(t.Deadline),
		PayloadSize:       uint32(t.PayloadSize),
		ContentType:       t.ContentType,
		Labels:            t.Labels,
		ResultContentType: t.ResultType,
		CancelRequested:   t.Cancel != nil,
		TraceParent:       t.TraceParent,
	}
	if t.ErrClass != task.ClassNone || t.ErrMessage != "" {
		m.Error = &headracev1.TaskError{ErrorClass: headracev1.ErrorClass(t.ErrClass), Message: t.ErrMessage}
	}
	if !t.LastToken.IsZero() {
		m.Token = t.LastToken.String()
	}
	if t.State.Terminal() {
		return m
	}
	switch t.State {
	case task.Scheduled:
		m.WaitReason = waitDue
	case task.Retrying:
		m.WaitReason = waitRetry
	default:
		m.WaitReason = waitTurn
	}
	if v == nil {
		return m
	}
	m.MaxAttempts = uint32(v.MaxAttempts)
	if v.WaitReason != "" {
		m.WaitReason = v.WaitReason
	}
	m.Progress = v.Progress
	if !v.Token.IsZero() {
		m.Token = v.Token.String()
	}
	if v.Running {
		m.State, m.WaitReason = headracev1.TaskState_TASK_STATE_RUNNING, ""
		if m.StartTime == nil {
			m.StartTime = stamp(v.AckedAt)
		}
	}
	return m
}

// attempts returns the tries of a task, oldest first, the running one last.
func attempts(t *store.Task, v *core.View) []*headracev1.Attempt {
	out := make([]*headracev1.Attempt, 0, len(t.Tries)+1)
	for _, y := range t.Tries {
		a := &headracev1.Attempt{
			Attempt: uint32(y.Attempt), Token: y.Token.String(), Executor: y.Executor,
			ChooseTime: stamp(y.ChosenAt), PushTime: stamp(y.PushedAt), AckTime: stamp(y.AckedAt),
			EndTime: stamp(y.EndedAt), CommitTime: stamp(y.CommittedAt),
		}
		if y.Class != task.ClassNone {
			a.Error = &headracev1.TaskError{ErrorClass: headracev1.ErrorClass(y.Class), Message: y.Message}
		}
		out = append(out, a)
	}
	if v != nil && v.Running && !t.State.Terminal() {
		out = append(out, &headracev1.Attempt{
			Attempt: uint32(t.Attempt), Token: v.Token.String(), Executor: v.Executor,
			ChooseTime: stamp(v.ChosenAt), PushTime: stamp(v.PushedAt), AckTime: stamp(v.AckedAt), Running: true,
		})
	}
	return out
}

func stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func span(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}
