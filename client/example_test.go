package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"strings"
	"time"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/executor"
	"github.com/headrace/headrace/fn"
	"github.com/headrace/headrace/internal/inproc"
)

// Form and Report are what the function render takes and returns. In a program of yours this stands in
// a package that submitters and executors import.
type Form struct {
	ID   int    `json:"id"`
	Text string `json:"text"`
}

type Report struct {
	Title string `json:"title"`
}

var Render = fn.Define[Form, Report]("render", fn.Options{Timeout: time.Minute, MaxAttempts: 5})

// dialExample is client.Dial(client.Config{}) against a server that runs in this process, with an executor
// that renders.
func dialExample(cfg client.Config) (*client.Client, func()) {
	addr, stop := inproc.Start(func(x *executor.Executor) {
		executor.Handle(x, Render, func(_ context.Context, form Form) (Report, error) {
			if form.Text == "" {
				return Report{}, executor.NonRetryable(errors.New("nothing to render"))
			}
			return Report{Title: strings.ToUpper(form.Text)}, nil
		})
	})
	cfg.Addr = addr
	c, err := client.Dial(cfg)
	if err != nil {
		log.Fatal(err)
	}
	return c, func() { c.Close(); stop() }
}

// Submit a task, go on with something else, and fetch its typed result.
func Example() {
	c, stop := dialExample(client.Config{})
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()

	h, err := client.Submit(ctx, c, Render, Form{ID: 7, Text: "leave request"}, client.Options{
		ID:       "form-7", // submitting it twice makes one task
		Priority: new(uint8(2)),
		Labels:   map[string]string{"team": "hr"},
	})
	if err != nil {
		log.Fatal(err)
	}
	report, err := h.Wait(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(report.Title)
	// Output: LEAVE REQUEST
}

// A task that ends otherwise than by success gives an error that has all that is known of it.
func ExampleHandle_Wait() {
	c, stop := dialExample(client.Config{})
	defer stop()
	ctx := context.Background()

	h, err := client.Submit(ctx, c, Render, Form{ID: 8}, client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	_, err = h.Wait(ctx)
	if failed, ok := errors.AsType[*client.OutcomeError](err); ok {
		fmt.Println(failed.Task.State, failed.Task.Error)
	}
	// Output: failed non_retryable: nothing to render
}

// Many tasks at once: any number, one outcome for each, in order.
func ExampleClient_SubmitBatch() {
	c, stop := dialExample(client.Config{})
	defer stop()

	var tasks []client.Task
	for i, text := range []string{"one", "two", "two again"} {
		t, err := client.NewTask(Render, Form{ID: i, Text: text}, client.Options{ID: fmt.Sprint("form-", i-i/2)})
		if err != nil {
			log.Fatal(err)
		}
		tasks = append(tasks, t)
	}
	outcomes, err := c.SubmitBatch(context.Background(), tasks)
	if err != nil {
		log.Fatal(err) // not all have an answer; the outcomes say which
	}
	for i, o := range outcomes {
		_, duplicate := errors.AsType[*client.DuplicateError](o.Err)
		fmt.Println(tasks[i].ID, o.Err == nil, duplicate)
	}
	// Output:
	// form-0 true false
	// form-1 true false
	// form-1 false true
}

// What to do when no answer came in time.
func ExampleClient_Submit() {
	c, stop := dialExample(client.Config{})
	defer stop()
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // say, the user has closed the page

	_, err := c.Submit(ctx, client.Task{Function: "render", Payload: []byte(`{"text":"x"}`), Options: client.Options{ID: "form-9"}})
	switch {
	case errors.Is(err, client.ErrNotSent):
		fmt.Println("nothing was stored:", err)
	case errors.Is(err, client.ErrOutcomeUnknown):
		fmt.Println("submit it again under the same ID:", err)
	}
	// Output: nothing was stored: submit render: submit not sent: context canceled
}

// Middleware sees every submit, here to label tasks with the release that made them.
func ExampleMiddleware() {
	label := func(next client.SubmitFunc) client.SubmitFunc {
		return func(ctx context.Context, tasks []client.Task) ([]client.Outcome, error) {
			for i := range tasks {
				tasks[i].Labels = map[string]string{"release": "1.4"}
			}
			return next(ctx, tasks)
		}
	}
	c, stop := dialExample(client.Config{Middleware: []client.Middleware{label}})
	defer stop()
	ctx := context.Background()

	h, err := client.Submit(ctx, c, Render, Form{Text: "x"}, client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := h.Wait(ctx); err != nil {
		log.Fatal(err)
	}
	for t, err := range c.ListAll(ctx, client.ListOptions{Label: "release=1.4"}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(t.Function, t.State)
	}
	// Output: render succeeded
}
