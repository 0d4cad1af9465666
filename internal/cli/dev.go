package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/headrace/headrace/dispatcher"
	"github.com/headrace/headrace/internal/telemetry"
	"github.com/headrace/headrace/internal/term"
	"github.com/headrace/headrace/internal/version"
	"github.com/headrace/headrace/task"
)

func newDev(a *app) *cobra.Command {
	cfg := dispatcher.Config{Version: version.String()}
	drain := durationFlag(5 * time.Second)
	level := ""
	c := &cobra.Command{
		Use:   "dev",
		Short: "Run a server: one process, one data directory, nothing else needed",
		Long: `Dev runs a server for one machine. Everything it knows is in the data directory: $XDG_DATA_HOME/headrace, or
~/.local/share/headrace, unless --data names another. Two servers can't use the same one.

Without keys the server listens on loopback addresses only; port 0 picks a free port. With -o json the first
line of standard output says where: {"ready":true,"grpc":"…","http":"…","pid":…}.

SIGTERM hands everything over to the disk and ends; running handlers go on and report to the next start.`,
		Args: exactly(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			if c.Flags().Changed("data") && cfg.DataDir == "" {
				return usagef("an empty name was given for --data")
			}
			if cfg.DataDir == "" {
				dir, err := dataDir()
				if err != nil {
					return err
				}
				cfg.DataDir = dir
			}
			format := "text"
			if a.json() {
				format = "json"
			}
			log, err := telemetry.NewLogger(a.Err, telemetry.LogConfig{Level: level, Format: format})
			if err != nil {
				return usageError{err}
			}
			cfg.Logger, cfg.Drain = log, time.Duration(drain)
			return a.runNode(c.Context(), "dev", cfg)
		},
	}
	fl := c.Flags()
	fl.StringVar(&cfg.DataDir, "data", "", "data `directory`, made if it is not there")
	fl.StringVar(&cfg.Listen, "listen", "127.0.0.1:7070", "`host:port` for gRPC")
	fl.StringVar(&cfg.HTTP, "http", "127.0.0.1:7071", "`host:port` for health and debug pages; off for none")
	fl.IntVar(&cfg.Partitions, "partitions", 8, "`number` of partitions of a new data directory, 1-1024")
	fl.IntVar(&cfg.MaxPayload, "max-payload", task.MaxPayload, "largest payload and result in `bytes`, at most 16 MiB")
	fl.Var(&drain, "drain", "how long a stop may take to hand over")
	fl.StringVar(&level, "log-level", "info", "least `level` of log lines on standard error: debug, info, warn or error")
	c.RegisterFlagCompletionFunc("log-level", cobra.FixedCompletions([]string{"debug", "info", "warn", "error"}, cobra.ShellCompDirectiveNoFileComp))
	return c
}

// runNode runs a node until ctx ends; name is the command's.
func (a *app) runNode(ctx context.Context, name string, cfg dispatcher.Config) error {
	node, err := dispatcher.New(cfg)
	if err != nil {
		return usageError{err}
	}
	ended := make(chan error, 1)
	go func() { ended <- node.Run(ctx) }()
	select {
	case err = <-ended:
	case <-node.Ready():
		if err = a.nodeReady(node, cfg.DataDir); err != nil {
			return err
		}
		err = <-ended
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func (a *app) nodeReady(node *dispatcher.Node, data string) error {
	if a.json() {
		return a.writeJSON(struct {
			Ready bool   `json:"ready"`
			GRPC  string `json:"grpc"`
			HTTP  string `json:"http"`
			PID   int    `json:"pid"`
		}{true, node.Addr(), node.HTTPAddr(), os.Getpid()})
	}
	var t term.Table
	t.Width = 200
	t.Row("gRPC", node.Addr())
	t.Row("HTTP", orDash(node.HTTPAddr()))
	if data != "" {
		t.Row("data", data)
	}
	if _, err := t.WriteTo(a.Out); err != nil {
		return err
	}
	addr := ""
	if node.Addr() != "127.0.0.1:7070" {
		addr = " --addr " + node.Addr()
	}
	_, err := fmt.Fprintf(a.Out, `
Ready. In another terminal:
  headrace%[1]s worker --function upper -- tr a-z A-Z
  headrace%[1]s submit upper --payload hello --wait
`, addr)
	return err
}

// dataDir returns the data directory of this user.
func dataDir() (string, error) {
	if dir := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(dir) { // the XDG specification: ignore relative ones
		return filepath.Join(dir, "headrace"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("find the data directory: %w; name one with --data", err)
	}
	return filepath.Join(home, ".local", "share", "headrace"), nil
}
