package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/internal/term"
	"github.com/headrace/headrace/internal/version"
	"github.com/headrace/headrace/task"
)

// Streams are the standard streams of a command.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// Exit codes.
const (
	exitOK    = 0
	exitError = 1
	exitUsage = 2
)

// Main runs the command that args name and returns its exit code.
func Main(args []string, std Streams) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // the second signal has its default effect: the end, at once

	root := newRoot(std)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = fmt.Errorf("interrupted: %w", err)
	}
	if !errors.Is(err, errReported) {
		fmt.Fprintf(std.Err, "headrace: %s\n", term.Escape(err.Error()))
	}
	if isUsage(err) {
		return exitUsage
	}
	return exitError
}

// errReported ends a command with code 1 whose output says what is wrong.
var errReported = errors.New("reported")

// A usageError is a command line that can't be right, whatever the server says.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// usagef returns a usageError.
func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// isUsage says that err comes from the command line. A FieldError does, too, unless a server sent it.
func isUsage(err error) bool {
	var usage usageError
	var server *client.Error
	var field *task.FieldError
	return errors.As(err, &usage) || errors.As(err, &field) && !errors.As(err, &server)
}

// app is what all commands share: the streams and the global flags.
type app struct {
	Streams
	addr, tenant, apiKey string
	output               string
}

func (a *app) json() bool { return a.output == "json" }

func newRoot(std Streams) *cobra.Command {
	a := &app{Streams: std}
	root := &cobra.Command{
		Use:   "headrace",
		Short: "Durable tasks, pushed to your functions",
		Long: `Headrace takes tasks, keeps them on disk, and pushes them to the functions that you run.

Try it:  headrace demo --once
Use it:  headrace dev                                          in one terminal
         headrace worker --function upper -- tr a-z A-Z        in a second one
         headrace submit upper --payload hello --wait          in a third`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       version.String(),
	}
	root.SetVersionTemplate("headrace {{.Version}}\n")
	root.SetIn(std.In)
	root.SetOut(std.Out)
	root.SetErr(std.Err)
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w; see `%s --help`", err, c.CommandPath())}
	})
	a.globalFlags(root)
	root.AddCommand(
		newDev(a), newServer(a),
		newDemo(a),
		newSubmit(a),
		newTask(a),
		newWorker(a),
		newNode(a),
		newPartition(a),
		newCluster(a),
		newPlacement(a),
		newPause(a), newResume(a), newTenant(a),
		newLimit(a),
		newPool(a),
		newBench(a),
		newVersion(a),
	)
	asGroup(root)
	return root
}

// asGroup makes c, which only has sub-commands, say so when one is missing or unknown.
func asGroup(c *cobra.Command) *cobra.Command {
	c.Args = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		hint := ""
		if near := c.SuggestionsFor(args[0]); len(near) > 0 {
			hint = fmt.Sprintf(", did you mean %s?", near[0])
		}
		return usagef("%s has no command %s%s; see `%s --help`", c.CommandPath(), task.Shorten(args[0]), hint, c.CommandPath())
	}
	c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	c.SuggestionsMinimumDistance = 2
	return c
}

// exactly and atLeast check the number of arguments; what names them in the error.
func exactly(n int, what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) != n {
			return usagef("%s takes %s, %d given; see `%s --help`", c.CommandPath(), what, len(args), c.CommandPath())
		}
		return nil
	}
}

func atMost(n int, what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) > n {
			return usagef("%s takes %s, %d given; see `%s --help`", c.CommandPath(), what, len(args), c.CommandPath())
		}
		return nil
	}
}

func atLeast(n int, what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) < n {
			return usagef("%s takes %s, %d given; see `%s --help`", c.CommandPath(), what, len(args), c.CommandPath())
		}
		return nil
	}
}

func newVersion(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Say which build this is",
		Args:  exactly(0, "no arguments"),
		RunE: func(*cobra.Command, []string) error {
			if a.json() {
				return a.writeJSON(struct {
					Version string `json:"version"`
				}{version.String()})
			}
			_, err := fmt.Fprintf(a.Out, "headrace %s\n", version.String())
			return err
		},
	}
}
