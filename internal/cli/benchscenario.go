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

// scenario runs a benchmark that checks something, at a server of its own or the one that --addr or HEADRACE_ADDR name, and
// writes what came of it. A check that does not hold is an error.
func scenario[R interface{ All() loadgen.Checks }](a *app, c *cobra.Command, at *loadgen.Target, run func(context.Context) (R, error), figures func(R) *term.Table) (err error) {
	ctx := c.Context()
	*at = loadgen.Target{Addr: a.addr, APIKey: a.apiKey, Tenant: a.tenant, Phase: func(name string) { fmt.Fprintln(a.Err, name) }}
	if !c.Flags().Changed("addr") && os.Getenv("HEADRACE_ADDR") == "" {
		server, startErr := startBenchServer(ctx, storeFile, "")
		if startErr != nil {
			return startErr
		}
		defer func() { err = errors.Join(err, server.stop(ctx)) }()
		at.Addr = server.addr
	}
	rep, err := run(ctx)
	if err != nil {
		return err
	}
	if err = a.report(rep, rep.All(), figures(rep)); err == nil && !rep.All().OK() {
		err = errors.New("a check does not hold")
	}
	return err
}

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
