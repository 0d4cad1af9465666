package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/task"
)

// callTimeout bounds a command that makes a single call: the time that a server may take to come back.
const callTimeout = 15 * time.Second

// submitFlags are what may be said about a task.
type submitFlags struct {
	payload, payloadFile, batch string
	contentType, id             string
	delay, startTTL, timeout    durationFlag
	at, deadline                timeFlag
	priority                    uint8
	band                        string
	maxAttempts                 int
	labels                      labelsFlag
	wait                        bool
}

func newSubmit(a *app) *cobra.Command {
	f := submitFlags{labels: labelsFlag{}}
	c := &cobra.Command{
		Use:   "submit FUNCTION",
		Short: "Submit a task, or a file of them",
		Long: `Submit stores a task that runs FUNCTION and prints its id once it is on disk. With --wait it prints the
finished task and ends with code 1 if that did not succeed.

A batch file has a JSON object on each line, such as

  {"payload": "hello", "id": "greeting-1", "delay": "90s"}

with payload (text) or payload_base64, content_type, id, delay or at, priority, band, start_ttl, deadline,
timeout, max_attempts and labels; what a line leaves out is taken from the flags. The file can have any
length. A file with a wrong line is refused before anything is sent; standard input ("-") can't be looked
at beforehand, so there what comes before that line has been sent. The output has a line for each task, in
the order of the file; code 1 says that some were refused.

Durations are written as 500ms, 90s, 1h30m or 2d, times as 2026-01-31T15:04:05Z (RFC 3339).`,
		Args: exactly(1, "one FUNCTION"),
		RunE: func(c *cobra.Command, args []string) error {
			t, err := f.task(c, args[0])
			if err != nil {
				return err
			}
			if f.batch != "" {
				return a.submitBatch(c.Context(), f, t)
			}
			if err := f.readPayload(a.In, &t); err != nil {
				return err
			}
			return a.submitOne(c.Context(), f, t)
		},
	}
	fl := c.Flags()
	fl.StringVar(&f.payload, "payload", "", "the payload, as `text`")
	fl.StringVar(&f.payloadFile, "payload-file", "", "`file` with the payload; - is standard input")
	fl.StringVar(&f.batch, "batch", "", "`file` with a task a line; - is standard input")
	fl.StringVar(&f.contentType, "content-type", "", "MIME `type` of the payload, for the handler")
	fl.StringVar(&f.id, "id", "", "your own `id` of the task: the same again makes no second task")
	fl.Var(&f.delay, "delay", "start no earlier than this long from now")
	fl.Var(&f.at, "at", "start no earlier than this")
	fl.Uint8Var(&f.priority, "priority", task.DefaultPriority, "`0-9`, 0 first")
	fl.StringVar(&f.band, "band", "normal", "`high|normal|low`, standing inside the tenant")
	fl.Var(&f.startTTL, "start-ttl", "expire the task if it has not started this long after it was due")
	fl.Var(&f.deadline, "deadline", "expire the task then, whatever it does")
	fl.Var(&f.timeout, "timeout", "of one attempt (default: as the function says)")
	fl.IntVar(&f.maxAttempts, "max-attempts", 0, "attempts before the task is a dead letter, 1-1000 (default: as the function says)")
	fl.Var(f.labels, "label", "a label to find the task by; can be repeated")
	fl.BoolVar(&f.wait, "wait", false, "wait until the task has finished, and print it")
	c.RegisterFlagCompletionFunc("band", cobra.FixedCompletions([]string{"high", "normal", "low"}, cobra.ShellCompDirectiveNoFileComp))
	c.ValidArgsFunction = cobra.NoFileCompletions
	return c
}

// task returns what the flags say, without a payload. Its errors are wrong usage.
func (f *submitFlags) task(c *cobra.Command, function string) (client.Task, error) {
	set := c.Flags().Changed
	if n := count(set("payload"), set("payload-file"), set("batch")); n > 1 {
		return client.Task{}, usagef("--payload, --payload-file and --batch exclude each other")
	}
	if set("batch") && set("id") {
		return client.Task{}, usagef("--id is for one task; a batch file has an \"id\" in its lines")
	}
	if set("delay") && set("at") {
		return client.Task{}, usagef("--delay and --at exclude each other")
	}
	if set("batch") && f.batch == "" || set("payload-file") && f.payloadFile == "" || set("id") && f.id == "" {
		return client.Task{}, usagef("an empty name was given for --batch, --payload-file or --id")
	}
	if set("max-attempts") && f.maxAttempts < 1 {
		return client.Task{}, usagef("--max-attempts: %d given, want 1 to %d", f.maxAttempts, task.MaxAttemptsLimit)
	}
	t := client.Task{
		Function:    function,
		Payload:     []byte(f.payload),
		ContentType: f.contentType,
		Options: client.Options{
			ID:          f.id,
			Delay:       time.Duration(f.delay),
			At:          time.Time(f.at),
			Band:        client.Band(f.band),
			StartTTL:    time.Duration(f.startTTL),
			Deadline:    time.Time(f.deadline),
			MaxAttempts: f.maxAttempts,
			Timeout:     time.Duration(f.timeout),
			Labels:      f.labels,
		},
	}
	if set("priority") {
		t.Priority = new(f.priority)
	}
	if err := checkTask(t); err != nil {
		return t, usageError{err}
	}
	return t, nil
}

// checkTask refuses what no server takes, before anything is sent. Its error is a *task.FieldError.
func checkTask(t client.Task) error {
	if err := task.Name("function", t.Function); err != nil {
		return err
	}
	if t.ID != "" {
		if err := task.ClientID("id", t.ID); err != nil {
			return err
		}
	}
	if t.Priority != nil && *t.Priority > task.MaxPriority {
		return &task.FieldError{Field: "priority", Value: fmt.Sprint(*t.Priority), Want: "0 to 9"}
	}
	if _, err := task.ParseBand(string(t.Band)); err != nil {
		return err
	}
	if t.MaxAttempts < 0 || t.MaxAttempts > task.MaxAttemptsLimit {
		return &task.FieldError{Field: "max_attempts", Value: fmt.Sprint(t.MaxAttempts), Want: "1 to 1000"}
	}
	if err := task.Duration("delay", t.Delay, 0, task.MaxDelay); err != nil {
		return err
	}
	if t.Timeout != 0 {
		if err := task.Duration("timeout", t.Timeout, time.Millisecond, task.MaxTimeout); err != nil {
			return err
		}
	}
	return task.Labels(t.Labels)
}

func count(conds ...bool) (n int) {
	for _, c := range conds {
		if c {
			n++
		}
	}
	return n
}

// readPayload reads the payload from --payload-file, if that is given.
func (f *submitFlags) readPayload(stdin io.Reader, t *client.Task) error {
	if f.payloadFile == "" {
		return nil
	}
	r, done, err := open(f.payloadFile, stdin)
	if err != nil {
		return err
	}
	defer done()
	// One byte more than any server takes: the server names the limit.
	t.Payload, err = io.ReadAll(io.LimitReader(r, task.MaxPayloadConfig+1))
	if err != nil {
		return fmt.Errorf("read payload: %w", err)
	}
	return nil
}

// open opens a file that was named on the command line; "-" is standard input.
func open(name string, stdin io.Reader) (io.Reader, func(), error) {
	if name == "-" {
		return stdin, func() {}, nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, nil, err
	}
	return f, func() { f.Close() }, nil
}

// submittedJSON is the output for a task that was stored.
type submittedJSON struct {
	ID           string `json:"id"`
	ClientID     string `json:"client_id,omitempty"`
	Tenant       string `json:"tenant"`
	Function     string `json:"function"`
	Deduplicated bool   `json:"deduplicated"`
}

func (a *app) submitOne(ctx context.Context, f submitFlags, t client.Task) error {
	c, err := a.dial()
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := submitWithin(ctx, c, t)
	if err != nil {
		return err
	}
	if f.wait {
		return a.waitAndPrint(ctx, c, client.ByID(s.ID))
	}
	if a.json() {
		return a.writeJSON(submittedJSON{s.ID, t.ID, a.tenant, t.Function, s.Deduplicated})
	}
	_, err = fmt.Fprintln(a.Out, s.ID)
	return err
}

func submitWithin(ctx context.Context, c *client.Client, t client.Task) (client.Submitted, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout, errNoAnswer)
	defer cancel()
	return c.Submit(ctx, t)
}

var errNoAnswer = errors.New("no answer in " + callTimeout.String())

// dial returns a client as the global flags say.
func (a *app) dial() (*client.Client, error) {
	return client.Dial(client.Config{Addr: a.addr, Tenant: a.tenant, APIKey: a.apiKey, MaxInFlight: 4})
}
