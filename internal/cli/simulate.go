package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/headrace/headrace/internal/term"
	"github.com/headrace/headrace/shard"
)

// Bounds of a simulation: a few seconds.
const (
	maxSimulatedTenants    = 200_000
	maxSimulatedPartitions = 4096
)

func newPlacementSimulate(a *app) *cobra.Command {
	var tenants, partitions, k, zones int
	c := &cobra.Command{
		Use:   "simulate",
		Short: "Say what overlaps a number of tenants would have; needs no server",
		Long: `Say what overlaps a number of tenants would have, by computing and by placing them. It needs no server.

Exact is the probability that two tenants share so many partitions when every shard is equally likely.
Placing them spreads each over the zones (databases), which leaves fewer shards to choose from.`,
		Args: exactly(0, "no arguments"),
		RunE: func(*cobra.Command, []string) error {
			for _, f := range []struct {
				name            string
				v, least, bound int
			}{
				{"--tenants", tenants, 1, maxSimulatedTenants},
				{"--partitions", partitions, 1, maxSimulatedPartitions},
				{"--k", k, 1, min(shard.MaxShard, max(partitions, 1))},
				{"--zones", zones, 1, max(partitions, 1)},
			} {
				if f.v < f.least || f.v > f.bound {
					return usagef("%s: %d given, want %d to %d", f.name, f.v, f.least, f.bound)
				}
			}
			return a.simulate(tenants, partitions, zones, k)
		},
	}
	c.Flags().IntVar(&tenants, "tenants", 1000, "how many `tenants`")
	c.Flags().IntVar(&partitions, "partitions", 64, "how many `partitions`")
	c.Flags().IntVar(&k, "k", 4, "partitions of a tenant")
	c.Flags().IntVar(&zones, "zones", 1, "databases that the partitions are spread over")
	return c
}

type simulatedShare struct {
	Shared   int     `json:"shared"`
	Exact    float64 `json:"exact"`
	Measured float64 `json:"measured"`
}

type coveredJSON struct {
	By          int     `json:"by"`
	Probability float64 `json:"probability"`
}

type simulateJSON struct {
	Tenants            int              `json:"tenants"`
	Partitions         int              `json:"partitions"`
	Zones              int              `json:"zones"`
	K                  int              `json:"k"`
	Pairs              int              `json:"pairs"`
	Overlap            []simulatedShare `json:"overlap"`
	Covered            []coveredJSON    `json:"covered"`
	MeanPerPartition   float64          `json:"tenants_per_partition_mean"`
	MaxPerPartition    float64          `json:"tenants_per_partition_max"`
	MaxByMean          float64          `json:"tenants_per_partition_max_by_mean"`
	ChangedPercent     float64          `json:"changed_slots_percent"`
	IdealPercent       float64          `json:"changed_slots_ideal_percent"`
	MostChanged        int              `json:"changed_members_max"`
	ExtraMemberPercent float64          `json:"extra_member_percent"`
}

func (a *app) simulate(tenants, partitions, zones, k int) error {
	s := shard.Simulate(tenants, partitions, zones, k)
	mean := float64(tenants*k) / float64(partitions)
	j := simulateJSON{Tenants: tenants, Partitions: partitions, Zones: zones, K: k, Pairs: s.Pairs,
		MeanPerPartition: mean, MaxPerPartition: s.MaxByMean * mean, MaxByMean: s.MaxByMean,
		ChangedPercent: 100 * s.Changed, IdealPercent: 100 / float64(partitions+1), MostChanged: s.MostChanged, ExtraMemberPercent: 100 * s.Extra}
	for _, r := range s.Overlap {
		j.Overlap = append(j.Overlap, simulatedShare{r.Partitions, r.Exact, r.Measured})
	}
	for _, e := range []int{1, 2, 4, 8, 16} {
		j.Covered = append(j.Covered, coveredJSON{e, shard.Covered(partitions, k, e)})
	}
	if a.json() {
		return a.writeJSON(j)
	}
	fmt.Fprintf(a.Out, "%d tenants with %d of %d partitions each, in %d zones\n\n", tenants, k, partitions, zones)
	var t term.Table
	t.Row("SHARED", "EXACT", "MEASURED")
	for _, r := range j.Overlap {
		t.Row(fmt.Sprint(r.Shared), percent(r.Exact), percent(r.Measured))
	}
	if _, err := t.WriteTo(a.Out); err != nil {
		return err
	}
	var c term.Table
	fmt.Fprintln(a.Out)
	c.Row("HEAVY TENANTS", "COVER ANOTHER COMPLETELY")
	for _, e := range j.Covered {
		c.Row(fmt.Sprint(e.By), percent(e.Probability))
	}
	if _, err := c.WriteTo(a.Out); err != nil {
		return err
	}
	_, err := fmt.Fprintf(a.Out, "\ntenants a partition   %.1f on average, %.0f at most (%.2f times)\none more partition    changes %.2f%% of the slots (least: %.2f%%), at most %d of one tenant\n",
		j.MeanPerPartition, j.MaxPerPartition, j.MaxByMean, j.ChangedPercent, j.IdealPercent, j.MostChanged)
	if err == nil && j.ExtraMemberPercent > 0 {
		_, err = fmt.Fprintf(a.Out, "client ids            give %.0f%% of the tenants one more partition, not counted above\n", j.ExtraMemberPercent)
	}
	return err
}
