package api

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/internal/grpcx"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func services(maxPayload int) *Services {
	return &Services{cfg: Config{MaxPayload: maxPayload, Secret: "s"}}
}

// Every limit of a task: what is just within it makes a row, what is one over is refused with a field and
// the range in words.
func TestEveryLimitOfATask(t *testing.T) {
	labels := func(n int) map[string]string {
		m := map[string]string{}
		for i := range n {
			m[fmt.Sprint("k", i)] = "v"
		}
		return m
	}
	dur := func(d time.Duration) *durationpb.Duration { return durationpb.New(d) }
	at := func(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(noon.Add(d)) }
	type spec = headracev1.TaskSpec
	for _, c := range []struct {
		field    string
		ok, over func(*spec)
	}{
		{"function", func(s *spec) { s.Function = strings.Repeat("f", 63) }, func(s *spec) { s.Function = strings.Repeat("f", 64) }},
		{"function", func(s *spec) { s.Function = "0.a_b-c" }, func(s *spec) { s.Function = "" }},
		{"function", func(s *spec) { s.Function = "a" }, func(s *spec) { s.Function = "A" }},
		{"function", func(s *spec) { s.Function = "a" }, func(s *spec) { s.Function = "-a" }},
		{"payload", func(s *spec) { s.Payload = make([]byte, 100) }, func(s *spec) { s.Payload = make([]byte, 101) }},
		{"content_type", func(s *spec) { s.ContentType = strings.Repeat("c", 255) }, func(s *spec) { s.ContentType = strings.Repeat("c", 256) }},
		{"content_type", func(s *spec) { s.ContentType = "text/plain; x=ü" }, func(s *spec) { s.ContentType = "a\x00" }},
		{"client_id", func(s *spec) { s.ClientId = strings.Repeat("i", 256) }, func(s *spec) { s.ClientId = strings.Repeat("i", 257) }},
		{"client_id", func(s *spec) { s.ClientId = "a/b %2F 😀" }, func(s *spec) { s.ClientId = "a\nb" }},
		{"client_id", func(s *spec) { s.ClientId = "." }, func(s *spec) { s.ClientId = "\xff" }},
		{"priority", func(s *spec) { s.Priority = proto.Uint32(9) }, func(s *spec) { s.Priority = proto.Uint32(10) }},
		{"band", func(s *spec) { s.Band = headracev1.Band_BAND_LOW }, func(s *spec) { s.Band = 4 }},
		{"band", func(s *spec) {}, func(s *spec) { s.Band = -1 }},
		{"delay", func(s *spec) { s.Delay = dur(task.MaxDelay) }, func(s *spec) { s.Delay = dur(task.MaxDelay + time.Microsecond) }},
		{"delay", func(s *spec) { s.Delay = dur(0) }, func(s *spec) { s.Delay = dur(-time.Microsecond) }},
		{"delay", func(s *spec) { s.Delay = dur(1) }, func(s *spec) { s.Delay = dur(1); s.DueTime = at(0) }},
		{"delay", func(s *spec) {}, func(s *spec) { s.Delay = &durationpb.Duration{Seconds: 1, Nanos: -1} }},
		{"due_time", func(s *spec) { s.DueTime = at(task.MaxDelay) }, func(s *spec) { s.DueTime = at(task.MaxDelay + time.Microsecond) }},
		{"due_time", func(s *spec) { s.DueTime = &timestamppb.Timestamp{} }, func(s *spec) { s.DueTime = &timestamppb.Timestamp{Seconds: -1} }},
		{"due_time", func(s *spec) {}, func(s *spec) { s.DueTime = &timestamppb.Timestamp{Nanos: 1e9} }},
		{"start_ttl", func(s *spec) { s.StartTtl = dur(time.Millisecond) }, func(s *spec) { s.StartTtl = dur(time.Millisecond - time.Microsecond) }},
		{"start_ttl", func(s *spec) { s.StartTtl = dur(task.MaxDelay) }, func(s *spec) { s.StartTtl = dur(task.MaxDelay + time.Microsecond) }},
		{"deadline_time", func(s *spec) { s.DeadlineTime = at(task.MaxDelay) }, func(s *spec) { s.DeadlineTime = at(task.MaxDelay + time.Microsecond) }},
		{"timeout", func(s *spec) { s.Timeout = dur(time.Millisecond) }, func(s *spec) { s.Timeout = dur(0) }},
		{"timeout", func(s *spec) { s.Timeout = dur(task.MaxTimeout) }, func(s *spec) { s.Timeout = dur(task.MaxTimeout + time.Microsecond) }},
		{"max_attempts", func(s *spec) { s.MaxAttempts = 1000 }, func(s *spec) { s.MaxAttempts = 1001 }},
		{"labels", func(s *spec) { s.Labels = labels(16) }, func(s *spec) { s.Labels = labels(17) }},
		{"labels", func(s *spec) { s.Labels = map[string]string{strings.Repeat("k", 63): ""} }, func(s *spec) { s.Labels = map[string]string{strings.Repeat("k", 64): ""} }},
		{"labels", func(s *spec) { s.Labels = map[string]string{"k": strings.Repeat("v", 255)} }, func(s *spec) { s.Labels = map[string]string{"k": strings.Repeat("v", 256)} }},
		{"labels", func(s *spec) {}, func(s *spec) { s.Labels = map[string]string{"": "v"} }},
	} {
		s := services(100)
		good, bad := &spec{Function: "f"}, &spec{Function: "f"}
		c.ok(good)
		c.over(bad)
		if row, err := s.build("t", "", good, noon); err != nil || row == nil {
			t.Errorf("%s: %v is within: %v", c.field, good, err)
		}
		_, err := s.build("t", "", bad, noon)
		var field *task.FieldError
		if !errors.As(err, &field) || field.Field != c.field || field.Want == "" {
			t.Errorf("%s: one over gives %v", c.field, err)
			continue
		}
		info := s.info("test", within("task.", err))
		if info.Code != codes.InvalidArgument || info.Reason != "invalid_argument" ||
			info.Metadata[grpcx.MetaField] != "task."+c.field || info.Metadata[grpcx.MetaWant] != field.Want {
			t.Errorf("%s: the caller is told %+v", c.field, info)
		}
	}
}

// What was not said gets its default, and an explicit zero stays one (B060, B079).
func TestDefaultsOfATask(t *testing.T) {
	s := services(100)
	row, err := s.build("acme", "0123456789abcdef", &headracev1.TaskSpec{Function: "f", Payload: []byte{}}, noon.Add(123))
	if err != nil {
		t.Fatal(err)
	}
	if row.Priority != 5 || row.Band != task.Normal || row.Attempt != 1 || row.Payload != nil || !row.DueAt.IsZero() || row.PayloadHash != "" {
		t.Errorf("defaults: %+v", row)
	}
	row, err = s.build("acme", "", &headracev1.TaskSpec{Function: "f", Priority: proto.Uint32(0), ClientId: "x",
		DueTime: timestamppb.New(noon.Add(-time.Hour)), TraceParent: "nonsense", TraceState: "a=b"}, noon)
	if err != nil {
		t.Fatal(err)
	}
	if row.Priority != 0 || len(row.PayloadHash) != 16 || !row.DueAt.IsZero() || row.TraceParent != "" || row.TraceState != "" {
		t.Errorf("explicit: %+v", row)
	}
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	if row, err = s.build("acme", "", &headracev1.TaskSpec{Function: "f", TraceParent: parent, TraceState: "a=b"}, noon); err != nil || row.TraceParent != parent || row.TraceState != "a=b" {
		t.Errorf("trace: %+v, %v", row, err)
	}
}

// A page token works for its own list only: any other byte, tenant or filter is refused.
func TestTamperedTokens(t *testing.T) {
	s := services(100)
	f := store.Filter{Tenant: "acme", Function: "f"}
	c := store.Cursor{CreatedAt: noon.Add(time.Microsecond), ID: task.NewID(3, 7, 9)}
	token := s.pageToken(f, c)
	if got, err := s.readPageToken(f, token); err != nil || got != c {
		t.Fatalf("its own list: %v, %v", got, err)
	}
	for i := range token {
		other := byte('A')
		if token[i] == other {
			other = 'B'
		}
		bad := token[:i] + string(other) + token[i+1:]
		if _, err := s.readPageToken(f, bad); err == nil {
			t.Errorf("byte %d changed: accepted", i)
		}
	}
	for _, g := range []store.Filter{{Tenant: "acmf", Function: "f"}, {Tenant: "acme"}, {Tenant: "acme", Function: "f", State: task.Queued}, {Tenant: "acme", Function: "f", Label: "a=b"}} {
		if _, err := s.readPageToken(g, token); err == nil {
			t.Errorf("accepted for %+v", g)
		}
	}
	for _, bad := range []string{"x", token + "A", token[1:], "%"} {
		if _, err := s.readPageToken(f, bad); err == nil {
			t.Errorf("%q: accepted", bad)
		}
	}
}

// Each of our errors has its own code and reason; what has none is INTERNAL and says nothing of itself.
func TestBorder(t *testing.T) {
	s := services(1)
	s.log = zap.NewNop()
	seen := map[string]bool{}
	for _, c := range []struct {
		err  error
		code codes.Code
	}{
		{&task.FieldError{Field: "f", Want: "w"}, codes.InvalidArgument},
		{&core.ExistsError{ID: task.NewID(1, 2, 3)}, codes.AlreadyExists},
		{store.ErrNotFound, codes.NotFound},
		{store.ErrFull, codes.ResourceExhausted},
		{errTooManyWaits, codes.ResourceExhausted},
		{errBusy, codes.ResourceExhausted},
		{errStaleToken, codes.FailedPrecondition},
		{core.ErrNotOwner, codes.Unavailable},
		{core.ErrStoreSlow, codes.Unavailable},
		{core.ErrUnknownOutcome, codes.Unavailable},
		{errDraining, codes.Unavailable},
		{context.DeadlineExceeded, codes.DeadlineExceeded},
		{context.Canceled, codes.Canceled},
		{errors.New("secret of the house"), codes.Internal},
	} {
		info := grpcx.Read(s.toStatus("test", fmt.Errorf("wrapped: %w", c.err)))
		if info.Code != c.code || info.Reason == "" || seen[info.Reason] {
			t.Errorf("%v: %+v", c.err, info)
		}
		seen[info.Reason] = true
		if strings.Contains(info.Message, "secret") || slices.Contains(slices.Collect(maps.Values(info.Metadata)), "secret") {
			t.Errorf("%v: told %+v", c.err, info)
		}
	}
	if err := s.toStatus("test", grpcx.Info{Code: codes.Aborted, Reason: "r"}.Err()); grpcx.Read(err).Code != codes.Aborted {
		t.Errorf("a status does not pass: %v", err)
	}
}

// A stored log line comes back as it was reported, whatever is in its message.
func TestLogLinesComeBack(t *testing.T) {
	for _, message := range []string{"", "x", "two words", "  spaced", "line\nbreak"} {
		in := &headracev1.LogLine{Attempt: 2, LogTime: timestamppb.New(noon.Add(1234 * time.Microsecond)), Level: "warn", Message: message}
		if got := logLine(store.Try{Attempt: 2}, core.LogText(in)); !proto.Equal(in, got) {
			t.Errorf("%v came back as %v", in, got)
		}
	}
	if got := logLine(store.Try{Attempt: 1}, "free text"); got.Message != "free text" || got.Level != "info" {
		t.Errorf("free text: %v", got)
	}
}
