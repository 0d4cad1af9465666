package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/headrace/headrace/internal/clusterclient"
	"github.com/headrace/headrace/internal/term"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

func newTenant(a *app) *cobra.Command {
	c := &cobra.Command{Use: "tenant", Short: "Say what tenants may use, and see what they use"}
	c.AddCommand(newTenantSet(a), &cobra.Command{
		Use: "show TENANT", Short: "Show a tenant's settings, use and limits", Args: exactly(1, "TENANT"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.onTenants(c.Context(), func(ctx context.Context, cl *clusterclient.Client) error {
				t, err := cl.Tenant(ctx, args[0])
				if err != nil {
					return err
				}
				return a.showTenants(t)
			})
		},
	}, &cobra.Command{
		Use: "list", Short: "List the tenants that have settings or tasks, or that submit", Args: exactly(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			return a.onTenants(c.Context(), func(ctx context.Context, cl *clusterclient.Client) error {
				var all []*headracev1.Tenant
				if err := cl.Tenants(ctx, func(t *headracev1.Tenant) error { all = append(all, t); return nil }); err != nil {
					return err
				}
				return a.showTenants(all...)
			})
		},
	})
	return c
}

func newTenantSet(a *app) *cobra.Command {
	var drain durationFlag
	var rows, size int64
	var rate, burst float64
	var weight uint32
	var class string
	var reset bool
	c := &cobra.Command{
		Use:   "set TENANT",
		Short: "Change what a tenant may use",
		Long: `Change what a tenant may use. What is not given stays as it is; 0 is the default again. Submits above it are refused
with the time when to come again (the SDK waits); running and waiting tasks are not touched.`,
		Args: exactly(1, "TENANT"),
		RunE: func(c *cobra.Command, args []string) error {
			req := &headracev1.SetTenantRequest{Tenant: args[0], Reset_: reset}
			set := c.Flags().Changed
			if set("drain-max") {
				req.DrainMaxMillis = proto.Int64(time.Duration(drain).Milliseconds())
			}
			if set("max-rows") {
				req.MaxRows = proto.Int64(rows)
			}
			if set("max-bytes") {
				req.MaxBytes = proto.Int64(size)
			}
			if set("rate") {
				req.Rate = proto.Float64(rate)
			}
			if set("burst") {
				req.Burst = proto.Float64(burst)
			}
			if set("weight") {
				req.Weight = proto.Uint32(weight)
			}
			if set("class") {
				if _, err := task.ParseTenantClass(class); err != nil {
					return usageError{fmt.Errorf("--%w", err)}
				}
				req.Class = proto.String(class)
			}
			if err := task.Name("TENANT", args[0]); err != nil {
				return usageError{err}
			}
			return a.onTenants(c.Context(), func(ctx context.Context, cl *clusterclient.Client) error {
				t, err := cl.SetTenant(ctx, req)
				if err != nil {
					return err
				}
				return a.showTenants(t)
			})
		},
	}
	f := c.Flags()
	f.Var(&drain, "drain-max", "`duration` that its due tasks may take to finish; 0: 24h")
	f.Int64Var(&rows, "max-rows", 0, "unfinished tasks; 0: 10000000")
	f.Int64Var(&size, "max-bytes", 0, "`bytes` of their payloads; 0: 16 GiB")
	f.Float64Var(&rate, "rate", 0, "submits, in `tasks` a second; 0: any")
	f.Float64Var(&burst, "burst", 0, "`tasks` at once; 0: a second's worth")
	f.Uint32Var(&weight, "weight", 0, "its part of what several want, 1 to 1000; 0: 1")
	f.StringVar(&class, "class", "", "critical, standard or batch: 16 : 4 : 1 of the turns on executors that they share; \"\": standard")
	f.BoolVar(&reset, "reset", false, "everything that is not given is the default again")
	return c
}

func (a *app) onTenants(ctx context.Context, f func(context.Context, *clusterclient.Client) error) error {
	cl, err := clusterclient.Dial(a.addr, a.apiKey)
	if err != nil {
		return err
	}
	defer cl.Close()
	return f(ctx, cl)
}

type tenantJSON struct {
	Tenant    string   `json:"tenant"`
	DrainMax  float64  `json:"drain_max_seconds"`
	MaxRows   int64    `json:"max_rows"`
	MaxBytes  int64    `json:"max_bytes"`
	Rate      float64  `json:"rate"`
	Burst     float64  `json:"burst"`
	Weight    uint32   `json:"weight"`
	Class     string   `json:"class"`
	Ready     int64    `json:"ready"`
	Rows      int64    `json:"rows"`
	Bytes     int64    `json:"bytes"`
	Finish    float64  `json:"finish_per_s"`
	Offered   float64  `json:"offered_per_s"`
	Accepted  float64  `json:"accepted_per_s"`
	DrainTime *float64 `json:"drain_seconds"` // null: nobody knows
	Pressure  float64  `json:"pressure"`
	Limit     *float64 `json:"limit_per_s"` // null: none
	Reason    string   `json:"limit_reason"`
	Level     string   `json:"limit_level"`
}

func (a *app) showTenants(all ...*headracev1.Tenant) error {
	var t term.Table
	t.Row("TENANT", "CLASS", "WEIGHT", "ROWS", "MAX ROWS", "RATE", "DRAIN", "DRAIN MAX", "OFFERED/S", "ACCEPTED/S", "PRESSURE", "LIMIT")
	for _, m := range all {
		e := m.Effective
		j := tenantJSON{Tenant: m.Tenant, DrainMax: e.DrainMax.AsDuration().Seconds(), MaxRows: e.MaxRows, MaxBytes: e.MaxBytes, Rate: e.Rate, Burst: e.Burst,
			Weight: e.Weight, Class: e.Class, Ready: m.Ready, Rows: m.Rows, Bytes: m.Bytes, Finish: m.FinishRate, Offered: m.OfferedRate, Accepted: m.AcceptedRate, Pressure: m.Pressure}
		drain, rate, limit := "?", "any", "-"
		if m.DrainTime != nil {
			d := m.DrainTime.AsDuration()
			s := d.Seconds()
			j.DrainTime, drain = &s, d.Round(100*time.Millisecond).String()
		}
		if e.Rate != 0 {
			rate = fmt.Sprintf("%g/s", e.Rate)
		}
		if l := m.Limit; l != nil {
			j.Limit, j.Reason, j.Level = &l.PerSecond, l.Reason, l.Level
			limit = fmt.Sprintf("%.4g/s: %s (%s)", l.PerSecond, l.Reason, l.Level)
		}
		if a.json() {
			if err := a.writeJSON(j); err != nil {
				return err
			}
			continue
		}
		t.Row(m.Tenant, e.Class, fmt.Sprint(e.Weight), fmt.Sprint(m.Rows), fmt.Sprint(e.MaxRows), rate, drain, e.DrainMax.AsDuration().String(),
			fmt.Sprintf("%.0f", m.OfferedRate), fmt.Sprintf("%.0f", m.AcceptedRate), fmt.Sprintf("%.2f", m.Pressure), limit)
	}
	if a.json() {
		return nil
	}
	_, err := t.WriteTo(a.Out)
	return err
}
