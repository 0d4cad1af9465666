package push

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/durationpb"

	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

// Every limit of a hello: one over is refused with its field.
func TestEveryLimitOfAHello(t *testing.T) {
	functions := func(n int) (fs []*headracev1.FunctionDeclaration) {
		for i := range n {
			fs = append(fs, &headracev1.FunctionDeclaration{Tenant: "t", Name: fmt.Sprint("f", i)})
		}
		return fs
	}
	type h = headracev1.Hello
	first := func(m *h) *headracev1.FunctionDeclaration { return m.Functions[0] }
	for _, c := range []struct {
		field    string
		ok, over func(*h)
	}{
		{"executor_id", func(*h) {}, func(m *h) { m.ExecutorId = make([]byte, 15) }},
		{"name", func(m *h) { m.Name = strings.Repeat("n", 63) }, func(m *h) { m.Name = strings.Repeat("n", 64) }},
		{"name", func(m *h) { m.Name = "ü 1" }, func(m *h) { m.Name = "a\nb" }},
		{"sdk_version", func(m *h) { m.SdkVersion = "v1" }, func(m *h) { m.SdkVersion = "\xff" }},
		{"slots", func(m *h) { m.Slots = 100_000 }, func(m *h) { m.Slots = 100_001 }},
		{"slots", func(m *h) { m.Slots = 1 }, func(m *h) { m.Slots = 0 }},
		{"functions", func(m *h) { m.Functions = functions(10_000) }, func(m *h) { m.Functions = functions(10_001) }},
		{"functions", func(m *h) { m.Functions = functions(1) }, func(m *h) { m.Functions = nil }},
		{"functions[0].name", func(m *h) {}, func(m *h) { first(m).Name = "X" }},
		{"functions[0].tenant", func(m *h) {}, func(m *h) { first(m).Tenant = "" }},
		{"functions[1].name", func(m *h) {}, func(m *h) { m.Functions = append(m.Functions, first(m)) }},
		{"functions[0].timeout", func(m *h) { first(m).Timeout = durationpb.New(task.MaxTimeout) }, func(m *h) { first(m).Timeout = durationpb.New(task.MaxTimeout + 1) }},
		{"functions[0].max_attempts", func(m *h) { first(m).MaxAttempts = 1000 }, func(m *h) { first(m).MaxAttempts = 1001 }},
		{"functions[0].backoff.factor", func(m *h) { first(m).BackoffFactor = 100 }, func(m *h) { first(m).BackoffFactor = math.NaN() }},
		{"functions[0].backoff.base", func(m *h) { first(m).BackoffBase = durationpb.New(time.Hour) }, func(m *h) { first(m).BackoffBase = durationpb.New(25 * time.Hour) }},
		{"functions[0].orphan_timeout", func(m *h) { first(m).OrphanTimeout = durationpb.New(5 * time.Second) }, func(m *h) { first(m).OrphanTimeout = durationpb.New(5*time.Second - 1) }},
		{"functions[0].cancel_grace", func(m *h) { first(m).CancelGrace = durationpb.New(time.Hour) }, func(m *h) { first(m).CancelGrace = durationpb.New(time.Hour + 1) }},
		{"functions[0].downstream", func(m *h) { first(m).Downstream = "smtp" }, func(m *h) { first(m).Downstream = "S" }},
		{"claims[0].task_id", func(m *h) {
			m.Claims = []*headracev1.Claim{{TaskId: make([]byte, 16), Token: &headracev1.Token{}, Tenant: "t", Function: "f"}}
		}, func(m *h) { m.Claims = []*headracev1.Claim{{TaskId: make([]byte, 16), Tenant: "t", Function: "f"}} }},
		{"epochs", func(m *h) { m.Epochs = make([]*headracev1.PartitionEpoch, maxEpochs) }, func(m *h) { m.Epochs = make([]*headracev1.PartitionEpoch, maxEpochs+1) }},
	} {
		base := func() *headracev1.SessionRequest {
			return &headracev1.SessionRequest{Hello: &h{ExecutorId: make([]byte, 16), Slots: 1, Functions: functions(1)}}
		}
		good, bad := base(), base()
		c.ok(good.Hello)
		c.over(bad.Hello)
		if err := checkFirst(good); err != nil {
			t.Errorf("%s: within: %v", c.field, err)
		}
		var field *task.FieldError
		if err := checkFirst(bad); !errors.As(err, &field) || field.Field != "hello."+c.field || field.Want == "" {
			t.Errorf("%s: one over gives %v", c.field, err)
		}
	}
	if err := checkFirst(&headracev1.SessionRequest{}); err == nil {
		t.Error("no hello: accepted")
	}
}

// Whatever a handler says, its report is kept, within the limits.
func TestReportsAreBroughtIntoLimits(t *testing.T) {
	huge := &headracev1.Outcome{Result: make([]byte, 11), Message: "\xff\x00" + strings.Repeat("ä", 10_000),
		ResultContentType: "a\nb" + strings.Repeat("x", 300), Downstream: "Not A Name", RetryAfterMicros: -1, RunMicros: -1,
		Checkpoint: make([]byte, task.MaxCheckpoint+1)}
	future := &headracev1.Outcome{ErrorClass: 99, Message: "x"}
	success := &headracev1.Outcome{Result: make([]byte, 10), Checkpoint: make([]byte, task.MaxCheckpoint)}
	progress := &headracev1.ProgressReport{Fraction: math.NaN(), Message: strings.Repeat("ü", 1000)}
	clean(&headracev1.SessionRequest{Outcomes: []*headracev1.Outcome{huge, future, success}, Progress: []*headracev1.ProgressReport{progress}}, 10)
	if huge.ErrorClass != headracev1.ErrorClass_ERROR_CLASS_NON_RETRYABLE || huge.Result != nil || !strings.Contains(huge.Message, "11 bytes") ||
		len(huge.ResultContentType) > 255 || strings.Contains(huge.ResultContentType, "\n") || huge.Downstream != "" ||
		huge.RetryAfterMicros != 0 || huge.RunMicros != 0 || huge.Checkpoint != nil {
		t.Errorf("huge: %v", huge)
	}
	if future.ErrorClass != headracev1.ErrorClass_ERROR_CLASS_RETRYABLE || future.Message != "x" {
		t.Errorf("of a newer SDK: %v", future)
	}
	if len(success.Result) != 10 || success.ErrorClass != 0 || len(success.Checkpoint) != task.MaxCheckpoint {
		t.Errorf("success: %d bytes, %v", len(success.Result), success.ErrorClass)
	}
	if progress.Fraction != 0 || len(progress.Message) > 255 || !utf8.ValidString(progress.Message) {
		t.Errorf("progress: %v", progress)
	}
}

// Merging keeps every item, the order of pushes, and the bounds of a message; a push never overtakes a cancel.
func TestMerge(t *testing.T) {
	var in []*headracev1.SessionResponse
	for i := range 1000 {
		in = append(in, &headracev1.SessionResponse{Pushes: []*headracev1.Push{{PayloadSize: uint32(i)}}, Committed: []*headracev1.Committed{{}}})
	}
	in = append(in,
		&headracev1.SessionResponse{BeatAnswer: &headracev1.BeatAnswer{Number: 1}},
		&headracev1.SessionResponse{BeatAnswer: &headracev1.BeatAnswer{Number: 2}, Cancels: []*headracev1.CancelTry{{}}},
		&headracev1.SessionResponse{Pushes: []*headracev1.Push{{PayloadSize: 1000}}},
		&headracev1.SessionResponse{GoingAway: true},
		&headracev1.SessionResponse{Committed: []*headracev1.Committed{{}}})
	next, committed, beats, messages := uint32(0), 0, uint64(0), 0
	for m := range merge(in) {
		messages++
		if len(m.Pushes) > mergePushes {
			t.Errorf("%d pushes in a message", len(m.Pushes))
		}
		for _, p := range m.Pushes {
			if p.PayloadSize != next {
				t.Fatalf("push %d after %d", p.PayloadSize, next)
			}
			next++
			if p.PayloadSize == 1000 && len(m.Cancels) > 0 {
				t.Error("a push rides with a cancel that was before it")
			}
		}
		committed += len(m.Committed)
		if b := m.BeatAnswer; b != nil {
			if b.Number != beats+1 {
				t.Errorf("beat %d after %d", b.Number, beats)
			}
			beats = b.Number
		}
	}
	if next != 1001 || committed != 1001 || beats != 2 || messages > 9 {
		t.Errorf("%d pushes, %d committed, %d beats in %d messages", next, committed, beats, messages)
	}
}
