package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/headrace/headrace/internal/demo"
	"github.com/headrace/headrace/internal/term"
)

func newDemo(a *app) *cobra.Command {
	var cfg demo.Config
	once := false
	c := &cobra.Command{
		Use:   "demo",
		Short: "The guided tour on real files",
		Long: `Demo starts a server of its own on free ports and gives it real work: tenant acme submits a task for every
regular file under --dir to function "checksum"; each result goes to function "index", which posts it to a
small HTTP service that answers 429 above 8 requests at once. Meanwhile tenant globex submits a small task
every 20 ms. The digest at the end is what you also get with

  find . -type f -printf '%P\0' | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum

in that directory (sha256sum itself marks names with a new-line or backslash). Code 1 says that something was lost.`,
		Args: exactly(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			if c.Flags().Changed("dir") && cfg.Dir == "" || c.Flags().Changed("data") && cfg.Data == "" {
				return usagef("an empty name was given for --dir or --data")
			}
			if cfg.Dir == "" {
				dir, err := demo.DefaultDir()
				if err != nil {
					return err
				}
				cfg.Dir = dir
			}
			return a.demo(c.Context(), cfg, once)
		},
	}
	c.Flags().StringVar(&cfg.Dir, "dir", "", "`directory` with the files (default: the source of Go itself)")
	c.Flags().StringVar(&cfg.Data, "data", "", "`directory` for the server's data, which is kept (default: a temporary one)")
	c.Flags().BoolVar(&once, "once", false, "end after the tour; otherwise the server and the functions stay up")
	return c
}

func (a *app) demo(ctx context.Context, cfg demo.Config, once bool) (err error) {
	t, err := demo.Start(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Stop()) }()
	if !a.json() {
		files, _ := t.Files()
		fmt.Fprintf(a.Out, "%d files under %s, server on %s\n\n", files, term.Escape(t.Root()), t.Addr())
	}
	bar := term.StartProgress(a.Err, func() term.Status {
		done, total, throttled := t.Progress()
		return term.Status{Done: done, Total: total, Text: fmt.Sprintf("%d throttled", throttled)}
	})
	rep, err := t.Run(ctx)
	bar.Stop()
	if err != nil {
		return err
	}
	if a.json() {
		err = a.writeJSON(rep)
	} else {
		err = rep.WriteTable(a.Out)
	}
	switch {
	case err != nil:
		return err
	case !rep.OK():
		return fmt.Errorf("demo: %d of %d tasks did not succeed, %d of %d files were indexed",
			rep.Failed, rep.Submitted, rep.Files, rep.FilesFound)
	case once:
		return nil
	}
	if !a.json() {
		fmt.Fprintf(a.Out, `
The server and the functions stay up until Ctrl-C. Look around:
  export HEADRACE_ADDR=%s
  headrace task list --tenant acme --limit 10
  headrace node list
  headrace partition list
Submit by hand:
  headrace submit checksum --tenant acme --payload '{"root": "/etc", "path": "hosts"}' --wait
`, t.Addr())
	}
	<-ctx.Done()
	return nil
}
