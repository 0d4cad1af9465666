package executor_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/headrace/headrace/executor"
	"github.com/headrace/headrace/fn"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

type form struct {
	N    int    `json:"n"`
	Name string `json:"name,omitempty"`
}

var typed = fn.Define[form, string]("f", fn.Options{Timeout: time.Minute, Exclusive: true})

// A typed handler gets its input, knows what it runs for, and its result comes back.
func TestTypedHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, s := run(t, executor.Config{Name: "me", Slots: 3}, func(x *executor.Executor) {
			executor.Handle(x, typed, func(ctx context.Context, in form) (string, error) {
				tp, ts := executor.TraceParent(ctx)
				ctx = context.WithValue(ctx, someKey{}, "value") // also through derived contexts
				return fmt.Sprintln(in.N, executor.Attempt(ctx), executor.Token(ctx), executor.TaskKey(ctx) == executor.TaskID(ctx).String(),
					executor.Labels(ctx)["k"], tp, ts, string(executor.LastCheckpoint(ctx))), nil
			})
		})
		defer r.close()
		if h := s.hello; h.Name != "me" || h.Slots != 3 || len(h.ExecutorId) != 16 || len(h.Functions) != 1 ||
			h.Functions[0].Timeout.AsDuration() != time.Minute || !h.Functions[0].Exclusive || h.Functions[0].OrphanTimeout != nil {
			t.Errorf("hello: %v", h)
		}
		s.push(1, func(p *headracev1.Push) {
			p.Payload, p.Attempt, p.Labels = []byte(`{"n":42}`), 3, map[string]string{"k": "v"}
			p.TraceParent, p.TraceState, p.Checkpoint = "tp", "ts", []byte("page 7")
		})
		o := r.outcome()
		want := `"42 3 0000000005-000000000001 true v tp ts page 7\n"`
		if o.ErrorClass != 0 || string(o.Result) != want || o.ResultContentType != "application/json" {
			t.Errorf("outcome %v, want %s", text(o), want)
		}
		if a := <-r.n.acks; a.Refusal != 0 {
			t.Errorf("ack: %v", a)
		}
	})
}

// What a handler returns decides what comes next, also through wrapping (B129).
func TestErrorClasses(t *testing.T) {
	boom := errors.New("boom")
	throttle := func(d time.Duration) error {
		st, err := status.New(codes.ResourceExhausted, "slow down").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(d)})
		if err != nil {
			t.Fatal(err)
		}
		return st.Err()
	}
	retryInfo, _ := status.New(codes.Unavailable, "away").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(4 * time.Second)})
	cases := []struct {
		err   error
		class task.Class
		after time.Duration
		down  string
	}{
		{boom, task.Retryable, 0, ""},
		{executor.NonRetryable(boom), task.NonRetryable, 0, ""},
		{fmt.Errorf("call: %w", executor.NonRetryable(boom)), task.NonRetryable, 0, ""},
		{errors.Join(boom, executor.NonRetryable(boom)), task.NonRetryable, 0, ""},
		{errors.Join(executor.RetryAfter(boom, time.Second), fmt.Errorf("x: %w", executor.NonRetryable(boom))), task.NonRetryable, 0, ""},
		{custom{executor.NonRetryable(boom)}, task.NonRetryable, 0, ""},
		{executor.RetryAfter(executor.NonRetryable(boom), time.Second), task.Retryable, time.Second, ""}, // the outermost word counts
		{executor.RetryAfter(boom, 7*time.Second), task.Retryable, 7 * time.Second, ""},
		{executor.RetryAfter(boom, -time.Second), task.Retryable, 0, ""},
		{executor.RetryAfter(boom, 100*365*24*time.Hour), task.Retryable, 24 * time.Hour, ""},
		{executor.Throttled(boom, "stripe", 2*time.Second), task.Throttled, 2 * time.Second, "stripe"},
		{executor.Throttled(boom, "No Such Name", 0), task.Throttled, 0, ""},
		{executor.Snooze(time.Hour), task.Snoozed, time.Hour, ""},
		{fmt.Errorf("call: %w", throttle(3*time.Second)), task.Throttled, 3 * time.Second, ""},
		{executor.NonRetryable(throttle(time.Second)), task.NonRetryable, 0, ""},
		{retryInfo.Err(), task.Retryable, 4 * time.Second, ""},
		{status.Error(codes.InvalidArgument, "bad"), task.Retryable, 0, ""},
		{context.Canceled, task.Retryable, 0, ""}, // of some context of its own
	}
	for _, c := range cases[1:13] {
		if !errors.Is(c.err, boom) && c.class != task.Snoozed {
			t.Errorf("%v lost what it wraps", c.err)
		}
	}
	if executor.NonRetryable(nil) != nil || executor.RetryAfter(nil, 1) != nil || executor.Throttled(nil, "", 1) != nil {
		t.Error("wrapped nil is an error")
	}
	synctest.Test(t, func(t *testing.T) {
		r, s := run(t, executor.Config{Slots: 1}, func(x *executor.Executor) {
			x.HandleRaw("f", fn.Options{}, func(_ context.Context, tk *executor.Task) (executor.Result, error) {
				return executor.Result{Body: []byte("no result")}, cases[tk.ID.Seq()].err
			})
		})
		defer r.close()
		for i, c := range cases {
			synctest.Wait()
			s.push(uint64(i), nil)
			o := r.outcome()
			if task.Class(o.ErrorClass) != c.class || o.RetryAfterMicros != c.after.Microseconds() || o.Downstream != c.down || o.Message != c.err.Error() || len(o.Result) != 0 {
				t.Errorf("%v became %v after %v µs of %q: %q", c.err, task.Class(o.ErrorClass), o.RetryAfterMicros, o.Downstream, o.Message)
			}
		}
	})
}

type someKey struct{}

type custom struct{ error }

func (c custom) Unwrap() error { return c.error }

func goexit() { runtime.Goexit() }

// panicky has a decoder that panics.
var panicky = fn.DefineCodec("decoder", fn.Codec[int]{
	Encode: func(int) ([]byte, error) { return nil, nil },
	Decode: func([]byte) (int, error) { panic("in decoder") },
}, fn.JSON[int](), fn.Options{})

type badError struct{}

func (*badError) Error() string { panic("in Error") }

// A panic, wherever it happens, is a failure with its stack; the slot is free and the next task runs (B126).
func TestPanics(t *testing.T) {
	handlers := map[string]executor.Handler{
		"plain": func(context.Context, *executor.Task) (executor.Result, error) { panic("x") },
		"nilmap": func(context.Context, *executor.Task) (executor.Result, error) {
			var m map[string]int
			m["a"] = 1 //lint:ignore SA5000 it shall panic
			return executor.Result{}, nil
		},
		"index": func(_ context.Context, tk *executor.Task) (executor.Result, error) {
			return executor.Result{Body: tk.Payload[99:100]}, nil
		},
		"deferred": func(context.Context, *executor.Task) (executor.Result, error) {
			defer func() { panic("in defer") }()
			return executor.Result{}, nil
		},
		"nested": func(context.Context, *executor.Task) (executor.Result, error) {
			defer func() { panic("second") }()
			panic("first")
		},
		"thrown": func(context.Context, *executor.Task) (executor.Result, error) {
			panic(executor.NonRetryable(errors.New("thrown")))
		},
		"huge":    func(context.Context, *executor.Task) (executor.Result, error) { panic(strings.Repeat("ü", 1<<20)) },
		"error":   func(context.Context, *executor.Task) (executor.Result, error) { return executor.Result{}, &badError{} },
		"decoder": nil,
		"midware": func(context.Context, *executor.Task) (executor.Result, error) { return executor.Result{}, nil },
		"goexit": func(context.Context, *executor.Task) (executor.Result, error) {
			goexit()
			return executor.Result{}, nil
		},
	}
	synctest.Test(t, func(t *testing.T) {
		cfg := executor.Config{Slots: 1, Middleware: []executor.Middleware{func(next executor.Handler) executor.Handler {
			return func(ctx context.Context, tk *executor.Task) (executor.Result, error) {
				if tk.Function == "midware" {
					panic("in middleware")
				}
				return next(ctx, tk)
			}
		}}}
		r, s := run(t, cfg, func(x *executor.Executor) {
			for name, h := range handlers {
				if h != nil {
					x.HandleRaw(name, fn.Options{}, h)
				}
			}
			executor.Handle(x, panicky, func(context.Context, int) (int, error) { return 0, nil })
		})
		defer r.close()
		seq := uint64(0)
		for name := range handlers {
			seq++
			synctest.Wait()
			began := time.Now()
			s.push(seq, func(p *headracev1.Push) { p.Function = name })
			o := r.outcome()
			if task.Class(o.ErrorClass) != task.Retryable || len(o.Message) > task.MaxErrorText || time.Since(began) > time.Second {
				t.Errorf("%s became %v, %d bytes of text", name, task.Class(o.ErrorClass), len(o.Message))
			}
			if name != "huge" && name != "goexit" && !strings.Contains(o.Message, "executor_test.go") {
				t.Errorf("%s has no stack: %s", name, o.Message)
			}
			if name != "goexit" && !strings.HasPrefix(o.Message, "panic: ") {
				t.Errorf("%s: %.80s", name, o.Message)
			}
		}
	})
}

// Each layer that is entered is left once, inside out, whatever happens within (B130).
func TestMiddlewareOrder(t *testing.T) {
	for _, c := range []struct{ mode, want string }{
		{"", "A B C handler C B A"},
		{"short", "A B B A"},
		{"panic", "A B C handler C B A"},
		{"panic in B", "A B A"},
		{"error", "A B C handler C B A"},
	} {
		synctest.Test(t, func(t *testing.T) {
			var order []string
			layer := func(name string) executor.Middleware {
				return func(next executor.Handler) executor.Handler {
					return func(ctx context.Context, tk *executor.Task) (executor.Result, error) {
						order = append(order, name)
						if name == "B" && c.mode == "panic in B" {
							panic("B")
						}
						if name != "B" || c.mode != "short" {
							if _, err := next(ctx, tk); err != nil {
								order = append(order, name) // without defer, on purpose
								return executor.Result{}, fmt.Errorf("%s: %w", name, err)
							}
						}
						order = append(order, name)
						return executor.Result{}, nil
					}
				}
			}
			r, s := run(t, executor.Config{Middleware: []executor.Middleware{layer("A"), layer("B"), layer("C")}}, func(x *executor.Executor) {
				x.HandleRaw("f", fn.Options{}, func(context.Context, *executor.Task) (executor.Result, error) {
					order = append(order, "handler")
					switch c.mode {
					case "panic":
						panic("handler")
					case "error":
						return executor.Result{}, errors.New("handler")
					}
					return executor.Result{}, nil
				})
			})
			defer r.close()
			s.push(1, nil)
			o := r.outcome()
			if got := strings.Join(order, " "); got != c.want {
				t.Errorf("%s: %s, want %s", c.mode, got, c.want)
			}
			if c.mode == "error" && o.Message != "A: B: C: handler" {
				t.Errorf("the layers made %q of the error", o.Message)
			}
		})
	}
}

// Bytes arrive as they were sent, and bad input is one failure that is not retried (B078, B079).
func TestPayloads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, s := run(t, executor.Config{Slots: 1, ResultBytes: 100}, func(x *executor.Executor) {
			x.HandleRaw("raw", fn.Options{}, func(_ context.Context, tk *executor.Task) (executor.Result, error) {
				return executor.Result{Body: tk.Payload, ContentType: tk.ContentType}, nil
			})
			executor.Handle(x, typed, func(context.Context, form) (string, error) { return "", nil })
		})
		defer r.close()
		seq := uint64(0)
		for _, p := range []string{"", "null", `""`, "[]", "{}", " ", "0", "false", "\xff", "\xef\xbb\xbf"} {
			seq++
			synctest.Wait()
			s.push(seq, func(m *headracev1.Push) { m.Function, m.Payload, m.ContentType = "raw", []byte(p), "x/y" })
			if o := r.outcome(); o.ErrorClass != 0 || string(o.Result) != p || o.ResultContentType != "x/y" {
				t.Errorf("%q became %v", p, text(o))
			}
		}
		for _, p := range []string{"abc", `{"n":"x"}`, `{"n":1`, "\x0a\x03abc"} {
			seq++
			synctest.Wait()
			s.push(seq, func(m *headracev1.Push) { m.Payload = []byte(p) })
			if o := r.outcome(); task.Class(o.ErrorClass) != task.NonRetryable || !strings.HasPrefix(o.Message, "decode error: ") {
				t.Errorf("%q became %v", p, text(o))
			}
		}
		synctest.Wait()
		s.push(seq+1, func(m *headracev1.Push) { m.Function, m.Payload = "raw", make([]byte, 101) })
		if o := r.outcome(); task.Class(o.ErrorClass) != task.NonRetryable || o.Message != "the handler returned a result of 101 bytes, at most 100 are possible" {
			t.Errorf("a large result became %v", text(o))
		}
	})
}

// Registrations that make no sense are named by Run; so is an executor that runs twice.
func TestRegistrationErrors(t *testing.T) {
	h := func(context.Context, *executor.Task) (executor.Result, error) { return executor.Result{}, nil }
	for want, register := range map[string]func(*executor.Executor){
		"no function is registered": func(*executor.Executor) {},
		"registered twice":          func(x *executor.Executor) { x.HandleRaw("f", fn.Options{}, h); x.HandleRaw("f", fn.Options{}, h) },
		"function: ":                func(x *executor.Executor) { x.HandleRaw("F", fn.Options{}, h) },
		"tenant: ":                  func(x *executor.Executor) { x.HandleRawTenant("", "f", fn.Options{}, h) },
		"policy.timeout: ":          func(x *executor.Executor) { x.HandleRaw("f", fn.Options{Timeout: 1}, h) },
		"the handler is nil":        func(x *executor.Executor) { x.HandleRaw("f", fn.Options{}, nil) },
		"1-63 characters of a-z, 0-9, '.'": func(x *executor.Executor) {
			executor.Handle(x, fn.Function[int, int]{}, func(context.Context, int) (int, error) { return 0, nil })
		},
	} {
		x, err := executor.New(executor.Config{})
		if err != nil {
			t.Fatal(err)
		}
		register(x)
		if err := x.Run(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Run = %v, want %q", err, want)
		}
	}
	for _, cfg := range []executor.Config{{Slots: -1}, {Slots: 100_001}, {Tenant: "A"}, {Name: strings.Repeat("x", 64)}, {ResultBytes: 17 << 20}} {
		_, err := executor.New(cfg)
		if fe, ok := errors.AsType[*task.FieldError](err); !ok || !strings.HasPrefix(fe.Field, "Config.") {
			t.Errorf("New(%+v) = %v", cfg, err)
		}
	}
}

// Many tenants in one process: each function belongs to its own.
func TestManyTenants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, s := run(t, executor.Config{Slots: 100}, func(x *executor.Executor) {
			for i := range 50 {
				x.HandleRawTenant(fmt.Sprintf("t%d", i), "f", fn.Options{}, func(_ context.Context, tk *executor.Task) (executor.Result, error) {
					return executor.Result{Body: fmt.Appendf(nil, "t%d of %s", i, tk.Tenant)}, nil
				})
			}
		})
		defer r.close()
		for i := range 50 {
			s.push(uint64(i), func(p *headracev1.Push) { p.Tenant = fmt.Sprintf("t%d", i) })
		}
		s.push(50, func(p *headracev1.Push) { p.Tenant = "t50" })
		var got []string
		for range 50 {
			got = append(got, string(r.outcome().Result))
		}
		slices.Sort(got)
		if got[0] != "t0 of t0" || len(slices.Compact(got)) != 50 {
			t.Errorf("%v", got)
		}
		synctest.Wait()
		refused := 0
		for range len(r.n.acks) {
			if a := <-r.n.acks; a.Refusal == headracev1.Refusal_REFUSAL_FUNCTION {
				refused++
			}
		}
		if refused != 1 {
			t.Errorf("%d refused, want the one for t50", refused)
		}
	})
}
