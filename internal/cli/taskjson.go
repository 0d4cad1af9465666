package cli

import (
	"time"
	"unicode/utf8"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/task"
)

// taskJSON is a task as scripts see it. Fields are added, never renamed or removed. What is not known
// yet is null; in lists payload and result are left out.
type taskJSON struct {
	ID          string `json:"id"`
	ClientID    string `json:"client_id"`
	Tenant      string `json:"tenant"`
	Function    string `json:"function"`
	State       string `json:"state"`
	Attempt     int    `json:"attempt"`
	MaxAttempts int    `json:"max_attempts"`
	Losses      int    `json:"losses"`
	Throttles   int    `json:"throttles"`
	Snoozes     int    `json:"snoozes"`
	Partition   uint32 `json:"partition"`
	Priority    int    `json:"priority"`
	Band        string `json:"band"`

	CreatedAt  jsonTime `json:"created_at"`
	DueAt      jsonTime `json:"due_at"`
	StartedAt  jsonTime `json:"started_at"`
	FinishedAt jsonTime `json:"finished_at"`
	StartTTL   string   `json:"start_ttl,omitempty"`
	Deadline   jsonTime `json:"deadline"`

	Payload           *[]byte           `json:"payload,omitempty"` // base64
	PayloadText       *string           `json:"payload_text,omitempty"`
	PayloadSize       int               `json:"payload_size"`
	ContentType       string            `json:"content_type"`
	Labels            map[string]string `json:"labels"`
	Result            *[]byte           `json:"result"` // base64; null unless it succeeded, and in lists
	ResultText        *string           `json:"result_text,omitempty"`
	ResultContentType string            `json:"result_content_type,omitempty"`

	Error           *errorJSON    `json:"error"`
	WaitReason      string        `json:"wait_reason"`
	CancelRequested bool          `json:"cancel_requested"`
	Token           string        `json:"token"`
	Progress        *progressJSON `json:"progress"`
	TraceParent     string        `json:"trace_parent,omitempty"`
}

type errorJSON struct {
	Class   string `json:"class"`
	Message string `json:"message"`
}

type progressJSON struct {
	Fraction float64  `json:"fraction"`
	Message  string   `json:"message"`
	At       jsonTime `json:"at"`
}

// newTaskJSON returns t for scripts. Full is false for tasks of a list, which lack payload and result.
func newTaskJSON(t *client.TaskInfo, full bool) taskJSON {
	j := taskJSON{
		ID: t.ID, ClientID: t.ClientID, Tenant: t.Tenant, Function: t.Function, State: t.State.String(),
		Attempt: t.Attempt, MaxAttempts: t.MaxAttempts, Losses: t.Losses, Throttles: t.Throttles, Snoozes: t.Snoozes,
		Partition: t.Partition, Priority: t.Priority, Band: string(t.Band),
		CreatedAt: jsonTime(t.CreatedAt), DueAt: jsonTime(t.DueAt), StartedAt: jsonTime(t.StartedAt), FinishedAt: jsonTime(t.FinishedAt),
		Deadline:    jsonTime(t.Deadline),
		PayloadSize: t.PayloadSize, ContentType: t.ContentType, Labels: t.Labels,
		ResultContentType: t.ResultContentType,
		Error:             newErrorJSON(t.Error), WaitReason: t.WaitReason, CancelRequested: t.CancelRequested,
		Token: t.Token, TraceParent: t.TraceParent,
	}
	if j.Labels == nil {
		j.Labels = map[string]string{}
	}
	if t.StartTTL > 0 {
		j.StartTTL = t.StartTTL.String()
	}
	if p := t.Progress; p != nil {
		j.Progress = &progressJSON{p.Fraction, p.Message, jsonTime(p.At)}
	}
	if full {
		if len(t.Payload) == t.PayloadSize { // a wait brings none
			j.Payload, j.PayloadText = bytesJSON(t.Payload)
		}
		if t.State == task.Succeeded {
			j.Result, j.ResultText = bytesJSON(t.Result)
		}
	}
	return j
}

// bytesJSON returns b, never nil, so that it is "" and not null, and its text where it is UTF-8.
func bytesJSON(b []byte) (*[]byte, *string) {
	if b == nil {
		b = []byte{}
	}
	if !utf8.Valid(b) {
		return &b, nil
	}
	return &b, new(string(b))
}

func newErrorJSON(e *client.TaskError) *errorJSON {
	if e == nil {
		return nil
	}
	return &errorJSON{e.Class.String(), e.Message}
}

// attemptJSON is one try of a task as scripts see it.
type attemptJSON struct {
	TaskID      string     `json:"task_id"`
	Attempt     int        `json:"attempt"`
	Token       string     `json:"token"`
	Executor    string     `json:"executor"`
	ChosenAt    jsonTime   `json:"chosen_at"`
	PushedAt    jsonTime   `json:"pushed_at"`
	AckedAt     jsonTime   `json:"acked_at"`
	EndedAt     jsonTime   `json:"ended_at"`
	CommittedAt jsonTime   `json:"committed_at"`
	Error       *errorJSON `json:"error"`
	Running     bool       `json:"running"`
}

func newAttemptJSON(id string, a client.Attempt) attemptJSON {
	return attemptJSON{
		TaskID: id, Attempt: a.Attempt, Token: a.Token, Executor: a.Executor,
		ChosenAt: jsonTime(a.ChosenAt), PushedAt: jsonTime(a.PushedAt), AckedAt: jsonTime(a.AckedAt),
		EndedAt: jsonTime(a.EndedAt), CommittedAt: jsonTime(a.CommittedAt), Error: newErrorJSON(a.Error), Running: a.Running,
	}
}

// logJSON is one line that a handler logged.
type logJSON struct {
	TaskID  string   `json:"task_id"`
	Attempt int      `json:"attempt"`
	At      jsonTime `json:"at"`
	Level   string   `json:"level"`
	Message string   `json:"message"`
}

// span shows how long it was from a to b, or nothing where one of them is not known.
func span(a, b time.Time) string {
	if a.IsZero() || b.IsZero() {
		return "-"
	}
	return b.Sub(a).Round(10 * time.Microsecond).String()
}
