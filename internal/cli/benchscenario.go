package cli

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/headrace/headrace/internal/loadgen"
	"github.com/headrace/headrace/internal/term"
)

// scenario runs a benchmark that checks something, against a server of its own or the one that --addr or HEADRACE_ADDR
// name. A check that does not hold is an error.
func (a *app) scenario(c *cobra.Command, run func(ctx context.Context, addr string) (loadgen.Checks, error)) (err error) {
	ctx, addr := c.Context(), a.addr
	if !c.Flags().Changed("addr") && os.Getenv("HEADRACE_ADDR") == "" {
		server, startErr := startBenchServer(ctx, storeFile, "")
		if startErr != nil {
			return startErr
		}
		defer func() { err = errors.Join(err, server.stop(ctx)) }()
		addr = server.addr
	}
	checks, err := run(ctx, addr)
	if err == nil && !checks.OK() {
		err = errors.New("a check does not hold")
	}
	return err
}

// phase tells people what a scenario does.
func (a *app) phase(name string) { fmt.Fprintln(a.Err, name) }

// report writes what came of a scenario.
func (a *app) report(rep any, checks loadgen.Checks, figures *term.Table) error {
	if a.json() {
		return a.writeJSON(rep)
	}
	if _, err := figures.WriteTo(a.Out); err != nil {
		return err
	}
	fmt.Fprintln(a.Out)
	var t term.Table
	t.Row("CHECK", "VALUE", "BOUND", "OK")
	for _, c := range checks {
		ok := "yes"
		if !c.OK {
			ok = "NO"
		}
		t.Row(c.Name, fmt.Sprintf("%.4g", c.Value), fmt.Sprintf("%.4g", c.Bound), ok)
	}
	_, err := t.WriteTo(a.Out)
	return err
}
