package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/headrace/headrace/internal/loadgen"
	"github.com/headrace/headrace/internal/term"
)

func newBenchPressure(a *app) *cobra.Command {
	var short bool
	c := &cobra.Command{
		Use:   "pressure",
		Short: "One tenant submits more than is done, and is held at the door",
		Long: `A tenant whose drain_max is a minute submits 5,000 tasks a second where 1,000 are done, beside fifty others with 10 a second each and
an overnight batch of 300,000 of one more. Its backlog is to stay at what takes a minute, what it may submit at what the
others leave; nobody else is refused, and its limit goes when it stops. The executors are in this process; the server is one of
its own, or with --addr (or HEADRACE_ADDR) one that runs, such as a node of a cluster.

Code 1 says that a check does not hold. It takes two or three minutes, with --short half a minute at a fifth of the rates.`,
		Args: exactly(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			b := loadgen.FullPressure()
			if short {
				b = loadgen.ShortPressure()
			}
			return scenario(a, c, &b.Target, b.Run, pressureTable)
		},
	}
	c.Flags().BoolVar(&short, "short", false, "half a minute of it")
	return c
}

func pressureTable(rep *loadgen.PressureReport) *term.Table {
	t := &term.Table{}
	t.Row("FLOODED", "ACCEPTED", "PER S", "LEFT PER S", "BACKLOG", "FIRST REFUSAL S", "LIMIT GONE S", "OTHERS", "NIGHT")
	t.Row(fmt.Sprint(rep.Flooded), fmt.Sprint(rep.Accepted), fmt.Sprintf("%.1f", rep.AcceptedPerS), fmt.Sprintf("%.1f", rep.LeftPerS), fmt.Sprint(rep.Backlog),
		fmt.Sprintf("%.1f", rep.FirstRefusal), fmt.Sprintf("%.1f", rep.LimitGone), fmt.Sprint(rep.Light), fmt.Sprint(rep.Night))
	return t
}
