package cli

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/headrace/headrace/internal/clusterclient"
	"github.com/headrace/headrace/internal/term"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

func newPool(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "pool",
		Short: "Executor pools: how many executors there are, and should be",
		Long: `Executor pools: the executors that run the same functions, how many there are, and how many there should be and why.

A function that waits and that no executor runs is listed as a pool without executors.`,
	}
	c.AddCommand(newPoolList(a), newPoolRun(a))
	asGroup(c)
	return c
}

func newPoolList(a *app) *cobra.Command {
	var all bool
	var function string
	c := &cobra.Command{
		Use: "list", Short: "List the pools of the tenant, or of all", Args: exactly(0, "no arguments"),
		Long: `List the pools of the tenant, or of all, as the nodes told a second ago or so.

DESIRED is how many executors there should be: it grows at once, and falls to the highest need of the last five minutes. WHY
says what the need comes from: backlog, arrivals, running, idle; or downstream, if that bears no more and more executors would
only be throttled. Executors are listed in the order in which they should leave; -o json has each with its pod_deletion_cost.`,
		RunE: func(c *cobra.Command, _ []string) error {
			if function != "" {
				if err := task.Name("function", function); err != nil {
					return usageError{err}
				}
			}
			req := &headracev1.ListPoolsRequest{Tenant: a.tenant, Function: function}
			if all {
				req.Tenant = ""
			}
			return a.pools(c.Context(), req)
		},
	}
	c.Flags().BoolVar(&all, "all", false, "of all tenants")
	c.Flags().StringVar(&function, "function", "", "only pools that run the function `name`")
	return c
}

type poolJSON struct {
	Pool         string             `json:"pool"`
	Tenant       string             `json:"tenant"` // "": of several
	Functions    []string           `json:"functions"`
	Slots        uint32             `json:"slots"`
	Running      uint32             `json:"running"`
	Waiting      uint64             `json:"waiting"`
	Desired      uint32             `json:"desired"`
	Why          string             `json:"why"`
	DesiredNow   uint32             `json:"desired_now"`
	DesiredSlots float64            `json:"desired_slots"`
	ArrivalRate  float64            `json:"arrival_rate"`
	Service      *float64           `json:"service_seconds"` // null: unknown
	Executors    []poolExecutorJSON `json:"executors"`
}

type poolExecutorJSON struct {
	ID              string `json:"id"`
	Name            string `json:"name"`
	Slots           uint32 `json:"slots"`
	Running         uint32 `json:"running"`
	Draining        bool   `json:"draining"`
	DrainOrder      uint32 `json:"drain_order"`
	PodDeletionCost uint32 `json:"pod_deletion_cost"`
}

func newPoolJSON(p *headracev1.Pool) poolJSON {
	j := poolJSON{Pool: p.Name, Tenant: p.Tenant, Functions: append([]string{}, p.Functions...), Slots: p.Slots, Running: p.Running, Waiting: p.Waiting,
		Desired: p.Desired, Why: p.Why, DesiredNow: p.DesiredNow, DesiredSlots: round4(p.DesiredSlots), ArrivalRate: round4(p.ArrivalRate), Executors: []poolExecutorJSON{}}
	if p.ServiceTime != nil {
		s := p.ServiceTime.AsDuration().Round(time.Microsecond).Seconds()
		j.Service = &s
	}
	for _, x := range p.Executors {
		j.Executors = append(j.Executors, poolExecutorJSON{fmt.Sprintf("%x", x.Id), x.Name, x.Slots, x.Running, x.Draining, x.DrainOrder, x.PodDeletionCost})
	}
	return j
}

func round4(v float64) float64 { return math.Round(v*1e4) / 1e4 }

func (a *app) pools(ctx context.Context, req *headracev1.ListPoolsRequest) error {
	var t, xs term.Table
	t.Row("TENANT", "POOL", "EXECUTORS", "DESIRED", "WHY", "SLOTS", "RUNNING", "WAITING", "ARRIVE/S", "A TRY TAKES")
	xs.Row("LEAVES", "POOL", "EXECUTOR", "SLOTS", "RUNNING", "COST", "STATE")
	var missing []string
	executors := 0
	err := a.withCluster(ctx, func(ctx context.Context, c *clusterclient.Client) (err error) {
		missing, err = c.Pools(ctx, req, func(p *headracev1.Pool) error {
			if a.json() {
				return a.writeJSON(newPoolJSON(p))
			}
			takes := "-"
			if p.ServiceTime != nil {
				takes = p.ServiceTime.AsDuration().Round(time.Millisecond).String()
			}
			t.Row(orDash(p.Tenant), p.Name, fmt.Sprint(len(p.Executors)), fmt.Sprint(p.Desired), p.Why, fmt.Sprint(p.Slots), fmt.Sprint(p.Running),
				fmt.Sprint(p.Waiting), fmt.Sprintf("%.1f", p.ArrivalRate), takes)
			for _, x := range p.Executors {
				state := "working"
				switch {
				case x.Draining:
					state = "draining"
				case x.Running == 0:
					state = "idle"
				}
				xs.Row(fmt.Sprint(x.DrainOrder), p.Name, x.Name, fmt.Sprint(x.Slots), fmt.Sprint(x.Running), fmt.Sprint(x.PodDeletionCost), state)
				executors++
			}
			return nil
		})
		return err
	})
	if err != nil {
		return err
	}
	if !a.json() {
		var b strings.Builder
		t.WriteTo(&b)
		if executors > 0 {
			b.WriteString("\n")
			xs.WriteTo(&b)
		}
		if _, err := fmt.Fprint(a.Out, b.String()); err != nil {
			return err
		}
	}
	return silentNodes(missing)
}

// silentNodes is missingNodes of what nodes tell each other.
func silentNodes(ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	return fmt.Errorf("nodes that have told nothing for 30s: %s", strings.Join(ids, ", "))
}
