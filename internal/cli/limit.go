package cli

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/headrace/headrace/internal/clusterclient"
	"github.com/headrace/headrace/internal/term"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

func newLimit(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "limit",
		Short: "Limits: of tenants and functions, and how many tries a downstream gets at once",
		Long: `Limits that you set: how many tries of the tenant, or of a function, run at once, and how many start a second, on all nodes
together. What they hold back waits, and is never lost.

Adaptive limits: how many tries a downstream gets at once, found from the throttles that it answers.

A function's downstream is the one that its policy names, else itself. There is a limit once a downstream is named, a try of
it was throttled, or somebody set one. Each node has a limit of its own for what it owns.`,
	}
	c.AddCommand(newLimitList(a), newLimitShow(a), newLimitSet(a), newLimitReset(a))
	asGroup(c)
	return c
}

func newLimitList(a *app) *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use: "list", Short: "List the limits of the tenant, or of all", Args: exactly(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			tenant := a.tenant
			if all {
				tenant = ""
			}
			return a.limits(c.Context(), tenant)
		},
	}
	c.Flags().BoolVar(&all, "all", false, "of all tenants")
	return c
}

func newLimitShow(a *app) *cobra.Command {
	var function string
	c := &cobra.Command{
		Use: "show [DOWNSTREAM]", Short: "Show a limit on each node, with its last decisions and why", Args: atMost(1, "a downstream at most"),
		Long: "Show a downstream's limit on each node, with its last decisions and why; without one, the tenant's own limit, or a function's.",
		RunE: func(c *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				return a.showBound(c.Context(), function)
			case function != "":
				return usagef("--function: want it without a downstream")
			}
			return a.showLimit(c.Context(), args[0])
		},
	}
	c.Flags().StringVar(&function, "function", "", "of this function of the tenant: its `name`")
	return c
}

func newLimitSet(a *app) *cobra.Command {
	var lo, hi, fixed uint32
	var reason string
	var bound task.Bound
	c := &cobra.Command{
		Use: "set [DOWNSTREAM]", Short: "Limit the tenant or a function; bound a downstream's limit, or fix it", Args: atMost(1, "a downstream at most"),
		Long: `Without a downstream: limit the tenant, or with --function one of its functions, to --concurrency tries at once, --rate starts a
second, or both. With one: bound its adaptive limit, or fix it; on several nodes that holds on each of them.

It is stored, takes the place of what was set before, and holds until reset.`,
		Example: `  headrace limit set --concurrency 20
  headrace limit set --function mail --rate 10 --burst 50 --reason "the provider's contract"
  headrace limit set stripe --max 40`,
		RunE: func(c *cobra.Command, args []string) error {
			isBound := c.Flags().Changed("function") || c.Flags().Changed("concurrency") || c.Flags().Changed("rate") || c.Flags().Changed("burst")
			isAdaptive := c.Flags().Changed("min") || c.Flags().Changed("max") || c.Flags().Changed("fixed")
			switch {
			case len(args) == 0 && isAdaptive:
				return usagef("--min, --max, --fixed: want a downstream")
			case len(args) == 1 && isBound:
				return usagef("--function, --concurrency, --rate, --burst: want no downstream")
			case len(args) == 0:
				bound.Reason = reason
				return a.setBound(c.Context(), bound)
			}
			if c.Flags().Changed("fixed") {
				if c.Flags().Changed("min") || c.Flags().Changed("max") {
					return usagef("--fixed: want it without --min and --max")
				}
				lo, hi = fixed, fixed
			}
			l := task.Limit{Downstream: args[0], Min: int(lo), Max: int(hi), Reason: reason}
			if err := l.Validate(); err != nil {
				return usageError{err}
			}
			return a.withCluster(c.Context(), func(ctx context.Context, cc *clusterclient.Client) error {
				o, err := cc.SetLimit(ctx, &headracev1.SetLimitRequest{Tenant: a.tenant, Downstream: args[0], Min: lo, Max: hi, Reason: reason})
				if err != nil {
					return err
				}
				if a.json() {
					return a.writeJSON(struct {
						Tenant     string     `json:"tenant"`
						Downstream string     `json:"downstream"`
						Set        *limitWord `json:"set"`
					}{a.tenant, args[0], newLimitWord(o)})
				}
				_, err = fmt.Fprintf(a.Out, "%s/%s is set to %s\n", a.tenant, args[0], boundsOf(o))
				return err
			})
		},
	}
	c.Flags().Uint32Var(&lo, "min", 0, "never below `N` tries at once")
	c.Flags().Uint32Var(&hi, "max", 0, "never above `N` tries at once")
	c.Flags().Uint32Var(&fixed, "fixed", 0, "always `N` tries at once, whatever the downstream says")
	c.Flags().StringVar(&bound.Function, "function", "", "of this function of the tenant: its `name`")
	c.Flags().IntVar(&bound.Concurrency, "concurrency", 0, "at most `N` tries at once")
	c.Flags().Float64Var(&bound.Rate, "rate", 0, "at most `N` starts a second")
	c.Flags().IntVar(&bound.Burst, "burst", 0, "`N` starts at once after a rest; without it those of one second, at least 1")
	c.Flags().StringVar(&reason, "reason", "", "why, for people: at most 255 bytes of `text`")
	return c
}

func newLimitReset(a *app) *cobra.Command {
	var function string
	c := &cobra.Command{
		Use: "reset [DOWNSTREAM]", Short: "Take what was set away, and let a downstream's limit begin anew", Args: atMost(1, "a downstream at most"),
		Long: "Take away what was set for a downstream, and let its limit begin anew; without one, the tenant's own limit, or a function's.",
		RunE: func(c *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				return a.removeBound(c.Context(), function)
			case function != "":
				return usagef("--function: want it without a downstream")
			}
			return a.withCluster(c.Context(), func(ctx context.Context, cc *clusterclient.Client) error {
				res, err := cc.ResetLimit(ctx, a.tenant, args[0])
				if err != nil {
					return err
				}
				if a.json() {
					err = a.writeJSON(struct {
						Tenant     string     `json:"tenant"`
						Downstream string     `json:"downstream"`
						Removed    *limitWord `json:"removed"`
						Nodes      uint32     `json:"nodes"`
						Missing    []string   `json:"missing_nodes"`
					}{a.tenant, args[0], newLimitWord(res.Removed), res.Nodes, append([]string{}, res.MissingNodes...)})
				} else {
					_, err = fmt.Fprintf(a.Out, "%s/%s begins anew on %d nodes\n", a.tenant, args[0], res.Nodes)
				}
				if err != nil {
					return err
				}
				return missingNodes(res.MissingNodes)
			})
		},
	}
	c.Flags().StringVar(&function, "function", "", "of this function of the tenant: its `name`")
	return c
}

type limitJSON struct {
	Kind       string          `json:"kind"` // "downstream"; boundJSON has the others
	Tenant     string          `json:"tenant"`
	Downstream string          `json:"downstream"`
	Functions  []string        `json:"functions"`
	Limit      float64         `json:"limit"` // of all nodes where there is one
	InUse      uint32          `json:"in_use"`
	Parked     uint32          `json:"parked"`
	PausedTo   jsonTime        `json:"paused_until"` // the latest
	Set        *limitWord      `json:"set"`          // null: nothing
	Nodes      []nodeLimitJSON `json:"nodes"`
}

type limitWord struct {
	Min    uint32   `json:"min"`
	Max    *uint32  `json:"max"` // null: no bound
	Reason string   `json:"reason"`
	At     jsonTime `json:"created_at"`
}

type nodeLimitJSON struct {
	Node      string         `json:"node"`
	Active    bool           `json:"active"`
	Limit     float64        `json:"limit"`
	Min       uint32         `json:"min"`
	Max       uint32         `json:"max"`
	InUse     uint32         `json:"in_use"`
	Parked    uint32         `json:"parked"`
	PausedTo  jsonTime       `json:"paused_until"`
	Throttles uint32         `json:"window_throttles"`
	Results   uint32         `json:"window_results"`
	Decisions []decisionJSON `json:"decisions"`
}

type decisionJSON struct {
	At        jsonTime `json:"at"`
	Reason    string   `json:"reason"`
	From      float64  `json:"from"`
	To        float64  `json:"to"`
	Throttles uint32   `json:"throttles"`
	Results   uint32   `json:"results"`
	Rate      float64  `json:"rate"`
}

func newLimitWord(o *headracev1.LimitOverride) *limitWord {
	if o == nil {
		return nil
	}
	w := &limitWord{Min: max(o.Min, 1), Reason: o.Reason, At: jsonTime(o.CreateTime.AsTime())}
	if o.Max > 0 {
		w.Max = &o.Max
	}
	return w
}

func boundsOf(o *headracev1.LimitOverride) string {
	switch {
	case o == nil:
		return ""
	case o.Min == o.Max:
		return fmt.Sprint(o.Min)
	case o.Max == 0:
		return fmt.Sprint("at least ", o.Min)
	}
	return fmt.Sprintf("%d to %d", max(o.Min, 1), o.Max)
}

func round2(v float64) float64 { return math.Round(v*100) / 100 }

func newLimitJSON(l *headracev1.Limit) limitJSON {
	j := limitJSON{Kind: "downstream", Tenant: l.Tenant, Downstream: l.Downstream, Functions: append([]string{}, l.Functions...), Set: newLimitWord(l.Override), Nodes: []nodeLimitJSON{}}
	for _, n := range l.Nodes {
		k := nodeLimitJSON{Node: n.NodeId, Active: n.Active, Limit: round2(n.Limit), Min: n.Min, Max: n.Max, InUse: n.InUse, Parked: n.Parked,
			Throttles: n.Throttles, Results: n.Results, Decisions: []decisionJSON{}}
		if n.PausedUntilTime != nil {
			k.PausedTo = jsonTime(n.PausedUntilTime.AsTime())
			if time.Time(k.PausedTo).After(time.Time(j.PausedTo)) {
				j.PausedTo = k.PausedTo
			}
		}
		for _, d := range n.Decisions {
			k.Decisions = append(k.Decisions, decisionJSON{jsonTime(d.DecideTime.AsTime()), d.Reason, round2(d.From), round2(d.To), d.Throttles, d.Results, math.Round(d.Rate*1e4) / 1e4})
		}
		j.Limit, j.InUse, j.Parked = round2(j.Limit+n.Limit), j.InUse+n.InUse, j.Parked+n.Parked
		j.Nodes = append(j.Nodes, k)
	}
	return j
}

func missingNodes(ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	return fmt.Errorf("nodes that did not answer: %s", strings.Join(ids, ", "))
}

func (a *app) limits(ctx context.Context, tenant string) error {
	var t term.Table
	t.Row("TENANT", "DOWNSTREAM", "LIMIT", "IN USE", "PARKED", "PAUSED UNTIL", "SET", "LAST DECISION", "FUNCTIONS")
	var bounds boundTable
	var missing, silent []string
	rows := 0
	err := a.withCluster(ctx, func(ctx context.Context, c *clusterclient.Client) (err error) {
		missing, err = c.Limits(ctx, tenant, "", func(l *headracev1.Limit) error {
			j := newLimitJSON(l)
			if a.json() {
				return a.writeJSON(j)
			}
			limit, last := "-", "-"
			var at time.Time
			for _, n := range j.Nodes {
				if n.Active {
					limit = fmt.Sprint(int(j.Limit))
				}
				if k := len(n.Decisions); k > 0 && time.Time(n.Decisions[k-1].At).After(at) {
					at = time.Time(n.Decisions[k-1].At)
					last = fmt.Sprint(clock(at, time.Now()), " ", n.Decisions[k-1].Reason)
				}
			}
			t.Row(j.Tenant, j.Downstream, limit, fmt.Sprint(j.InUse), fmt.Sprint(j.Parked), pausedText(j.PausedTo), orDash(boundsOf(l.Override)), last, strings.Join(j.Functions, ","))
			rows++
			return nil
		})
		if err == nil {
			silent, err = a.bounds(ctx, c, tenant, &bounds)
		}
		return err
	})
	if err == nil && !a.json() {
		if bounds.n > 0 {
			_, err = bounds.WriteTo(a.Out)
		}
		if err == nil && (rows > 0 || bounds.n == 0) {
			if bounds.n > 0 {
				fmt.Fprintln(a.Out)
			}
			_, err = t.WriteTo(a.Out)
		}
	}
	missing = append(missing, silent...)
	slices.Sort(missing)
	missing = slices.Compact(missing)
	if err != nil {
		return err
	}
	return missingNodes(missing)
}

func pausedText(at jsonTime) string {
	if time.Time(at).IsZero() {
		return "-"
	}
	return clock(time.Time(at), time.Now())
}

func (a *app) showLimit(ctx context.Context, downstream string) error {
	if err := task.Name("downstream", downstream); err != nil {
		return usageError{err}
	}
	var found *headracev1.Limit
	var missing []string
	err := a.withCluster(ctx, func(ctx context.Context, c *clusterclient.Client) (err error) {
		missing, err = c.Limits(ctx, a.tenant, downstream, func(l *headracev1.Limit) error {
			found = l
			return nil
		})
		return err
	})
	if err != nil {
		return err
	}
	if found == nil {
		if err := missingNodes(missing); err != nil {
			return err
		}
		return fmt.Errorf("%s/%s has no limit now: nothing of it was throttled lately, and nothing is set", a.tenant, downstream)
	}
	j := newLimitJSON(found)
	if a.json() {
		err = a.writeJSON(j)
	} else {
		var b strings.Builder
		fmt.Fprintf(&b, "%s/%s, called by %s", j.Tenant, j.Downstream, orDash(strings.Join(j.Functions, ", ")))
		if o := found.Override; o != nil {
			fmt.Fprintf(&b, "; set to %s at %s", boundsOf(o), clock(o.CreateTime.AsTime(), time.Now()))
			if o.Reason != "" {
				fmt.Fprintf(&b, " (%s)", o.Reason)
			}
		}
		b.WriteString("\n")
		for _, n := range j.Nodes {
			limitOnNode(&b, n)
		}
		_, err = fmt.Fprint(a.Out, b.String())
	}
	if err != nil {
		return err
	}
	return missingNodes(missing)
}

func limitOnNode(b *strings.Builder, n nodeLimitJSON) {
	fmt.Fprintf(b, "\nnode %s: ", n.Node)
	if n.Active {
		fmt.Fprintf(b, "%d of %d in use, %d cooling down, %d of %d throttled lately", n.InUse, int(n.Limit), n.Parked, n.Throttles, n.Results)
	} else {
		b.WriteString("no limit now")
	}
	if !time.Time(n.PausedTo).IsZero() {
		fmt.Fprintf(b, ", paused until %s", pausedText(n.PausedTo))
	}
	b.WriteString("\n")
	if len(n.Decisions) == 0 {
		return
	}
	var t term.Table
	t.Row("AT", "DECISION", "FROM", "TO", "THROTTLED", "RATE")
	for _, d := range n.Decisions {
		t.Row(clock(time.Time(d.At), time.Now()), d.Reason, fmt.Sprintf("%.1f", d.From), fmt.Sprintf("%.1f", d.To),
			fmt.Sprintf("%d of %d", d.Throttles, d.Results), fmt.Sprintf("%.1f %%", 100*d.Rate))
	}
	t.WriteTo(b)
}
