package cli

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/headrace/headrace/internal/clusterclient"
	"github.com/headrace/headrace/internal/term"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

func newPlacement(a *app) *cobra.Command {
	c := &cobra.Command{Use: "placement", Short: "Which partitions a tenant's tasks go to"}
	c.AddCommand(
		&cobra.Command{
			Use: "list", Short: "List the tenants' placements", Args: exactly(0, "no arguments"),
			RunE: func(c *cobra.Command, _ []string) error { return a.placements(c.Context()) },
		},
		&cobra.Command{
			Use: "explain TENANT", Short: "Say where a tenant's tasks go, why, and with whom it shares how much",
			Long: `Say where a tenant's tasks go, why, and with whom it shares how much.

The blast radius is the share of the other tenants that lose every partition when this tenant takes
all of its own down with it.`,
			Args: exactly(1, "one tenant"),
			RunE: func(c *cobra.Command, args []string) error { return a.explainPlacement(c.Context(), args[0]) },
		},
		newPlacementMove(a),
		newPlacementSimulate(a),
		&cobra.Command{
			Use: "events", Short: "List the newest changes of placements, newest first", Args: exactly(0, "no arguments"),
			RunE: func(c *cobra.Command, _ []string) error { return a.placementEvents(c.Context()) },
		},
	)
	return asGroup(c)
}

type placementJSON struct {
	Tenant    string   `json:"tenant"`
	Version   uint64   `json:"version"`
	Salt      uint32   `json:"salt"`
	K         uint32   `json:"k"`
	Shard     []uint32 `json:"partitions"`
	Before    []uint32 `json:"partitions_before"`
	Directory string   `json:"directory_database"`
	Reason    string   `json:"reason"`
	ChangedAt jsonTime `json:"changed_at"`
	Stored    bool     `json:"stored"`
}

func newPlacementJSON(p *headracev1.Placement) placementJSON {
	j := placementJSON{p.Tenant, p.Version, p.Salt, p.K, p.Partitions, p.PartitionsBefore, p.DirectoryDatabase,
		placementReason(p.Reason), jsonTime(p.ChangeTime.AsTime()), p.Stored}
	if j.Before == nil {
		j.Before = []uint32{}
	}
	return j
}

func placementReason(r headracev1.PlacementReason) string {
	return strings.ToLower(strings.TrimPrefix(r.String(), "PLACEMENT_REASON_"))
}

// withCluster runs f with a client of the server, and a deadline.
func (a *app) withCluster(ctx context.Context, f func(context.Context, *clusterclient.Client) error) error {
	c, err := clusterclient.Dial(a.addr, a.apiKey)
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := within(ctx)
	defer cancel()
	return f(ctx, c)
}

func (a *app) placements(ctx context.Context) error {
	var t term.Table
	t.Row("TENANT", "PARTITIONS", "K", "CLIENT IDS IN", "VERSION", "REASON", "CHANGED")
	err := a.withCluster(ctx, func(ctx context.Context, c *clusterclient.Client) error {
		return c.Placements(ctx, func(p *headracev1.Placement) error {
			if a.json() {
				return a.writeJSON(newPlacementJSON(p))
			}
			t.Row(p.Tenant, numbers(p.Partitions), fmt.Sprint(p.K), orDash(p.DirectoryDatabase), fmt.Sprint(p.Version),
				placementReason(p.Reason), clock(p.ChangeTime.AsTime(), time.Now()))
			return nil
		})
	})
	if err != nil || a.json() {
		return err
	}
	_, err = t.WriteTo(a.Out)
	return err
}

// numbers returns "1 2 3"; "-" for none.
func numbers(list []uint32) string {
	if len(list) == 0 {
		return "-"
	}
	return strings.Trim(fmt.Sprint(list), "[]")
}

type memberJSON struct {
	Partition uint32 `json:"partition"`
	Database  string `json:"database"`
	State     string `json:"state"`
	Node      string `json:"node"`
	Tenants   uint32 `json:"tenants"`
	Why       string `json:"why"`
}

type overlapJSON struct {
	Tenant     string   `json:"tenant"`
	Shared     int      `json:"shared"`
	Partitions []uint32 `json:"partitions"`
	Covered    bool     `json:"covered"`
}

type shareJSON struct {
	Shared   uint32  `json:"shared"`
	Tenants  uint32  `json:"tenants"`
	Measured float64 `json:"measured"`
	Expected float64 `json:"expected"`
}

type explainJSON struct {
	placementJSON
	Why                string        `json:"why"`
	Members            []memberJSON  `json:"members"`
	ActivePartitions   uint32        `json:"active_partitions"`
	OtherTenants       uint32        `json:"other_tenants"`
	Overlaps           []overlapJSON `json:"overlaps"`
	Shares             []shareJSON   `json:"shares"`
	BlastRadiusPercent float64       `json:"blast_radius_percent"`
	TouchedPercent     float64       `json:"touched_percent"`
}

func (a *app) explainPlacement(ctx context.Context, tenant string) error {
	if err := task.Name("TENANT", tenant); err != nil {
		return usageError{err}
	}
	return a.withCluster(ctx, func(ctx context.Context, c *clusterclient.Client) error {
		res, err := c.ExplainPlacement(ctx, tenant)
		if err != nil {
			return err
		}
		return a.printExplained(res)
	})
}

func (a *app) printExplained(res *headracev1.ExplainPlacementResponse) error {
	j := explainJSON{placementJSON: newPlacementJSON(res.Placement), Why: whyPlaced(res), ActivePartitions: res.Partitions, OtherTenants: res.Tenants,
		Members: []memberJSON{}, Overlaps: []overlapJSON{}, Shares: []shareJSON{},
		BlastRadiusPercent: res.BlastRadiusPercent, TouchedPercent: res.TouchedPercent}
	for _, m := range res.Members {
		j.Members = append(j.Members, memberJSON{m.Partition, m.Database, m.State, m.NodeId, m.Tenants, m.Why})
	}
	for _, o := range res.Overlaps {
		j.Overlaps = append(j.Overlaps, overlapJSON{o.Tenant, len(o.Partitions), o.Partitions, o.Covered})
	}
	for _, s := range res.Shares {
		measured := 0.0
		if res.Tenants > 0 {
			measured = float64(s.Tenants) / float64(res.Tenants)
		}
		j.Shares = append(j.Shares, shareJSON{s.Shared, s.Tenants, measured, s.Expected})
	}
	if a.json() {
		return a.writeJSON(j)
	}

	fmt.Fprintf(a.Out, "tenant        %s\nshard         %s   (of %d active partitions; k %d, version %d)\nwhy           %s\n",
		term.Escape(j.Tenant), numbers(j.Shard), j.ActivePartitions, j.K, j.Version, j.Why)
	if len(j.Before) > 0 {
		fmt.Fprintf(a.Out, "before        %s   (older tasks end there)\n", numbers(j.Before))
	}
	fmt.Fprintf(a.Out, "client ids    in database %s, for ever\n", orDash(term.Escape(j.Directory)))
	fmt.Fprintf(a.Out, "blast radius  %.3g%% of %d other tenants would lose every partition with it; %.3g%% share at least one\n\n",
		j.BlastRadiusPercent, j.OtherTenants, j.TouchedPercent)
	var t term.Table
	t.Width = 100
	t.Row("PARTITION", "DATABASE", "STATE", "NODE", "TENANTS", "WHY")
	for _, m := range j.Members {
		t.Row(fmt.Sprint(m.Partition), orDash(m.Database), m.State, orDash(m.Node), fmt.Sprint(m.Tenants), m.Why)
	}
	if _, err := t.WriteTo(a.Out); err != nil {
		return err
	}
	var s term.Table
	fmt.Fprintln(a.Out)
	s.Row("SHARED", "TENANTS", "MEASURED", "EXPECTED")
	for _, r := range j.Shares {
		s.Row(fmt.Sprint(r.Shared), fmt.Sprint(r.Tenants), percent(r.Measured), percent(r.Expected))
	}
	if _, err := s.WriteTo(a.Out); err != nil || len(j.Overlaps) == 0 {
		return err
	}
	var o term.Table
	fmt.Fprintln(a.Out)
	o.Row("TENANT", "SHARED", "PARTITIONS", "")
	for _, x := range j.Overlaps {
		note := ""
		if x.Covered {
			note = "all of its partitions"
		}
		o.Row(x.Tenant, fmt.Sprint(x.Shared), numbers(x.Partitions), note)
	}
	_, err := o.WriteTo(a.Out)
	return err
}

// whyPlaced says in words how the placement came to be.
func whyPlaced(res *headracev1.ExplainPlacementResponse) string {
	p := res.Placement
	at := ""
	if p.Stored {
		at = " at " + p.ChangeTime.AsTime().UTC().Format(time.RFC3339)
	}
	switch p.Reason {
	case headracev1.PlacementReason_PLACEMENT_REASON_MOVED:
		return "moved" + at + " to the partitions that were named; see `headrace placement events`"
	case headracev1.PlacementReason_PLACEMENT_REASON_RESIZED:
		return fmt.Sprintf("resized%s to k %d: members stayed, as far as there was room", at, p.K)
	case headracev1.PlacementReason_PLACEMENT_REASON_DRAINED:
		return "changed" + at + " because a member takes no new tasks any more: the next best took its place"
	}
	if !p.Stored {
		return fmt.Sprintf("computed; it is stored with the tenant's first task: the first %d of its order, databases in turn", p.K)
	}
	return fmt.Sprintf("created%s with its first task: the first %d of its order (salt %d), databases in turn", at, p.K, p.Salt)
}

// percent shows a share.
func percent(share float64) string {
	if share > 0 && share < .0001 {
		return fmt.Sprintf("%.2g%%", 100*share)
	}
	return fmt.Sprintf("%.2f%%", 100*share)
}

func newPlacementMove(a *app) *cobra.Command {
	var to, note string
	var k uint32
	c := &cobra.Command{
		Use:   "move TENANT (--to PARTITION,… | --k N)",
		Short: "Send a tenant's new tasks elsewhere",
		Long: `Send a tenant's new tasks elsewhere. Those that it has already end where they are; their ids stay
valid, and a client id is never accepted twice. Partitions of the tenant's directory database are
added if there are fewer than two among those named.`,
		Args: exactly(1, "one tenant"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := task.Name("TENANT", args[0]); err != nil {
				return usageError{err}
			}
			if c.Flags().Changed("to") == c.Flags().Changed("k") {
				return usagef("one of --to and --k is needed; see `%s --help`", c.CommandPath())
			}
			req := &headracev1.MovePlacementRequest{Tenant: args[0], K: k, Note: note}
			if c.Flags().Changed("to") {
				var err error
				if req.Partitions, err = parsePartitions("--to", to); err != nil {
					return err
				}
			} else if k == 0 {
				return usagef("--k: 0 given, want 1 to 24")
			}
			return a.movePlacement(c.Context(), req)
		},
	}
	c.Flags().StringVar(&to, "to", "", "the `partitions`, by number, with commas")
	c.Flags().Uint32Var(&k, "k", 0, "how many partitions: members stay, as far as there is room")
	c.Flags().StringVar(&note, "note", "", "why, for `headrace placement events`")
	return c
}

func parsePartitions(field, s string) (list []uint32, err error) {
	for _, f := range strings.Split(s, ",") {
		n, err := strconv.ParseUint(strings.TrimSpace(f), 10, 32)
		if err != nil || slices.Contains(list, uint32(n)) {
			return nil, usagef("%s: %s given, want numbers of partitions, each once", field, task.Shorten(s))
		}
		list = append(list, uint32(n))
	}
	return list, nil
}

func (a *app) movePlacement(ctx context.Context, req *headracev1.MovePlacementRequest) error {
	return a.withCluster(ctx, func(ctx context.Context, c *clusterclient.Client) error {
		p, err := c.MovePlacement(ctx, req)
		if err != nil {
			return err
		}
		if a.json() {
			return a.writeJSON(newPlacementJSON(p))
		}
		_, err = fmt.Fprintf(a.Out, "%s: new tasks go to %s (version %d); those before end where they are\n", term.Escape(p.Tenant), numbers(p.Partitions), p.Version)
		return err
	})
}

type placementEventJSON struct {
	Number  uint64   `json:"number"`
	At      jsonTime `json:"at"`
	Tenant  string   `json:"tenant"`
	Version uint64   `json:"version"`
	Reason  string   `json:"reason"`
	Note    string   `json:"note"`
	From    []uint32 `json:"from"`
	To      []uint32 `json:"to"`
}

func (a *app) placementEvents(ctx context.Context) error {
	return a.withCluster(ctx, func(ctx context.Context, c *clusterclient.Client) error {
		events, err := c.PlacementEvents(ctx)
		if err != nil {
			return err
		}
		var t term.Table
		t.Row("EVENT", "AT", "TENANT", "VERSION", "REASON", "FROM", "TO", "NOTE")
		for _, e := range events {
			if a.json() {
				if err := a.writeJSON(placementEventJSON{e.Number, jsonTime(e.EventTime.AsTime()), e.Tenant, e.Version, placementReason(e.Reason), e.Note, e.From, e.To}); err != nil {
					return err
				}
				continue
			}
			t.Row(fmt.Sprint(e.Number), clock(e.EventTime.AsTime(), time.Now()), e.Tenant, fmt.Sprint(e.Version), placementReason(e.Reason),
				numbers(e.From), numbers(e.To), e.Note)
		}
		if a.json() {
			return nil
		}
		_, err = t.WriteTo(a.Out)
		return err
	})
}
