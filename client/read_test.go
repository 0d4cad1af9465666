package client_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc/codes"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/internal/grpcx"
	"github.com/headrace/headrace/task"
)

func TestReads(t *testing.T) {
	bubble(t, client.Config{}, func(t *testing.T, s *fakeServer, c *client.Client) {
		for i := range 25 {
			if _, err := c.Submit(t.Context(), client.Task{Function: fmt.Sprint("f", i%2), Payload: []byte{1}, Options: client.Options{
				ID: fmt.Sprint(i), Delay: time.Hour, StartTTL: time.Minute, Deadline: time.Unix(7e9, 0), Labels: map[string]string{"k": fmt.Sprint(i % 5)}}}); err != nil {
				t.Fatal(err)
			}
		}
		ref := client.ByClientID("7")
		info, err := c.Get(t.Context(), ref)
		if err != nil || info.ClientID != "7" || info.Function != "f1" || info.Tenant != "default" || info.State != task.Queued ||
			!info.DueAt.Equal(info.CreatedAt.Add(time.Hour)) || info.StartTTL != time.Minute || info.Deadline.Unix() != 7e9 ||
			!info.StartedAt.IsZero() || info.PayloadSize != 1 || info.Error != nil || info.Band != client.BandNormal && info.Band != client.BandHigh {
			t.Errorf("get: %+v, %v", info, err)
		}
		page, err := c.List(t.Context(), client.ListOptions{PageSize: 10})
		if err != nil || len(page.Tasks) != 10 || page.Next == "" {
			t.Errorf("page: %+v, %v", page, err)
		}
		var n int
		for info, err := range c.ListAll(t.Context(), client.ListOptions{Function: "f1", Label: "k=2", State: task.Queued, PageSize: 2}) {
			if err != nil || info.Function != "f1" {
				t.Errorf("list: %+v, %v", info, err)
			}
			n++
		}
		if n != 2 { // 7 and 17
			t.Errorf("listed %d", n)
		}
		if _, err := c.List(t.Context(), client.ListOptions{PageSize: 1001}); err == nil {
			t.Error("a page of 1,001 was accepted")
		}
		tries, total, err := c.Attempts(t.Context(), ref)
		if err != nil || total != 7 || len(tries) != 1 || tries[0].PushedAt.Unix() != 5 || tries[0].Error.Class != task.Timeout || !tries[0].AckedAt.IsZero() {
			t.Errorf("attempts: %+v, %d, %v", tries, total, err)
		}
		lines, truncated, err := c.Logs(t.Context(), ref)
		if err != nil || !truncated || len(lines) != 1 || lines[0].Message != "hello" || lines[0].At.Unix() != 6 {
			t.Errorf("logs: %+v, %v, %v", lines, truncated, err)
		}
		for _, want := range []client.CancelResult{client.Cancelled, client.AlreadyFinished} {
			if got, info, err := c.Cancel(t.Context(), ref, "no need"); err != nil || got != want || info.State != task.Cancelled {
				t.Errorf("cancel: %v, %+v, %v", got, info, err)
			}
		}
		for what, f := range map[string]func(client.Ref) error{
			"get":      func(r client.Ref) error { _, err := c.Get(t.Context(), r); return err },
			"cancel":   func(r client.Ref) error { _, _, err := c.Cancel(t.Context(), r, ""); return err },
			"attempts": func(r client.Ref) error { _, _, err := c.Attempts(t.Context(), r); return err },
			"logs":     func(r client.Ref) error { _, _, err := c.Logs(t.Context(), r); return err },
		} {
			if err := f(client.ByID("nosuch")); !errors.Is(err, client.ErrNotFound) || !strings.HasPrefix(err.Error(), what) || !strings.Contains(err.Error(), "nosuch") {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}

// Reads come through a broken connection, too.
func TestReadsAreRepeated(t *testing.T) {
	bubble(t, client.Config{}, func(t *testing.T, s *fakeServer, c *client.Client) {
		s.cut(true)
		time.AfterFunc(20*time.Second, func() { s.cut(false) })
		start := time.Now()
		if _, err := c.Get(t.Context(), client.ByID("x")); !errors.Is(err, client.ErrNotFound) || time.Since(start) < 20*time.Second || time.Since(start) > 30*time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

// An hour of trouble writes a line in ten seconds at most.
func TestLogIsRateLimited(t *testing.T) {
	core, logs := observer.New(zapcore.DebugLevel)
	bubble(t, client.Config{Logger: zap.New(core)}, func(t *testing.T, s *fakeServer, c *client.Client) {
		start := time.Now()
		s.submit = func(_ int, _ *batchRequest, commit func() *batchResponse) (*batchResponse, error) {
			if time.Since(start) > time.Hour {
				return commit(), nil
			}
			return nil, grpcx.Info{Code: codes.ResourceExhausted, RetryAfter: 100 * time.Millisecond}.Err()
		}
		if _, err := c.Submit(t.Context(), client.Task{Function: "f"}); err != nil {
			t.Fatal(err)
		}
		if n := logs.Len(); n < 100 || n > 361 {
			t.Errorf("%d lines in an hour", n)
		}
	})
}

func TestConfigValidateNamesTheField(t *testing.T) {
	if err := (client.Config{}).Validate(); err != nil {
		t.Errorf("the zero value: %v", err)
	}
	for field, cfg := range map[string]client.Config{
		"Addr":          {Addr: "nohost"},
		"Tenant":        {Tenant: "Not A Name"},
		"MaxInFlight":   {MaxInFlight: 65},
		"MaxBatch":      {MaxBatch: 1001},
		"MaxBatchBytes": {MaxBatchBytes: 5 << 20},
		"CallTimeout":   {CallTimeout: -1},
		"Middleware[1]": {Middleware: []client.Middleware{func(n client.SubmitFunc) client.SubmitFunc { return n }, nil}},
	} {
		_, err := client.Dial(cfg)
		var fe *task.FieldError
		if !errors.As(err, &fe) || fe.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}
