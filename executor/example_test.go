package executor_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/headrace/headrace/executor"
	"github.com/headrace/headrace/fn"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

// The function, defined once, in a package that submitters and executors import.
type (
	Form   struct{ Name string }
	Report struct{ Pages int }
)

var Render = fn.Define[Form, Report]("render", fn.Options{Timeout: time.Minute, MaxAttempts: 5})

// A program that runs one function until it is told to stop. SIGTERM drains it: no new tasks, those that
// run may end, and what does not end in time goes to another executor with nothing counted against it.
func Example() {
	server := exampleServer() // headrace dev
	defer server.close()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()

	x, err := executor.New(executor.Config{Addr: server.addr, Slots: 8, DrainTimeout: 10 * time.Second})
	if err != nil {
		fmt.Println(err)
		return
	}
	executor.Handle(x, Render, func(ctx context.Context, in Form) (Report, error) {
		return Report{Pages: len(in.Name)}, nil
	})
	go func() {
		fmt.Println(server.run("render", `{"Name":"annual"}`)) // client.Submit(ctx, c, Render, Form{"annual"})
		stop()
	}()
	if err := x.Run(ctx); err != nil {
		fmt.Println(err)
	}
	// Output: succeeded {"Pages":6}
}

// What a handler returns decides what comes next, also when it is wrapped.
func ExampleThrottled() {
	answer := map[string]error{
		"201": nil,
		"400": executor.NonRetryable(errors.New("bad address")),                             // dead letter at once
		"429": executor.Throttled(errors.New("rate limit"), "smtp", 2*time.Second),          // others slow down, too
		"503": executor.RetryAfter(errors.New("maintenance"), 10*time.Minute),               // not sooner
		"202": executor.Snooze(time.Minute),                                                 // look again later
		"500": errors.New("internal error"),                                                 // back-off of the function
		"522": fmt.Errorf("deliver: %w", executor.NonRetryable(errors.New("no such host"))), // wrapping keeps it
	}
	mail := func(_ context.Context, t *executor.Task) (executor.Result, error) {
		return executor.Result{}, answer[string(t.Payload)]
	}
	server := exampleServer()
	defer server.close()
	defer server.execute(func(x *executor.Executor) { x.HandleRaw("mail", fn.Options{}, mail) })()
	for _, code := range []string{"201", "400", "429", "503", "202", "500", "522"} {
		fmt.Println(code, server.run("mail", code))
	}
	// Output:
	// 201 succeeded
	// 400 non_retryable: bad address
	// 429 throttled by smtp for 2s: rate limit
	// 503 retryable in 10m0s: maintenance
	// 202 snooze in 1m0s: snoozed for 1m0s
	// 500 retryable: internal error
	// 522 non_retryable: deliver: no such host
}

// A long handler says how far it is, leaves a checkpoint for the next attempt, and stops when it is told
// to. The checkpoint of an earlier attempt is there from the start.
func ExampleCheckpoint() {
	server := exampleServer()
	defer server.close()
	defer server.execute(func(x *executor.Executor) {
		executor.Handle(x, fn.Define[int, string]("import", fn.Options{}), func(ctx context.Context, pages int) (string, error) {
			first, _ := strconv.Atoi(string(executor.LastCheckpoint(ctx)))
			for page := first; page < pages; page++ {
				if err := ctx.Err(); err != nil {
					return "", context.Cause(ctx) // ErrCancelled, ErrTimeout, ErrDrained, …
				}
				if page == 5 && executor.Attempt(ctx) == 1 {
					return "", errors.New("page 5 is torn")
				}
				executor.Progress(ctx, float64(page)/float64(pages), "importing")
				executor.Checkpoint(ctx, []byte(strconv.Itoa(page+1)))
				executor.Logger(ctx).Info("page done", "page", page) // the task's own log
			}
			return fmt.Sprintf("pages %d to %d", first, pages-1), nil
		})
	})()
	fmt.Println(server.run("import", "8"))
	fmt.Println(server.again("import", "8"))
	// Output:
	// retryable: page 5 is torn
	// succeeded "pages 5 to 7"
}

// A task may run again although its first run goes on somewhere, cut off from us. The token tells the
// runs apart: who stores the largest that he saw can refuse the older run.
func ExampleToken() {
	var seen string // in the downstream's database, beside the data
	server := exampleServer()
	defer server.close()
	defer server.execute(func(x *executor.Executor) {
		x.HandleRaw("charge", fn.Options{}, func(ctx context.Context, t *executor.Task) (executor.Result, error) {
			if executor.Token(ctx) < seen {
				return executor.Result{}, executor.NonRetryable(errors.New("an older run"))
			}
			seen = executor.Token(ctx)
			return executor.Result{Body: []byte(executor.TaskKey(ctx)[:4])}, nil // the key is the same for all tries
		})
	})()
	server.run("charge", "")
	fmt.Println(seen)
	server.again("charge", "")
	fmt.Println(seen)
	// Output:
	// 0000000005-000000000001
	// 0000000005-000000000002
}

// Middleware wraps every handler; the first is the outermost. A panic below arrives as an error.
func ExampleMiddleware() {
	timing := func(next executor.Handler) executor.Handler {
		return func(ctx context.Context, t *executor.Task) (executor.Result, error) {
			r, err := next(ctx, t)
			if p, ok := errors.AsType[*executor.PanicError](err); ok {
				fmt.Println(t.Function, "panicked:", p.Value)
				return r, executor.NonRetryable(errors.New("our bug"))
			}
			return r, err
		}
	}
	server := exampleServer()
	defer server.close()
	server.middleware = []executor.Middleware{timing}
	defer server.execute(func(x *executor.Executor) {
		x.HandleRaw("fragile", fn.Options{}, func(context.Context, *executor.Task) (executor.Result, error) { panic("x") })
	})()
	fmt.Println(server.run("fragile", ""))
	// Output:
	// fragile panicked: x
	// non_retryable: our bug
}

// example is the tests' node on a real port: it stands for a server with a client.
type example struct {
	addr       string
	middleware []executor.Middleware

	n       *node
	s       *session
	seq     uint64
	attempt uint32
	last    []byte
}

func exampleServer() *example {
	n := newNode(nil)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	go n.server.Serve(lis)
	return &example{addr: lis.Addr().String(), n: n}
}

func (e *example) close() { e.n.stop() }

// execute runs an executor; the result ends it.
func (e *example) execute(register func(*executor.Executor)) (end func()) {
	x, err := executor.New(executor.Config{Addr: e.addr, Middleware: e.middleware, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		panic(err)
	}
	register(x)
	ran := make(chan error, 1)
	go func() { ran <- x.Run(context.Background()) }()
	return func() {
		x.Shutdown(context.Background())
		<-ran
	}
}

func (e *example) run(function, payload string) string {
	e.seq++
	e.attempt, e.last = 0, nil
	return e.again(function, payload)
}

func (e *example) again(function, payload string) string {
	if e.s == nil {
		e.s = <-e.n.sessions
	}
	e.attempt++
	e.s.push(e.seq, func(p *headracev1.Push) {
		p.Function, p.Payload, p.Attempt, p.Checkpoint = function, []byte(payload), e.attempt, e.last
	})
	o := <-e.n.outcomes
	e.last = o.Checkpoint
	text := "succeeded"
	if o.ErrorClass != 0 {
		text = task.Class(o.ErrorClass).String()
	}
	if after := time.Duration(o.RetryAfterMicros) * time.Microsecond; o.Downstream != "" {
		text += fmt.Sprint(" by ", o.Downstream, " for ", after)
	} else if after > 0 {
		text += fmt.Sprint(" in ", after)
	}
	if o.Message != "" {
		text += ": " + o.Message
	}
	if len(o.Result) > 0 {
		text += " " + string(o.Result)
	}
	return text
}
