package api

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// minTTL is the least start TTL; less could never be met.
const minTTL = time.Millisecond

// build checks one spec and makes the row of it. Its error is a *task.FieldError whose field is relative to
// the spec. The row shares the spec's memory.
func (s *Services) build(tenant, requestID string, spec *headracev1.TaskSpec, now time.Time) (*store.Task, error) {
	if spec == nil {
		return nil, &task.FieldError{Field: "function", Want: "a task"}
	}
	if err := task.Name("function", spec.Function); err != nil {
		return nil, err
	}
	if len(spec.Payload) > s.cfg.MaxPayload {
		return nil, &task.FieldError{Field: "payload", Value: fmt.Sprintf("%d bytes", len(spec.Payload)), Want: fmt.Sprintf("at most %d bytes", s.cfg.MaxPayload)}
	}
	if len(spec.ContentType) > task.MaxContentTypeLen || !plain(spec.ContentType) {
		return nil, &task.FieldError{Field: "content_type", Value: spec.ContentType, Want: "at most 255 bytes of UTF-8 without control characters"}
	}
	t := &store.Task{
		Tenant:      tenant,
		Function:    spec.Function,
		RequestID:   requestID,
		ContentType: spec.ContentType,
		PayloadSize: len(spec.Payload),
		Priority:    task.DefaultPriority,
		Band:        task.Normal,
		Attempt:     1,
	}
	if len(spec.Payload) > 0 {
		t.Payload = spec.Payload
	}
	if spec.ClientId != "" {
		if err := task.ClientID("client_id", spec.ClientId); err != nil {
			return nil, err
		}
		sum := sha256.Sum256(spec.Payload)
		t.ClientID, t.PayloadHash = spec.ClientId, string(sum[:16])
	}
	if spec.Priority != nil {
		if *spec.Priority > task.MaxPriority {
			return nil, &task.FieldError{Field: "priority", Value: fmt.Sprint(*spec.Priority), Want: "0 to 9"}
		}
		t.Priority = uint8(*spec.Priority)
	}
	switch spec.Band {
	case headracev1.Band_BAND_UNSPECIFIED, headracev1.Band_BAND_NORMAL:
	case headracev1.Band_BAND_HIGH:
		t.Band = task.High
	case headracev1.Band_BAND_LOW:
		t.Band = task.Low
	default:
		return nil, &task.FieldError{Field: "band", Value: fmt.Sprint(int32(spec.Band)), Want: "high, normal or low"}
	}
	if spec.MaxAttempts > task.MaxAttemptsLimit {
		return nil, &task.FieldError{Field: "max_attempts", Value: fmt.Sprint(spec.MaxAttempts), Want: "1 to 1000, or 0 for the function's"}
	}
	t.MaxAttempts = int(spec.MaxAttempts)
	if err := times(t, spec, now); err != nil {
		return nil, err
	}
	if len(spec.Labels) > 0 {
		if err := task.Labels(spec.Labels); err != nil {
			return nil, err
		}
		t.Labels = spec.Labels
	}
	if traceParent(spec.TraceParent) {
		t.TraceParent = spec.TraceParent
		if len(spec.TraceState) <= task.MaxTraceState && plain(spec.TraceState) {
			t.TraceState = spec.TraceState
		}
	}
	return t, nil
}

// times sets when the task may start and must end.
func times(t *store.Task, spec *headracev1.TaskSpec, now time.Time) error {
	var due time.Time // zero: at once, that is when it is accepted
	switch {
	case spec.DueTime != nil && spec.Delay != nil:
		return &task.FieldError{Field: "delay", Want: "either a delay or a due_time"}
	case spec.DueTime != nil:
		at, err := instant("due_time", spec.DueTime, now)
		if err != nil {
			return err
		}
		if at.After(now) { // an earlier one would only jump its queue
			due = at
		}
	case spec.Delay != nil:
		d, err := duration("delay", spec.Delay, 0, task.MaxDelay)
		if err != nil {
			return err
		}
		if d > 0 {
			due = now.Add(d)
		}
	}
	t.DueAt = due.UTC().Truncate(time.Microsecond)
	t.FirstDueAt = t.DueAt
	var err error
	if spec.StartTtl != nil {
		if t.StartTTL, err = duration("start_ttl", spec.StartTtl, minTTL, task.MaxDelay); err != nil {
			return err
		}
	}
	if spec.DeadlineTime != nil {
		if t.Deadline, err = instant("deadline_time", spec.DeadlineTime, now); err != nil {
			return err
		}
	}
	if spec.Timeout != nil {
		if t.Timeout, err = duration("timeout", spec.Timeout, time.Millisecond, task.MaxTimeout); err != nil {
			return err
		}
	}
	return nil
}

func duration(field string, d *durationpb.Duration, low, high time.Duration) (time.Duration, error) {
	if d.CheckValid() != nil {
		return 0, &task.FieldError{Field: field, Value: "an invalid duration", Want: fmt.Sprintf("%v to %v", low, high)}
	}
	v := d.AsDuration().Truncate(time.Microsecond)
	return v, task.Duration(field, v, low, high)
}

// instant reads a time that is from 1970 to ten years ahead.
func instant(field string, ts *timestamppb.Timestamp, now time.Time) (time.Time, error) {
	if ts.CheckValid() == nil {
		if at := ts.AsTime().Truncate(time.Microsecond); at.Unix() >= 0 && at.Sub(now) <= task.MaxDelay {
			return at, nil
		}
	}
	return time.Time{}, &task.FieldError{Field: field, Value: fmt.Sprintf("%d s since 1970", ts.GetSeconds()), Want: "a time from 1970 to 10 years ahead"}
}

// plain reports whether s is UTF-8 without control characters.
func plain(s string) bool {
	ascii := true
	for i := 0; i < len(s) && ascii; i++ {
		ascii = s[i] >= 0x20 && s[i] < 0x7f
	}
	return ascii || utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool {
		return r < 0x20 || r >= 0x7f && r < 0xa0 || r == 0x2028 || r == 0x2029
	})
}

// traceParent reports whether s is a W3C trace parent: 00-<32 hex>-<16 hex>-<2 hex>, or a later version of it.
func traceParent(s string) bool {
	if len(s) < 55 || len(s) > 128 || s[2] != '-' || s[35] != '-' || s[52] != '-' || len(s) > 55 && s[55] != '-' || s[:2] == "ff" {
		return false
	}
	for i := range 55 {
		c := s[i]
		if i != 2 && i != 35 && i != 52 && !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f') {
			return false
		}
	}
	return plain(s) && s[3:35] != strings.Repeat("0", 32) && s[36:52] != strings.Repeat("0", 16)
}

// within puts the name of the message around a field error's field.
func within(prefix string, err error) error {
	if f, ok := err.(*task.FieldError); ok {
		return &task.FieldError{Field: prefix + f.Field, Value: f.Value, Want: f.Want}
	}
	return err
}
