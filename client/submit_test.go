package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/fn"
	"github.com/headrace/headrace/internal/faketime"
	"github.com/headrace/headrace/internal/grpcx"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

type (
	batchRequest  = headracev1.SubmitBatchRequest
	batchResponse = headracev1.SubmitBatchResponse
)

// bubble runs a test against a server and a client of it, in fake time.
func bubble(t *testing.T, cfg client.Config, f func(t *testing.T, s *fakeServer, c *client.Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newFake()
		f(t, s, s.dial(t, cfg))
	})
}

// eachOnce checks that n payloads are stored, none of them twice.
func eachOnce(t *testing.T, s *fakeServer, n int) {
	t.Helper()
	got := s.payloads()
	for p, times := range got {
		if times != 1 {
			t.Errorf("%q is stored %d times", p, times)
		}
	}
	if len(got) != n {
		t.Errorf("%d tasks are stored, want %d", len(got), n)
	}
}

// 256 callers who submit one task after the other share calls: with two calls under way, each takes
// about half of what is there.
func TestCallersShareCalls(t *testing.T) {
	bubble(t, client.Config{}, func(t *testing.T, s *fakeServer, c *client.Client) {
		s.submit = func(_ int, _ *batchRequest, commit func() *batchResponse) (*batchResponse, error) {
			faketime.Pass(5 * time.Millisecond) // the commit
			return commit(), nil
		}
		var wg sync.WaitGroup
		for caller := range 256 {
			wg.Go(func() {
				for i := range 10 {
					if _, err := c.Submit(t.Context(), client.Task{Function: "f", Payload: fmt.Appendf(nil, "%d/%d", caller, i)}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		eachOnce(t, s, 2560)
		if n := s.callCount(); n > 80 {
			t.Errorf("%d calls for 2,560 tasks, want at most 80", n)
		}
	})
}

// One caller alone waits for nobody: a submit takes as long as a call.
func TestAloneThereIsNoDelay(t *testing.T) {
	bubble(t, client.Config{}, func(t *testing.T, s *fakeServer, c *client.Client) {
		s.submit = func(_ int, _ *batchRequest, commit func() *batchResponse) (*batchResponse, error) {
			faketime.Pass(5 * time.Millisecond)
			return commit(), nil
		}
		start := time.Now()
		for range 10 {
			if _, err := c.Submit(t.Context(), client.Task{Function: "f"}); err != nil {
				t.Fatal(err)
			}
		}
		if d := time.Since(start); d != 50*time.Millisecond {
			t.Errorf("10 submits took %v, want 10 calls of 5ms", d)
		}
	})
}

// A call carries at most MaxBatch tasks and MaxBatchBytes; a larger task travels alone.
func TestBatchesAreBounded(t *testing.T) {
	bubble(t, client.Config{MaxInFlight: 1, MaxBatch: 7, MaxBatchBytes: 2000}, func(t *testing.T, s *fakeServer, c *client.Client) {
		s.submit = func(n int, req *batchRequest, commit func() *batchResponse) (*batchResponse, error) {
			if size := req.SizeVT(); len(req.Tasks) > 7 || len(req.Tasks) > 1 && size > 2100 {
				t.Errorf("a call of %d tasks, %d bytes", len(req.Tasks), size)
			}
			faketime.Pass(time.Millisecond)
			return commit(), nil
		}
		var wg sync.WaitGroup
		for i := range 60 {
			wg.Go(func() {
				p := append(fmt.Appendf(nil, "%03d", i), make([]byte, i%3*700)...)
				if i%10 == 0 {
					p = append(p, make([]byte, 5000)...)
				}
				if _, err := c.Submit(t.Context(), client.Task{Function: "f", Payload: p}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		eachOnce(t, s, 60)
	})
}

// The server stores each call and breaks the connection on every third, or stays silent on every
// fourth: tasks are as many as requests, none twice. A retry is the same call, marked as one.
func TestLostAnswersMakeNoSecondTask(t *testing.T) {
	bubble(t, client.Config{}, func(t *testing.T, s *fakeServer, c *client.Client) {
		s.submit = func(n int, _ *batchRequest, commit func() *batchResponse) (*batchResponse, error) {
			res := commit()
			faketime.Pass(time.Millisecond)
			switch {
			case n%3 == 0:
				s.cut(false)
			case n%4 == 0:
				faketime.Pass(time.Minute) // longer than CallTimeout
			}
			return res, nil
		}
		var wg sync.WaitGroup
		for caller := range 20 {
			wg.Go(func() {
				for i := range 20 {
					if _, err := c.Submit(t.Context(), client.Task{Function: "f", Payload: fmt.Appendf(nil, "%d/%d", caller, i)}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		eachOnce(t, s, 400)
		first := map[string]*batchRequest{}
		retries := 0
		for _, req := range s.calls {
			id := string(req.RequestId)
			before := first[id]
			if len(id) != 16 || before != nil && !req.Retry { // a first call may be lost on its way
				t.Errorf("call with id %x has retry=%v, but was seen before", id, req.Retry)
			}
			if before == nil {
				first[id] = req
				continue
			}
			retries++
			if len(before.Tasks) != len(req.Tasks) || !bytes.Equal(before.Tasks[0].Payload, req.Tasks[0].Payload) {
				t.Errorf("the retry of %x has other tasks", id)
			}
		}
		if retries == 0 {
			t.Error("no call was repeated: the test shows nothing")
		}
	})
}

// Each refusal for good costs one call, comes at once, and has its own type (B113), whether it is of
// the call or of an item.
func TestPermanentErrorsAreNotRetried(t *testing.T) {
	for _, code := range []codes.Code{
		codes.InvalidArgument, codes.AlreadyExists, codes.NotFound, codes.PermissionDenied, codes.Unauthenticated,
		codes.FailedPrecondition, codes.OutOfRange, codes.Unimplemented, codes.Internal, codes.Unknown, codes.ResourceExhausted,
	} {
		for _, ofItem := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v of item %v", code, ofItem), func(t *testing.T) {
				bubble(t, client.Config{}, func(t *testing.T, s *fakeServer, c *client.Client) {
					s.submit = func(_ int, req *batchRequest, _ func() *batchResponse) (*batchResponse, error) {
						if ofItem {
							e := refusal(code, "some_reason", 0)
							e.ExistingId = "old"
							e.Metadata = map[string]string{grpcx.MetaField: "labels", grpcx.MetaWant: "at most 16"}
							return &batchResponse{Outcomes: []*headracev1.SubmitOutcome{{Error: e}}}, nil
						}
						return nil, grpcx.Info{Code: code, Reason: "some_reason", Message: "no", Metadata: map[string]string{
							grpcx.MetaExistingID: "old", grpcx.MetaField: "labels", grpcx.MetaWant: "at most 16"}}.Err()
					}
					ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
					defer cancel()
					start := time.Now()
					_, err := c.Submit(ctx, client.Task{Function: "f"})
					if time.Since(start) > 0 || s.callCount() != 1 {
						t.Errorf("%d calls in %v", s.callCount(), time.Since(start))
					}
					var dup *client.DuplicateError
					var field *task.FieldError
					var e *client.Error
					switch {
					case code == codes.AlreadyExists:
						if !errors.As(err, &dup) || dup.ExistingID != "old" {
							t.Errorf("got %v", err)
						}
					case !errors.As(err, &e) || e.Code != code || e.Reason != "some_reason":
						t.Errorf("got %v", err)
					case code == codes.NotFound && !errors.Is(err, client.ErrNotFound),
						code == codes.Internal && !errors.Is(err, client.ErrOutcomeUnknown),
						code == codes.InvalidArgument && (!errors.As(err, &field) || field.Field != "labels"):
						t.Errorf("lacks its kind: %v", err)
					}
				})
			})
		}
	}
}

// Backpressure is waited for exactly as long as the server says, by the items that it names, and the
// task is new then: nothing was stored.
func TestRetryAfterIsHonoured(t *testing.T) {
	for _, ofItem := range []bool{false, true} {
		t.Run(fmt.Sprintf("of item %v", ofItem), func(t *testing.T) {
			bubble(t, client.Config{}, func(t *testing.T, s *fakeServer, c *client.Client) {
				start := time.Now()
				s.submit = func(n int, req *batchRequest, commit func() *batchResponse) (*batchResponse, error) {
					if time.Since(start) >= 90*time.Second {
						return commit(), nil
					}
					if !ofItem {
						return nil, grpcx.Info{Code: codes.ResourceExhausted, Reason: "tenant_rate", RetryAfter: 30 * time.Second}.Err()
					}
					return s.store(req, func(_ int, t *headracev1.TaskSpec) *headracev1.SubmitError {
						if t.Function == "slow" {
							return refusal(codes.ResourceExhausted, "tenant_rate", 30*time.Second)
						}
						return nil
					}), nil
				}
				var wg sync.WaitGroup
				for function, want := range map[string]time.Duration{"slow": 90 * time.Second, "quick": 0} {
					if !ofItem {
						want = 90 * time.Second
					}
					wg.Go(func() {
						_, err := c.Submit(t.Context(), client.Task{Function: function, Payload: []byte(function)})
						if d := time.Since(start); err != nil || d != want {
							t.Errorf("%s: %v after %v, want %v", function, err, d, want)
						}
					})
				}
				wg.Wait()
				eachOnce(t, s, 2)
				for _, req := range s.calls {
					if req.Retry {
						t.Error("a refused call was repeated as if its answer had been lost")
					}
				}
			})
		})
	}
}

func TestBackpressureCanFail(t *testing.T) {
	bubble(t, client.Config{FailOnBackpressure: true}, func(t *testing.T, s *fakeServer, c *client.Client) {
		s.submit = func(_ int, req *batchRequest, _ func() *batchResponse) (*batchResponse, error) {
			return nil, grpcx.Info{Code: codes.ResourceExhausted, Reason: "tenant_rows", Message: "full", RetryAfter: time.Minute}.Err()
		}
		_, err := c.Submit(t.Context(), client.Task{Function: "f"})
		var bp *client.BackpressureError
		if !errors.As(err, &bp) || bp.RetryAfter != time.Minute || bp.Reason != "tenant_rows" {
			t.Errorf("Submit: %v", err)
		}
		out, err := c.SubmitBatch(t.Context(), make([]client.Task, 3))
		if err != nil || len(out) != 3 || !errors.As(out[2].Err, &bp) {
			t.Errorf("SubmitBatch: %v, %v", out, err)
		}
		if n := s.callCount(); n != 2 {
			t.Errorf("%d calls, want 2", n)
		}
	})
}

// A batch in which one item's answer is missing and another is refused for now is sent again whole: were
// the refused one sent anew beside it, it could be stored twice.
func TestMixedAnswersStayTogether(t *testing.T) {
	for _, many := range []bool{false, true} {
		bubble(t, client.Config{MaxInFlight: 1}, func(t *testing.T, s *fakeServer, c *client.Client) {
			s.submit = func(n int, req *batchRequest, commit func() *batchResponse) (*batchResponse, error) {
				if len(req.Tasks) < 3 {
					faketime.Pass(time.Millisecond) // others gather
					return commit(), nil
				}
				if !req.Retry {
					return s.store(req, func(i int, t *headracev1.TaskSpec) *headracev1.SubmitError {
						return []*headracev1.SubmitError{
							refusal(codes.Unavailable, "owner_moves", 0),
							refusal(codes.ResourceExhausted, "tenant_rate", time.Second), nil}[i%3]
					}), nil
				}
				return commit(), nil
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			payload := func(i int) client.Task { return client.Task{Function: "f", Payload: fmt.Appendf(nil, "%d", i)} }
			if many {
				tasks := []client.Task{payload(0), payload(1), payload(2), payload(3), payload(4), payload(5), payload(6)}
				if _, err := c.SubmitBatch(ctx, tasks); err != nil {
					t.Error(err)
				}
			} else {
				var wg sync.WaitGroup
				for i := range 7 {
					wg.Go(func() {
						if _, err := c.Submit(ctx, payload(i)); err != nil {
							t.Error(err)
						}
					})
				}
				wg.Wait()
			}
			eachOnce(t, s, 7)
		})
	}
}

// Outcomes come in the order of the tasks, over several calls with lost answers, refusals and tasks that
// were there already.
func TestBatchOutcomesKeepOrder(t *testing.T) {
	bubble(t, client.Config{}, func(t *testing.T, s *fakeServer, c *client.Client) {
		s.submit = func(n int, _ *batchRequest, commit func() *batchResponse) (*batchResponse, error) {
			res := commit()
			if n%2 == 1 {
				s.cut(false)
			}
			return res, nil
		}
		if out, err := c.SubmitBatch(t.Context(), nil); err != nil || len(out) != 0 {
			t.Errorf("nothing: %v, %v", out, err)
		}
		var tasks []client.Task
		for i := range 5003 {
			tk := client.Task{Function: "f", Payload: fmt.Appendf(nil, "%d", i)}
			switch i % 10 {
			case 3:
				tk.Function = "Not A Name"
			case 4:
				tk.MaxAttempts = -1 // refused before it is sent
			}
			tasks = append(tasks, tk)
		}
		out, err := c.SubmitBatch(t.Context(), tasks)
		if err != nil || len(out) != len(tasks) {
			t.Fatalf("%d outcomes, %v", len(out), err)
		}
		for i, o := range out {
			bad := i%10 == 3 || i%10 == 4
			if bad != (o.Err != nil) {
				t.Errorf("task %d: %v", i, o.Err)
			} else if !bad && string(s.find(o.ID).Payload) != string(tasks[i].Payload) {
				t.Errorf("outcome %d is of the task with payload %s", i, s.find(o.ID).Payload)
			}
		}
		var again []client.Task
		for i := range 3 {
			again = append(again, client.Task{Function: "f", Payload: fmt.Appendf(nil, "p%d", i%2), Options: client.Options{ID: "same"}})
		}
		out, err = c.SubmitBatch(t.Context(), again)
		var dup *client.DuplicateError
		if err != nil || out[0].Err != nil || !errors.As(out[1].Err, &dup) || dup.ExistingID != out[0].ID || !out[2].Deduplicated {
			t.Errorf("duplicates: %+v, %v", out, err)
		}
	})
}

// What can't be sent by itself is refused at once and does not harm those beside it.
func TestOversizedTaskHarmsNobody(t *testing.T) {
	bubble(t, client.Config{}, func(t *testing.T, s *fakeServer, c *client.Client) {
		out, err := c.SubmitBatch(t.Context(), []client.Task{{Function: "f"}, {Function: "f", Payload: make([]byte, 18<<20)}, {Function: "f"}})
		var field *task.FieldError
		if err != nil || out[0].Err != nil || out[2].Err != nil || !errors.As(out[1].Err, &field) {
			t.Errorf("%+v, %v", out, err)
		}
		if out, err = c.SubmitBatch(t.Context(), []client.Task{{Function: "f"}, {Function: "f", Payload: make([]byte, 16<<20)}}); err != nil || out[1].Err != nil {
			t.Errorf("the largest payload of all: %+v, %v", out, err)
		}
	})
}

var double = fn.Define[int, int]("double", fn.Options{})

func TestTypedSubmitAndWait(t *testing.T) {
	bubble(t, client.Config{}, func(t *testing.T, s *fakeServer, c *client.Client) {
		s.run = map[string]func([]byte) ([]byte, error){"double": func(p []byte) ([]byte, error) {
			if string(p) == "13" {
				return nil, errors.New("unlucky")
			}
			return append(p, '0'), nil
		}}
		h, err := client.Submit(t.Context(), c, double, 4, client.Options{ID: "four", Priority: new(uint8(0)), Band: client.BandLow, Labels: map[string]string{"a": "b"}})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := h.Wait(t.Context()); err != nil || got != 40 {
			t.Errorf("result %v, %v", got, err)
		}
		info, err := c.Get(t.Context(), client.ByClientID("four"))
		if err != nil || info.ID != h.ID || info.Priority != 0 || info.Band != client.BandLow || info.Labels["a"] != "b" || info.ContentType != "application/json" {
			t.Errorf("stored as %+v, %v", info, err)
		}
		if h, err = client.Submit(t.Context(), c, double, 13, client.Options{}); err != nil {
			t.Fatal(err)
		}
		_, err = client.Attach(c, double, h.ID).Wait(t.Context())
		var failed *client.OutcomeError
		if !errors.As(err, &failed) || failed.Task.State != task.Failed || !strings.Contains(err.Error(), "unlucky") {
			t.Errorf("failure: %v", err)
		}
		if info, _ = c.Get(t.Context(), client.ByID(h.ID)); info.Priority != task.DefaultPriority {
			t.Errorf("unset priority became %d", info.Priority)
		}
		if _, err = client.Submit(t.Context(), c, fn.Define[int, int]("No", fn.Options{}), 1, client.Options{}); err == nil {
			t.Error("a wrong definition was accepted")
		}
	})
}

// Submits enter middleware A, B, C and leave C, B, A, singly and as batches; it can change tasks and
// refuse them, and the caller's slice stays as it was.
func TestMiddleware(t *testing.T) {
	var trail []string
	step := func(name string) client.Middleware {
		return func(next client.SubmitFunc) client.SubmitFunc {
			return func(ctx context.Context, tasks []client.Task) ([]client.Outcome, error) {
				trail = append(trail, name)
				for i := range tasks {
					tasks[i].Function += name
				}
				out, err := next(ctx, tasks)
				trail = append(trail, name+"'")
				return out, err
			}
		}
	}
	veto := errors.New("veto")
	refuse := func(next client.SubmitFunc) client.SubmitFunc {
		return func(ctx context.Context, tasks []client.Task) ([]client.Outcome, error) {
			if len(tasks) == 3 {
				return nil, veto
			}
			return next(ctx, tasks)
		}
	}
	bubble(t, client.Config{Middleware: []client.Middleware{step("a"), step("b"), refuse, step("c")}}, func(t *testing.T, s *fakeServer, c *client.Client) {
		if _, err := c.Submit(t.Context(), client.Task{Function: "f"}); err != nil {
			t.Fatal(err)
		}
		tasks := []client.Task{{Function: "g"}, {Function: "h"}}
		if _, err := c.SubmitBatch(t.Context(), tasks); err != nil {
			t.Fatal(err)
		}
		if got, want := strings.Join(trail, " "), "a b c c' b' a' a b c c' b' a'"; got != want {
			t.Errorf("trail %s, want %s", got, want)
		}
		if s.tasks[0].Function != "fabc" || s.tasks[2].Function != "habc" || tasks[1].Function != "h" {
			t.Errorf("stored %s and %s, the caller's is %s", s.tasks[0].Function, s.tasks[2].Function, tasks[1].Function)
		}
		if _, err := c.SubmitBatch(t.Context(), make([]client.Task, 3)); !errors.Is(err, veto) {
			t.Errorf("refused: %v", err)
		}
	})
}

// A well-formed trace context travels with the task; a malformed one is left out, never an error (B132).
func TestTraceContext(t *testing.T) {
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	bubble(t, client.Config{}, func(t *testing.T, s *fakeServer, c *client.Client) {
		for _, x := range []struct{ parent, state, wantParent, wantState string }{
			{parent, "k=v", parent, "k=v"},
			{parent, strings.Repeat("x", 10<<10), parent, ""},
			{parent, "k=\x00", parent, ""},
			{"00-xyz", "k=v", "", ""},
			{strings.ToUpper(parent), "", "", ""},
			{strings.Repeat("0", 10<<10), "", "", ""},
		} {
			if _, err := c.Submit(client.WithTraceParent(t.Context(), x.parent, x.state), client.Task{Function: "f"}); err != nil {
				t.Fatal(err)
			}
			got := s.calls[len(s.calls)-1].Tasks[0]
			if got.TraceParent != x.wantParent || got.TraceState != x.wantState {
				t.Errorf("%.60q, %.20q became %q, %q", x.parent, x.state, got.TraceParent, got.TraceState)
			}
		}
	})
}

// The key goes with every call, and each client's tenant into every request.
func TestKeyAndTenant(t *testing.T) {
	bubble(t, client.Config{APIKey: "hr_1_x", Tenant: "a"}, func(t *testing.T, s *fakeServer, c *client.Client) {
		b, err := c.ForTenant("b")
		if err != nil {
			t.Fatal(err)
		}
		var ids [2]string
		for i, cl := range []*client.Client{c, b} {
			got, err := cl.Submit(t.Context(), client.Task{Function: "f", Payload: []byte(cl.Tenant()), Options: client.Options{ID: "order-1"}})
			if err != nil {
				t.Fatal(err)
			}
			ids[i] = got.ID
		}
		if key := s.meta.Get("authorization"); len(key) != 1 || key[0] != "Bearer hr_1_x" {
			t.Errorf("authorization: %v", key)
		}
		if ids[0] == ids[1] {
			t.Error("two tenants share a task (B009)")
		}
		if _, err := b.Get(t.Context(), client.ByID(ids[0])); !errors.Is(err, client.ErrNotFound) {
			t.Errorf("b reads a's task: %v", err)
		}
		for _, name := range []string{"", " ", "*", "A"} {
			if _, err := c.ForTenant(name); err == nil {
				t.Errorf("tenant %q was accepted (B147)", name)
			}
		}
		b.Close()
		if _, err := b.Submit(t.Context(), client.Task{Function: "f"}); !errors.Is(err, client.ErrClosed) {
			t.Errorf("closed: %v", err)
		}
		if _, err := c.Get(t.Context(), client.ByID(ids[0])); err != nil {
			t.Errorf("the connection ended with one of its tenants: %v", err)
		}
		d, err := c.ForTenant("d")
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		if _, err := d.Submit(t.Context(), client.Task{Function: "f"}); !errors.Is(err, client.ErrClosed) {
			t.Errorf("the parent is closed: %v", err)
		}
	})
}

// What certainly was not stored is sent as a new request, whose candidates may be others: it does not wait for those that
// refused it. It is no backpressure.
func TestRefusedWithNothingStoredIsSentAnew(t *testing.T) {
	for _, many := range []bool{false, true} {
		bubble(t, client.Config{FailOnBackpressure: true}, func(t *testing.T, s *fakeServer, c *client.Client) {
			ids := map[string]bool{}
			s.submit = func(n int, req *batchRequest, commit func() *batchResponse) (*batchResponse, error) {
				ids[string(req.RequestId)] = true
				if req.Retry {
					t.Errorf("call %d is marked as a retry", n)
				}
				if len(ids) < 3 {
					return nil, grpcx.Info{Code: codes.Unavailable, Reason: "not_owner", RetryAfter: 200 * time.Millisecond,
						Metadata: map[string]string{grpcx.MetaStored: grpcx.StoredNo}}.Err()
				}
				return commit(), nil
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			began := time.Now()
			tasks := []client.Task{{Function: "f"}}
			if many {
				tasks = append(tasks, client.Task{Function: "f", Payload: []byte("2")})
			}
			if _, err := c.SubmitBatch(ctx, tasks); err != nil {
				t.Error(err)
			}
			if took := time.Since(began); took != 400*time.Millisecond {
				t.Errorf("took %v, want two waits of 200ms", took)
			}
		})
	}
}
