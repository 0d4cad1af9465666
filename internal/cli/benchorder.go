package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/headrace/headrace/internal/loadgen"
	"github.com/headrace/headrace/internal/term"
)

func newBenchNoisy(a *app) *cobra.Command {
	var short bool
	flood := 100
	c := &cobra.Command{
		Use:   "noisy",
		Short: "One tenant floods the executors that others share",
		Long: `Eight tenants submit at a steady rate, and a ninth floods the two executors that they share, which are in this process: 100
times what one of them submits, after a burst. How long tasks wait from their submit to their start is measured alone and
beside the flood. One of the eight is moved to the very partitions of the flood. The server is one of its own, or with --addr
(or HEADRACE_ADDR) one that runs, such as a node of a cluster.

Code 1 says that a check does not hold. It takes a minute, with --short a quarter of that at half the rates.`,
		Args: exactly(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			b := loadgen.FullNoisy()
			if short {
				b = loadgen.ShortNoisy()
			}
			if flood < 2 || flood > 1000 {
				return usagef("--flood: %d given, want 2 to 1000", flood)
			}
			b.Flood = flood
			return scenario(a, c, &b.Target, b.Run, noisyTable)
		},
	}
	c.Flags().BoolVar(&short, "short", false, "a quarter of it")
	c.Flags().IntVar(&flood, "flood", flood, "how many `times` what one of the others submits")
	return c
}

func noisyTable(rep *loadgen.NoisyReport) *term.Table {
	t := &term.Table{}
	t.Row("TENANT", "SHARED", "TASKS", "ALONE P50 MS", "P99", "BESIDE P50 MS", "P99")
	for _, v := range rep.Victims {
		t.Row(v.Tenant, fmt.Sprintf("%d of %d", v.Shared, v.Partitions), fmt.Sprint(v.Tasks), fmt.Sprintf("%.1f", v.AloneP50), fmt.Sprintf("%.1f", v.AloneP99),
			fmt.Sprintf("%.1f", v.BesideP50), fmt.Sprintf("%.1f", v.BesideP99))
	}
	return t
}

func newBenchPriority(a *app) *cobra.Command {
	var short bool
	c := &cobra.Command{
		Use:   "priority",
		Short: "A tenant floods its own executors with work that it calls urgent",
		Long: `A tenant keeps much of band high waiting, first with normal and low beside it, then with low at half the rate that it is sure of.
Another tenant, all of whose work is low, shares the executor, which is in this process. The server is one of its own, or with
--addr (or HEADRACE_ADDR) one that runs, such as a node of a cluster.

Code 1 says that a check does not hold. It takes a minute and a half, with --short a quarter of that.`,
		Args: exactly(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			b := loadgen.FullPriority()
			if short {
				b = loadgen.ShortPriority()
			}
			return scenario(a, c, &b.Target, b.Run, priorityTable)
		},
	}
	c.Flags().BoolVar(&short, "short", false, "a quarter of it")
	return c
}

func priorityTable(rep *loadgen.PriorityReport) *term.Table {
	t := &term.Table{}
	t.Row("PHASE", "SECONDS", "HIGH", "NORMAL", "LOW", "OTHER", "LOW SHARE", "LOW GAP", "LOW P50 MS", "MAX")
	for _, p := range rep.Phases {
		t.Row(p.Name, fmt.Sprint(p.Seconds), fmt.Sprint(p.High), fmt.Sprint(p.Normal), fmt.Sprint(p.Low), fmt.Sprint(p.Other),
			fmt.Sprintf("%.2f %%", 100*p.LowShare), fmt.Sprint(p.LowGap), fmt.Sprintf("%.1f", p.LowP50), fmt.Sprintf("%.1f", p.LowMax))
	}
	return t
}
