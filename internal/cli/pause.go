package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/headrace/headrace/internal/clusterclient"
	"github.com/headrace/headrace/internal/term"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

// pauseScope is what --function and --band say.
type pauseScope struct{ function, band string }

func (s *pauseScope) flags(c *cobra.Command, what string) {
	c.Flags().StringVar(&s.function, "function", "", what+" of this function only: its `name`")
	c.Flags().StringVar(&s.band, "band", "", what+" of this `band` only: high, normal or low")
	c.RegisterFlagCompletionFunc("band", cobra.FixedCompletions([]string{"high", "normal", "low"}, cobra.ShellCompDirectiveNoFileComp))
}

// read returns the band as the API has it; unspecified: any.
func (s *pauseScope) read() (headracev1.Band, error) {
	if s.function != "" {
		if err := task.Name("--function", s.function); err != nil {
			return 0, usageError{err}
		}
	}
	if s.band == "" {
		return headracev1.Band_BAND_UNSPECIFIED, nil
	}
	b, err := task.ParseBand(s.band)
	if err != nil {
		return 0, usagef("--band: %s given, want high, normal or low", task.Shorten(s.band))
	}
	return headracev1.Band(b + 1), nil
}

func newPause(a *app) *cobra.Command {
	var scope pauseScope
	var reason string
	var span, timeout durationFlag
	var until timeFlag
	c := &cobra.Command{
		Use:   "pause",
		Short: "Keep a tenant's waiting tasks from starting",
		Long: `Keep a tenant's waiting tasks from starting: all, or those of a function or a band. Running ones go on, new
ones are taken, and those with a start TTL or deadline expire as ever.

It returns once nothing that the rule covers can start any more, on any node. An owner that does not answer within
the timeout is named, and the exit code is 1: the rule is stored, and holds there as soon as that node hears
of it. To pause again waits again.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			band, err := scope.read()
			if err != nil {
				return err
			}
			req := &headracev1.PauseRequest{Tenant: a.tenant, Function: scope.function, Band: band, Reason: reason}
			switch {
			case span != 0 && !time.Time(until).IsZero():
				return usagef("--for and --until: want one of them")
			case span != 0:
				req.UntilTime = timestamppb.New(time.Now().Add(time.Duration(span)))
			case !time.Time(until).IsZero():
				req.UntilTime = timestamppb.New(time.Time(until))
			}
			wait := 15 * time.Second
			if timeout != 0 {
				if wait = time.Duration(timeout); wait < time.Millisecond || wait > time.Minute {
					return usagef("--timeout: %v given, want 1ms to 60s", wait)
				}
			}
			req.Timeout = durationpb.New(wait)
			return a.pause(c.Context(), req)
		},
	}
	scope.flags(c, "tasks")
	c.Flags().StringVar(&reason, "reason", "", "`text` that list and wait_reason show")
	c.Flags().Var(&span, "for", "end by itself after this `duration`")
	c.Flags().Var(&until, "until", "end by itself at this `time` (RFC 3339)")
	c.Flags().Var(&timeout, "timeout", "wait this long for the owners: a `duration` of 1ms to 60s (default 15s)")

	var all bool
	list := &cobra.Command{
		Use: "list", Short: "List the pause rules of the tenant, or of all", Args: exactly(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error { return a.pauses(c.Context(), all) },
	}
	list.Flags().BoolVar(&all, "all-tenants", false, "of all tenants")
	c.AddCommand(list)
	return c
}

// noArgs is for a command that has sub-commands and does something by itself.
func noArgs(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("%s has no command %s; see `%s --help`", c.CommandPath(), task.Shorten(args[0]), c.CommandPath())
	}
	return nil
}

func newResume(a *app) *cobra.Command {
	var scope pauseScope
	var all bool
	c := &cobra.Command{
		Use:   "resume",
		Short: "Take a pause rule away",
		Long: `Take a pause rule away: the one that pause made with the same --function and --band, or all of the tenant.
Rules that still hold for some of these tasks are named.`,
		Args: exactly(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			band, err := scope.read()
			if err != nil {
				return err
			}
			if all && (scope.function != "" || scope.band != "") {
				return usagef("--all: want no --function and no --band with it")
			}
			return a.resume(c.Context(), &headracev1.ResumeRequest{Tenant: a.tenant, Function: scope.function, Band: band, All: all})
		},
	}
	scope.flags(c, "tasks")
	c.Flags().BoolVar(&all, "all", false, "take all rules of the tenant away")
	return c
}

type pauseJSON struct {
	Rule      string   `json:"rule"`
	Tenant    string   `json:"tenant"`
	Function  *string  `json:"function"` // null: any
	Band      *string  `json:"band"`     // null: any
	Reason    string   `json:"reason"`
	CreatedAt jsonTime `json:"created_at"`
	Until     jsonTime `json:"until"`
}

type missingJSON struct {
	Partitions []uint32 `json:"partitions"`
	Node       string   `json:"node"`
	NodeName   string   `json:"node_name"`
	Address    string   `json:"address"`
	Why        string   `json:"why"`
}

func newPauseJSON(r *headracev1.PauseRule) pauseJSON {
	j := pauseJSON{Rule: r.Name, Tenant: r.Tenant, Reason: r.Reason, CreatedAt: jsonTime(r.CreateTime.AsTime())}
	if r.Function != "" {
		j.Function = &r.Function
	}
	if b := bandOf(r); b != "" {
		j.Band = &b
	}
	if r.UntilTime != nil {
		j.Until = jsonTime(r.UntilTime.AsTime())
	}
	return j
}

func bandOf(r *headracev1.PauseRule) string {
	if r.Band == headracev1.Band_BAND_UNSPECIFIED {
		return ""
	}
	return task.Band(r.Band - 1).String()
}

func newPausesJSON(rules []*headracev1.PauseRule) []pauseJSON {
	list := make([]pauseJSON, 0, len(rules))
	for _, r := range rules {
		list = append(list, newPauseJSON(r))
	}
	return list
}

// answerMargin is how much longer than the server's wait the call may take.
const answerMargin = 10 * time.Second

func (a *app) pause(ctx context.Context, req *headracev1.PauseRequest) error {
	c, err := clusterclient.Dial(a.addr, a.apiKey)
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeoutCause(ctx, req.Timeout.AsDuration()+answerMargin, errNoAnswer)
	defer cancel()
	res, err := c.Pause(ctx, req)
	if err != nil {
		return err
	}
	if a.json() {
		j := struct {
			pauseJSON
			InForce bool          `json:"in_force"`
			Missing []missingJSON `json:"missing"`
		}{newPauseJSON(res.Rule), len(res.Missing) == 0, []missingJSON{}}
		for _, m := range res.Missing {
			j.Missing = append(j.Missing, missingJSON{m.Partitions, m.NodeId, m.NodeName, m.Address, m.Why})
		}
		if err := a.writeJSON(j); err != nil {
			return err
		}
	} else if len(res.Missing) == 0 {
		_, err := fmt.Fprintf(a.Out, "paused %s\n", res.Rule.Name)
		return err
	}
	if len(res.Missing) == 0 {
		return nil
	}
	var who []string
	for _, m := range res.Missing {
		who = append(who, fmt.Sprintf("partitions %s of %s (%s)", numbers(m.Partitions), orDash(m.NodeName, m.Address, m.NodeId, "nobody"), m.Why))
	}
	return fmt.Errorf("%s is stored, but not said to be in force everywhere: %s", res.Rule.Name, strings.Join(who, "; "))
}

func (a *app) resume(ctx context.Context, req *headracev1.ResumeRequest) error {
	return a.withCluster(ctx, func(ctx context.Context, c *clusterclient.Client) error {
		res, err := c.Resume(ctx, req)
		if err != nil {
			return err
		}
		if a.json() {
			return a.writeJSON(struct {
				Removed   []pauseJSON `json:"removed"`
				Remaining []pauseJSON `json:"remaining"`
			}{newPausesJSON(res.Removed), newPausesJSON(res.Remaining)})
		}
		var b strings.Builder
		for _, r := range res.Removed {
			fmt.Fprintf(&b, "resumed %s\n", r.Name)
		}
		if len(res.Removed) == 0 {
			fmt.Fprintln(&b, "there is no such rule")
		}
		for _, r := range res.Remaining {
			fmt.Fprintf(&b, "still paused by %s\n", r.Name)
		}
		_, err = fmt.Fprint(a.Out, b.String())
		return err
	})
}

func (a *app) pauses(ctx context.Context, all bool) error {
	tenant := a.tenant
	if all {
		tenant = ""
	}
	var t term.Table
	t.Row("RULE", "FUNCTION", "BAND", "SINCE", "UNTIL", "REASON")
	err := a.withCluster(ctx, func(ctx context.Context, c *clusterclient.Client) error {
		return c.Pauses(ctx, tenant, func(r *headracev1.PauseRule) error {
			if a.json() {
				return a.writeJSON(newPauseJSON(r))
			}
			until := "-"
			if r.UntilTime != nil {
				until = clock(r.UntilTime.AsTime(), time.Now())
			}
			t.Row(r.Name, orDash(r.Function), orDash(bandOf(r)), clock(r.CreateTime.AsTime(), time.Now()), until, r.Reason)
			return nil
		})
	})
	if err != nil || a.json() {
		return err
	}
	_, err = t.WriteTo(a.Out)
	return err
}
