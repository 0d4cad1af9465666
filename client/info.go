package client

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

// A TaskInfo is what the platform knows of a task. Times that were not reached are zero.
type TaskInfo struct {
	ID          string // the server's
	ClientID    string // Options.ID, or empty
	Tenant      string
	Function    string
	State       task.State
	Attempt     int // spent attempts + 1; of a finished task, the attempt that ended it
	MaxAttempts int
	Losses      int // tries lost with their executor; they spend no attempt, nor do the next two
	Throttles   int // tries that a downstream throttled
	Snoozes     int // tries that asked to be called later
	Partition   uint32
	Priority    int
	Band        Band

	CreatedAt  time.Time
	DueAt      time.Time // of the next start
	StartedAt  time.Time // of the first try
	FinishedAt time.Time
	StartTTL   time.Duration
	Deadline   time.Time

	Payload           []byte // not in lists; of a finished task only while it is a dead letter
	PayloadSize       int    // bytes
	ContentType       string
	Labels            map[string]string
	Result            []byte // of a task that succeeded; not in lists
	ResultContentType string
	Error             *TaskError // of the last try that failed; nil if none did

	WaitReason      string // why it is not running, in words
	CancelRequested bool
	Token           string // fencing token of the current or last try
	Progress        *Progress
	TraceParent     string
}

// Succeeded reports whether the task has ended with success.
func (t *TaskInfo) Succeeded() bool { return t.State == task.Succeeded }

// A TaskError is why a task failed, or its last try did.
type TaskError struct {
	Class   task.Class
	Message string // at most 8 KiB
}

func (e *TaskError) Error() string { return fmt.Sprintf("%v: %s", e.Class, e.Message) }

// Progress is what a handler said of its own work.
type Progress struct {
	Fraction float64 // 0 to 1
	Message  string
	At       time.Time
}

// An Attempt is one try with its stage times; those not reached are zero.
type Attempt struct {
	Attempt     int
	Token       string
	Executor    string // name of the process
	ChosenAt    time.Time
	PushedAt    time.Time
	AckedAt     time.Time
	EndedAt     time.Time
	CommittedAt time.Time
	Error       *TaskError // nil: success, or it still runs
	Running     bool
}

// A LogLine is one line that a handler logged.
type LogLine struct {
	Attempt int
	At      time.Time
	Level   string // debug, info, warn or error
	Message string
}

func infoOf(t *headracev1.Task) *TaskInfo {
	i := &TaskInfo{
		ID: t.Id, ClientID: t.ClientId, Tenant: t.Tenant, Function: t.Function,
		State: task.State(t.State), Attempt: int(t.Attempt), MaxAttempts: int(t.MaxAttempts),
		Losses: int(t.Losses), Throttles: int(t.Throttles), Snoozes: int(t.Snoozes),
		Partition: t.Partition, Priority: int(t.Priority), Band: bandOf(t.Band),
		CreatedAt: timeOf(t.CreateTime), DueAt: timeOf(t.DueTime), StartedAt: timeOf(t.StartTime), FinishedAt: timeOf(t.FinishTime),
		StartTTL: t.StartTtl.AsDuration(), Deadline: timeOf(t.DeadlineTime),
		Payload: t.Payload, PayloadSize: int(t.PayloadSize), ContentType: t.ContentType, Labels: t.Labels,
		Result: t.Result, ResultContentType: t.ResultContentType, Error: errorOf(t.Error),
		WaitReason: t.WaitReason, CancelRequested: t.CancelRequested, Token: t.Token, TraceParent: t.TraceParent,
	}
	if p := t.Progress; p != nil {
		i.Progress = &Progress{p.Fraction, p.Message, timeOf(p.UpdateTime)}
	}
	return i
}

func attemptOf(a *headracev1.Attempt) Attempt {
	return Attempt{
		Attempt: int(a.Attempt), Token: a.Token, Executor: a.Executor,
		ChosenAt: timeOf(a.ChooseTime), PushedAt: timeOf(a.PushTime), AckedAt: timeOf(a.AckTime),
		EndedAt: timeOf(a.EndTime), CommittedAt: timeOf(a.CommitTime), Error: errorOf(a.Error), Running: a.Running,
	}
}

func errorOf(e *headracev1.TaskError) *TaskError {
	if e == nil {
		return nil
	}
	return &TaskError{task.Class(e.ErrorClass), e.Message}
}

func bandOf(b headracev1.Band) Band {
	switch b {
	case headracev1.Band_BAND_HIGH:
		return BandHigh
	case headracev1.Band_BAND_LOW:
		return BandLow
	}
	return BandNormal
}

// timeOf returns the zero time for an absent one, which AsTime would make 1970.
func timeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}
