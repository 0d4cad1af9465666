package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/internal/term"
	"github.com/headrace/headrace/task"
)

func newTask(a *app) *cobra.Command {
	c := &cobra.Command{Use: "task", Short: "Look at tasks, wait for them, cancel them"}
	c.AddCommand(newTaskGet(a), newTaskList(a), newTaskWait(a), newTaskCancel(a), newTaskAttempts(a), newTaskLogs(a), newTaskExplain(a))
	return asGroup(c)
}

// eachTask adds a command that does something for each task that is named. It goes on after an error.
func (a *app) eachTask(use, short string, do func(context.Context, *client.Client, string, client.Ref) error) *cobra.Command {
	byClientID := false
	c := &cobra.Command{
		Use:   use + " ID…",
		Short: short,
		Args:  atLeast(1, "at least one ID"),
		RunE: func(c *cobra.Command, ids []string) error {
			cl, err := a.dial()
			if err != nil {
				return err
			}
			defer cl.Close()
			var failed error
			for _, id := range ids {
				ref := client.ByID(id)
				if byClientID {
					ref = client.ByClientID(id)
				}
				if id == "" {
					return usagef("an empty id was given")
				}
				err := do(c.Context(), cl, id, ref)
				if c.Context().Err() != nil {
					return err
				}
				if err != nil && len(ids) > 1 { // one line each; the last one says that there were some
					if !errors.Is(err, errReported) {
						fmt.Fprintf(a.Err, "headrace: %s\n", term.Escape(err.Error()))
					}
					err = errReported
				}
				if err != nil {
					failed = err
				}
			}
			return failed
		},
	}
	c.Flags().BoolVar(&byClientID, "client-id", false, "the IDs are those that submitters gave (submit --id)")
	c.ValidArgsFunction = cobra.NoFileCompletions
	return c
}

func newTaskGet(a *app) *cobra.Command {
	return a.eachTask("get", "Show tasks with payload and result", func(ctx context.Context, c *client.Client, _ string, ref client.Ref) error {
		ctx, cancel := within(ctx)
		defer cancel()
		t, err := c.Get(ctx, ref)
		if err != nil {
			return err
		}
		return a.printTask(t)
	})
}

func newTaskWait(a *app) *cobra.Command {
	c := a.eachTask("wait", "Wait until tasks have finished, and show them", func(ctx context.Context, c *client.Client, _ string, ref client.Ref) error {
		return a.waitAndPrint(ctx, c, ref)
	})
	c.Long = "Wait until tasks have finished, and show them. Code 1 says that one did not succeed."
	return c
}

// waitAndPrint prints the finished task; its error says that it has not succeeded.
func (a *app) waitAndPrint(ctx context.Context, c *client.Client, ref client.Ref) error {
	t, err := c.Wait(ctx, ref)
	if err != nil {
		return err
	}
	if err := a.printTask(t); err != nil {
		return err
	}
	if !t.Succeeded() {
		return &client.OutcomeError{Task: t}
	}
	return nil
}

func newTaskCancel(a *app) *cobra.Command {
	reason := ""
	c := a.eachTask("cancel", "Stop tasks; finished ones stay as they are", func(ctx context.Context, c *client.Client, _ string, ref client.Ref) error {
		ctx, cancel := within(ctx)
		defer cancel()
		result, t, err := c.Cancel(ctx, ref, reason)
		if err != nil {
			return err
		}
		if a.json() {
			return a.writeJSON(struct {
				taskJSON
				Outcome string `json:"outcome"`
			}{newTaskJSON(t, true), string(result)})
		}
		_, err = fmt.Fprintf(a.Out, "%s  %s\n", t.ID, map[client.CancelResult]string{
			client.Cancelled:       "is cancelled",
			client.CancelRequested: "runs; its handler is told to stop",
			client.AlreadyFinished: "had ended before: " + t.State.String(),
		}[result])
		return err
	})
	c.Flags().StringVar(&reason, "reason", "", "why, for people; at most 255 bytes")
	return c
}

func newTaskAttempts(a *app) *cobra.Command {
	return a.eachTask("attempts", "Show the tries of tasks with their stage times", func(ctx context.Context, c *client.Client, id string, ref client.Ref) error {
		ctx, cancel := within(ctx)
		defer cancel()
		tries, total, err := c.Attempts(ctx, ref)
		if err != nil {
			return err
		}
		var t term.Table
		t.Row("ATTEMPT", "EXECUTOR", "PUSHED", "TO ACK", "RAN", "TO COMMIT", "END", "TOKEN")
		for _, try := range tries {
			if a.json() {
				if err := a.writeJSON(newAttemptJSON(id, try)); err != nil {
					return err
				}
				continue
			}
			end := "ok"
			if try.Running {
				end = "running"
			} else if try.Error != nil {
				end = try.Error.Error()
			}
			t.Row(fmt.Sprint(try.Attempt), try.Executor, clock(try.PushedAt, time.Now()), span(try.PushedAt, try.AckedAt),
				span(try.AckedAt, try.EndedAt), span(try.EndedAt, try.CommittedAt), end, try.Token)
		}
		if a.json() {
			return nil
		}
		if _, err := t.WriteTo(a.Out); err != nil {
			return err
		}
		ended := len(tries)
		for _, try := range tries {
			if try.Running {
				ended--
			}
		}
		if total > ended {
			fmt.Fprintf(a.Out, "%d older tries are not kept\n", total-ended)
		}
		return nil
	})
}

func newTaskLogs(a *app) *cobra.Command {
	return a.eachTask("logs", "Show what the handlers of tasks logged", func(ctx context.Context, c *client.Client, id string, ref client.Ref) error {
		ctx, cancel := within(ctx)
		defer cancel()
		lines, truncated, err := c.Logs(ctx, ref)
		if err != nil {
			return err
		}
		if truncated && !a.json() {
			fmt.Fprintln(a.Out, "(older lines were dropped)")
		}
		for _, l := range lines {
			if a.json() {
				err = a.writeJSON(logJSON{id, l.Attempt, jsonTime(l.At), l.Level, l.Message})
			} else {
				_, err = fmt.Fprintf(a.Out, "%s  %d  %-5s  %s\n", clock(l.At, time.Now()), l.Attempt, term.Escape(l.Level), term.Escape(l.Message))
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func newTaskList(a *app) *cobra.Command {
	var function, state, label string
	limit := 0
	c := &cobra.Command{
		Use:   "list",
		Short: "List tasks, newest first",
		Args:  exactly(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			o := client.ListOptions{Function: function, Label: label, PageSize: 1000}
			if function != "" {
				if err := task.Name("--function", function); err != nil {
					return err
				}
			}
			if state != "" {
				var err error
				if o.State, err = task.ParseState(state); err != nil {
					return err
				}
			}
			if label != "" && !strings.Contains(label, "=") {
				return usagef("--label: %s given, want KEY=VALUE", task.Shorten(label))
			}
			if limit < 0 {
				return usagef("--limit: %d given, want at least 0", limit)
			}
			return a.list(c.Context(), o, limit)
		},
	}
	fl := c.Flags()
	fl.StringVar(&state, "state", "", "only tasks in this `state`")
	fl.StringVar(&function, "function", "", "only tasks of this function, by `name`")
	fl.StringVar(&label, "label", "", "only tasks with this label, as `k=v`")
	fl.IntVar(&limit, "limit", 100, "at most this `many`; 0: all")
	c.RegisterFlagCompletionFunc("state", cobra.FixedCompletions([]string{"scheduled", "queued", "running", "retrying",
		"succeeded", "failed", "cancelled", "expired"}, cobra.ShellCompDirectiveNoFileComp))
	return c
}

func (a *app) list(ctx context.Context, o client.ListOptions, limit int) error {
	c, err := a.dial()
	if err != nil {
		return err
	}
	defer c.Close()
	var t term.Table
	t.Row("ID", "FUNCTION", "STATE", "ATTEMPT", "CREATED", "DUE", "WAITS FOR / ERROR")
	var missing []string
	for n := 0; limit == 0 || n < limit; {
		if limit > 0 {
			o.PageSize = min(1000, limit-n)
		}
		page, err := listPage(ctx, c, o)
		if err != nil {
			return err
		}
		for _, m := range page.Unreachable {
			if !slices.Contains(missing, m) {
				missing = append(missing, m)
			}
		}
		for _, i := range page.Tasks {
			n++
			if a.json() {
				if err := a.writeJSON(newTaskJSON(i, false)); err != nil {
					return err
				}
				continue
			}
			why := i.WaitReason
			if i.Error != nil && why == "" {
				why = i.Error.Error()
			}
			t.Row(i.ID, i.Function, i.State.String(), fmt.Sprint(i.Attempt), clock(i.CreatedAt, time.Now()), clock(i.DueAt, time.Now()), why)
		}
		if o.PageToken = page.Next; page.Next == "" {
			break
		}
	}
	if len(missing) > 0 { // also beside JSON; what is there is true, so the code is 0
		defer fmt.Fprintf(a.Err, "headrace: warning: the list is not complete, no answer from %s\n", term.Escape(strings.Join(missing, ", ")))
	}
	if a.json() {
		return nil
	}
	if _, err := t.WriteTo(a.Out); err != nil {
		return err
	}
	if o.PageToken != "" {
		fmt.Fprintf(a.Err, "there are more; --limit 0 shows all\n")
	}
	return nil
}

func listPage(ctx context.Context, c *client.Client, o client.ListOptions) (client.Page, error) {
	ctx, cancel := within(ctx)
	defer cancel()
	return c.List(ctx, o)
}

// within bounds one call.
func within(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, callTimeout, errNoAnswer)
}

// printTask prints one task with all that is known of it.
func (a *app) printTask(t *client.TaskInfo) error {
	if a.json() {
		return a.writeJSON(newTaskJSON(t, true))
	}
	tab := term.Table{Width: 400}
	now := time.Now()
	row := func(name, value string) {
		if value != "" && value != "-" {
			tab.Row(name, value)
		}
	}
	row("id", t.ID)
	row("client id", t.ClientID)
	row("tenant", t.Tenant)
	row("function", t.Function)
	state := t.State.String()
	if t.CancelRequested && !t.State.Terminal() {
		state += ", cancel requested"
	}
	row("state", state)
	row("waits for", t.WaitReason)
	if t.MaxAttempts > 0 {
		row("attempt", fmt.Sprintf("%d of %d", t.Attempt, t.MaxAttempts))
	} else {
		row("attempt", fmt.Sprint(t.Attempt))
	}
	row("losses", unlessZero(t.Losses))
	row("throttles", unlessZero(t.Throttles))
	row("snoozes", unlessZero(t.Snoozes))
	row("priority", fmt.Sprintf("%d, band %s", t.Priority, t.Band))
	for _, k := range slices.Sorted(maps.Keys(t.Labels)) {
		row("label", k+"="+t.Labels[k])
	}
	row("created", clock(t.CreatedAt, now))
	row("due", clock(t.DueAt, now))
	row("started", clock(t.StartedAt, now))
	row("finished", clock(t.FinishedAt, now))
	row("deadline", clock(t.Deadline, now))
	if p := t.Progress; p != nil {
		row("progress", fmt.Sprintf("%.0f%% %s", 100*p.Fraction, p.Message))
	}
	row("payload", preview(t.Payload, t.PayloadSize))
	if t.State == task.Succeeded {
		row("result", preview(t.Result, len(t.Result)))
	}
	if t.Error != nil {
		row("error", t.Error.Error())
	}
	_, err := tab.WriteTo(a.Out)
	return err
}

// preview shows bytes to people: text where they are, their number where not.
func preview(b []byte, size int) string {
	switch {
	case size == 0:
		return "empty"
	case len(b) == 0 || !utf8.Valid(b):
		return fmt.Sprintf("%d bytes", size)
	}
	return string(b)
}

func unlessZero(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}
