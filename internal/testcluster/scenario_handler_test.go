package testcluster_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/test/bufconn"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/executor"
	"github.com/headrace/headrace/fn"
	"github.com/headrace/headrace/internal/faketime"
	"github.com/headrace/headrace/internal/grpcx"
	"github.com/headrace/headrace/internal/testcluster"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

// wrapped runs an executor with middleware until the test ends.
func wrapped(t *testing.T, c *testcluster.Cluster, mw []executor.Middleware, register func(*executor.Executor)) {
	t.Helper()
	x, err := executor.New(executor.Config{Addr: "127.0.0.1:7070", Tenant: "acme", Slots: 2, Dialer: c.Dial, Middleware: mw, DrainTimeout: time.Second,
		Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	register(x)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- x.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("executor: %v", err)
		}
	})
	<-x.Ready()
}

// A panic, wherever it comes from, is a failure with its stack within a second, and its slot is free (B126).
func TestScenarioPanics(t *testing.T) {
	testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
		once := fn.Options{MaxAttempts: 1}
		text := fn.Codec[string]{ContentType: "text/plain", Encode: func(s string) ([]byte, error) { return []byte(s), nil }, Decode: func(b []byte) (string, error) { return string(b), nil }}
		badDecode, badEncode := text, text
		badDecode.Decode = func([]byte) (string, error) { panic("in the decoder") }
		badEncode.Encode = func(s string) ([]byte, error) {
			if s == "result" {
				panic("in the encoder")
			}
			return []byte(s), nil
		}
		mw := func(next executor.Handler) executor.Handler {
			return func(ctx context.Context, tk *executor.Task) (executor.Result, error) {
				if tk.Function == "middleware" {
					panic("in the middleware")
				}
				return next(ctx, tk)
			}
		}
		wrapped(t, c, []executor.Middleware{mw}, func(x *executor.Executor) {
			var none map[string]int
			list := make([]int, 3)
			for name, f := range map[string]func(){
				"text": func() { panic("a text") }, "error": func() { panic(errCustom) }, "nil": func() { panic(nil) }, "map": func() { none["k"] = 1 },
				"index": func() { _ = list[len(name(x))] }, "deferred": func() { defer func() { panic("in a defer") }() },
				"large": func() { panic(strings.Repeat("x", 1<<20)) }, "middleware": func() {}, "binary": func() { panic("\x00\xff") },
			} {
				raw(x, name, once, func(context.Context, *executor.Task) ([]byte, error) { f(); return nil, nil })
			}
			executor.Handle(x, fn.DefineCodec("decode", badDecode, text, once), func(_ context.Context, s string) (string, error) { return s, nil })
			executor.Handle(x, fn.DefineCodec("encode", text, badEncode, once), func(context.Context, string) (string, error) { return "result", nil })
			raw(x, "fine", once, func(context.Context, *executor.Task) ([]byte, error) { return nil, nil })
		})
		cl := c.Client("acme")
		for _, name := range []string{"text", "error", "nil", "map", "index", "deferred", "large", "middleware", "binary", "decode", "encode"} {
			began := time.Now()
			id := submit(t, cl, client.Task{Function: name})
			info := wait(t, cl, id)
			if info.State != task.Failed || info.Error == nil || !strings.Contains(info.Error.Message, "panic") || !strings.Contains(info.Error.Message, ".go:") || len(info.Error.Message) > task.MaxErrorText {
				t.Errorf("%s: %v, %v", name, info.State, info.Error)
			}
			if took := time.Since(began); took > time.Second {
				t.Errorf("%s: told after %v", name, took)
			}
		}
		for range 20 {
			if info := wait(t, cl, submit(t, cl, client.Task{Function: "fine"})); info.State != task.Succeeded {
				t.Errorf("afterwards: %v", info.State)
			}
		}
		nothingRuns(t, c, "acme")
	})
}

// name is too long for a list of three.
func name(*executor.Executor) string { return "four" }

// Layers are entered in order and left in reverse, also when one of them answers itself, panics or changes
// the error, and when the try times out or is cancelled (B130).
func TestScenarioMiddlewareUnwinds(t *testing.T) {
	testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
		var trail journal
		layer := func(name string, special func(ctx context.Context, tk *executor.Task, next executor.Handler) (executor.Result, error)) executor.Middleware {
			return func(next executor.Handler) executor.Handler {
				return func(ctx context.Context, tk *executor.Task) (executor.Result, error) {
					trail.add(string(tk.Payload) + ":" + name)
					defer func() { trail.add(string(tk.Payload) + ":" + name + "'") }()
					if special != nil {
						return special(ctx, tk, next)
					}
					return next(ctx, tk)
				}
			}
		}
		b := func(ctx context.Context, tk *executor.Task, next executor.Handler) (executor.Result, error) {
			switch string(tk.Payload) {
			case "short":
				return executor.Result{Body: []byte("from b")}, nil
			case "panic":
				panic("in b")
			}
			return next(ctx, tk)
		}
		changes := func(ctx context.Context, tk *executor.Task, next executor.Handler) (executor.Result, error) {
			res, err := next(ctx, tk)
			if err != nil && ctx.Err() == nil {
				err = executor.NonRetryable(fmt.Errorf("changed: %w", err))
			}
			return res, err
		}
		wrapped(t, c, []executor.Middleware{layer("a", nil), layer("b", b), layer("c", changes)}, func(x *executor.Executor) {
			raw(x, "f", fn.Options{MaxAttempts: 1}, func(ctx context.Context, tk *executor.Task) ([]byte, error) {
				trail.add(string(tk.Payload) + ":h")
				switch string(tk.Payload) {
				case "fails":
					return nil, errCustom
				case "boom":
					panic("in h")
				case "timeout", "cancel":
					<-ctx.Done()
					return nil, context.Cause(ctx)
				}
				return nil, nil
			})
		})
		cl := c.Client("acme")
		for kind, want := range map[string]struct{ trail, text string }{
			"ok": {"a b c h c' b' a'", ""}, "short": {"a b b' a'", ""}, "panic": {"a b b' a'", "in b"}, "fails": {"a b c h c' b' a'", "changed: "},
			"boom": {"a b c h c' b' a'", "in h"}, "timeout": {"a b c h c' b' a'", ""}, "cancel": {"a b c h c' b' a'", ""},
		} {
			o := client.Options{}
			if kind == "timeout" {
				o.Timeout = time.Second
			}
			id := submit(t, cl, client.Task{Function: "f", Payload: []byte(kind), Options: o})
			if kind == "cancel" {
				faketime.Pass(time.Second) // of the bubble
				if _, _, err := cl.Cancel(t.Context(), client.ByID(id), ""); err != nil {
					t.Fatal(err)
				}
			}
			info := wait(t, cl, id)
			if want.text != "" && (info.Error == nil || !strings.Contains(info.Error.Message, want.text)) {
				t.Errorf("%s: %v, %v", kind, info.State, info.Error)
			}
			var got []string
			for _, s := range trail.texts() {
				if rest, ok := strings.CutPrefix(s, kind+":"); ok {
					got = append(got, rest)
				}
			}
			if strings.Join(got, " ") != want.trail {
				t.Errorf("%s: %s, want %s", kind, strings.Join(got, " "), want.trail)
			}
		}
	})
}

// The trace context of the submit reaches every attempt and is the same after retries, delays and a crash of
// the node; a malformed one is left out (B132).
func TestScenarioTraceContextStays(t *testing.T) {
	testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
		const parent, state = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "vendor=a,other=b"
		var seen journal
		c.Executor(4, "acme", func(x *executor.Executor) {
			raw(x, "f", fn.Options{Backoff: fn.Backoff{Base: 10 * time.Second, Max: 10 * time.Second}}, func(ctx context.Context, tk *executor.Task) ([]byte, error) {
				p, s := executor.TraceParent(ctx)
				seen.add(fmt.Sprint(string(tk.Payload), tk.Attempt, " ", p, " ", s))
				if tk.Attempt < 3 {
					return nil, errCustom
				}
				return nil, nil
			})
		})
		cl := c.Client("acme")
		ctx := client.WithTraceParent(t.Context(), parent, state)
		one, err := cl.Submit(ctx, client.Task{Function: "f", Payload: []byte("one")})
		if err != nil {
			t.Fatal(err)
		}
		batch, err := cl.SubmitBatch(ctx, []client.Task{{Function: "f", Payload: []byte("late"), Options: client.Options{Delay: 5 * time.Second}}})
		if err != nil || batch[0].Err != nil {
			t.Fatal(err)
		}
		odd, err := cl.Submit(client.WithTraceParent(t.Context(), "00-junk", strings.Repeat("x", 10<<10)), client.Task{Function: "f", Payload: []byte("odd")})
		if err != nil {
			t.Fatal(err)
		}
		faketime.Pass(2 * time.Second) // of the bubble
		c.Kill()
		c.Start()
		for id, want := range map[string]string{one.ID: parent, batch[0].ID: parent, odd.ID: ""} {
			if info := wait(t, cl, id); info.State != task.Succeeded || info.TraceParent != want {
				t.Errorf("%v with trace parent %q", info.State, info.TraceParent)
			}
		}
		texts := strings.Join(seen.texts(), "\n")
		for _, name := range []string{"one", "late"} {
			for attempt := 1; attempt <= 3; attempt++ {
				if line := fmt.Sprint(name, attempt, " ", parent, " ", state); strings.Count(texts, line) != 1 {
					t.Errorf("want once %q in\n%s", line, texts)
				}
			}
		}
		if strings.Contains(texts, "junk") || strings.Contains(texts, "xxx") {
			t.Errorf("malformed headers travelled:\n%s", texts)
		}
	})
}

// A definite answer costs one call and comes at once, with its own code, reason and cause (B113).
func TestScenarioPermanentErrorsCostOneCall(t *testing.T) {
	testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
		var calls, refuse atomic.Int32
		cl := counted(t, c, &calls, &refuse)
		submit(t, cl, client.Task{Function: "f", Payload: []byte("p"), Options: client.Options{ID: "taken"}})
		raw := strings.Repeat("2", 26)
		var field *task.FieldError
		var dup *client.DuplicateError
		for name, x := range map[string]struct {
			call func(ctx context.Context) error
			is   func(error) bool
		}{
			"duplicate": {func(ctx context.Context) error {
				_, err := cl.Submit(ctx, client.Task{Function: "f", Payload: []byte("q"), Options: client.Options{ID: "taken"}})
				return err
			}, func(err error) bool { return errors.As(err, &dup) && dup.ExistingID != "" }},
			"too large": {func(ctx context.Context) error {
				_, err := cl.Submit(ctx, client.Task{Function: "f", Payload: make([]byte, task.MaxPayload+1)})
				return err
			}, func(err error) bool { return errors.As(err, &field) && strings.Contains(field.Field, "payload") }},
			"bad argument": {func(ctx context.Context) error {
				_, err := cl.Submit(ctx, client.Task{Function: "F"})
				return err
			}, func(err error) bool { return errors.As(err, &field) && strings.Contains(field.Field, "function") }},
			"not found":          {func(ctx context.Context) error { _, err := cl.Get(ctx, client.ByID(raw)); return err }, func(err error) bool { return errors.Is(err, client.ErrNotFound) }},
			"cancel not found":   {func(ctx context.Context) error { _, _, err := cl.Cancel(ctx, client.ByID(raw), ""); return err }, func(err error) bool { return errors.Is(err, client.ErrNotFound) }},
			"attempts not found": {func(ctx context.Context) error { _, _, err := cl.Attempts(ctx, client.ByID(raw)); return err }, func(err error) bool { return errors.Is(err, client.ErrNotFound) }},
			"wait not found":     {func(ctx context.Context) error { _, err := cl.Wait(ctx, client.ByID(raw)); return err }, func(err error) bool { return errors.Is(err, client.ErrNotFound) }},
			"bad page": {func(ctx context.Context) error {
				_, err := cl.List(ctx, client.ListOptions{PageToken: "x"})
				return err
			}, func(err error) bool { return errors.As(err, &field) && field.Field == "page_token" }},
		} {
			calls.Store(0)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			began := time.Now()
			err := x.call(ctx)
			cancel()
			if !x.is(err) || time.Since(began) > time.Second || calls.Load() > 1 {
				t.Errorf("%s: %v after %v and %d calls", name, err, time.Since(began), calls.Load())
			}
		}
		// What may pass is tried again, and the last cause is in the error's text.
		refuse.Store(1 << 30)
		calls.Store(0)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, err := cl.Submit(ctx, client.Task{Function: "f"}); err == nil || !strings.Contains(err.Error(), "store_slow") || calls.Load() < 3 {
			t.Errorf("unavailable: %v after %d calls", err, calls.Load())
		}
		refuse.Store(3)
		submit(t, cl, client.Task{Function: "f"})
	})
}

// counted returns a client of acme whose calls go through a proxy that counts them, and refuses the next few.
func counted(t *testing.T, c *testcluster.Cluster, calls, refuse *atomic.Int32) *client.Client {
	t.Helper()
	up := c.Raw()
	lis := bufconn.Listen(1 << 20)
	srv := grpc.NewServer(append(grpcx.ServerOptions(16<<20, 100), grpc.UnaryInterceptor(
		func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			calls.Add(1)
			if refuse.Add(-1) >= 0 {
				return nil, grpcx.Info{Code: codes.Unavailable, Reason: "store_slow", Message: "the database does not keep up"}.Err()
			}
			return next(ctx, req)
		}))...)
	headracev1.RegisterTaskServiceServer(srv, forward{up: headracev1.NewTaskServiceClient(up)})
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.Serve(lis) })
	t.Cleanup(func() { srv.Stop(); wg.Wait() })
	cl, err := client.Dial(client.Config{Tenant: "acme", Dialer: func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

// forward passes unary calls on as they are.
type forward struct {
	headracev1.UnimplementedTaskServiceServer
	up headracev1.TaskServiceClient
}

func (f forward) Submit(ctx context.Context, r *headracev1.SubmitRequest) (*headracev1.SubmitResponse, error) {
	return f.up.Submit(ctx, r)
}

func (f forward) SubmitBatch(ctx context.Context, r *headracev1.SubmitBatchRequest) (*headracev1.SubmitBatchResponse, error) {
	return f.up.SubmitBatch(ctx, r)
}

func (f forward) Get(ctx context.Context, r *headracev1.GetRequest) (*headracev1.GetResponse, error) {
	return f.up.Get(ctx, r)
}

func (f forward) List(ctx context.Context, r *headracev1.ListRequest) (*headracev1.ListResponse, error) {
	return f.up.List(ctx, r)
}

func (f forward) ListAttempts(ctx context.Context, r *headracev1.ListAttemptsRequest) (*headracev1.ListAttemptsResponse, error) {
	return f.up.ListAttempts(ctx, r)
}

// Wait passes on what comes first: here that is the refusal.
func (f forward) Wait(r *headracev1.WaitRequest, out grpc.ServerStreamingServer[headracev1.WaitResponse]) error {
	up, err := f.up.Wait(out.Context(), r)
	if err != nil {
		return err
	}
	m, err := up.Recv()
	if err != nil {
		return err
	}
	return out.Send(m)
}

func (f forward) Cancel(ctx context.Context, r *headracev1.CancelRequest) (*headracev1.CancelResponse, error) {
	return f.up.Cancel(ctx, r)
}
