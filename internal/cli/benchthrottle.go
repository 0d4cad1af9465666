package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/headrace/headrace/internal/loadgen"
	"github.com/headrace/headrace/internal/term"
)

func newBenchThrottle(a *app) *cobra.Command {
	b := loadgen.Full()
	var short bool
	var steady durationFlag
	c := &cobra.Command{
		Use:   "throttle",
		Short: "A downstream with a hidden capacity that halves and quadruples",
		Long: `A downstream with a hidden capacity, kept busy through two executors in this process; it halves, then quadruples. It refuses what
is too much, and one in 200 calls whatever the load; one in 20 fails. An unrelated downstream is beside it. The server is
one of its own, or with --addr (or HEADRACE_ADDR) one that runs.

Code 1 says that a check does not hold. It takes some three minutes, with --short half a minute and a capacity of 24.`,
		Args: exactly(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			set := c.Flags().Changed
			if short {
				capacity := b.Capacity
				b = loadgen.Short()
				if set("capacity") {
					b.Capacity = capacity
				}
			}
			if set("steady") {
				if steady < durationFlag(time.Second) {
					return usagef("--steady: %v given, want at least 1s", time.Duration(steady))
				}
				b.Steady = time.Duration(steady)
			}
			if b.Capacity < 4 || b.Capacity > 10_000 {
				return usagef("--capacity: %d given, want 4 to 10000", b.Capacity)
			}
			return scenario(a, c, &b.Target, b.Run, throttleTable)
		},
	}
	c.Flags().BoolVar(&short, "short", false, "half a minute of it")
	c.Flags().IntVar(&b.Capacity, "capacity", b.Capacity, "tries at once that the downstream bears at first")
	c.Flags().Var(&steady, "steady", "how long the first capacity is measured (default 30s, with --short 5s)")
	return c
}

func throttleTable(rep *loadgen.ThrottleReport) *term.Table {
	t := &term.Table{}
	t.Row("PHASE", "SECONDS", "CAPACITY", "USE", "CALLS", "THROTTLED", "FAILED")
	for _, p := range rep.Phases {
		t.Row(p.Name, fmt.Sprint(p.Seconds), fmt.Sprint(p.Capacity), fmt.Sprintf("%.1f %%", 100*p.Use), fmt.Sprint(p.Calls),
			fmt.Sprintf("%d (%.1f %%)", p.Throttled, 100*float64(p.Throttled)/float64(max(p.Calls, 1))), fmt.Sprint(p.Failed))
	}
	return t
}
