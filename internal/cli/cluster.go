package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/headrace/headrace/internal/clusterclient"
	"github.com/headrace/headrace/internal/term"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
)

func newNode(a *app) *cobra.Command {
	c := &cobra.Command{Use: "node", Short: "Look at the nodes"}
	c.AddCommand(&cobra.Command{
		Use:   "list",
		Short: "List the live nodes",
		Long: `List the live nodes. Executors, running, busy, durability, disk, CPU and alarms are as each node told a second
or two ago; with --json each alarm has its message. Levels are the feature levels that the node reads; the cluster's own, which the last line names, is what
nodes may write: the highest that all members have read at one time. It never goes down.`,
		Args: exactly(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error { return a.nodes(c.Context()) },
	})
	return asGroup(c)
}

type nodeJSON struct {
	ID                string            `json:"id"`
	Name              string            `json:"name"`
	Address           string            `json:"address"`
	Version           string            `json:"version"`
	StartedAt         jsonTime          `json:"started_at"`
	Leader            bool              `json:"leader"`
	Partitions        []uint32          `json:"partitions"`
	Executors         uint32            `json:"executors"`
	Running           uint32            `json:"running"`
	LoopBusyRatio     float64           `json:"loop_busy_ratio"`
	Store             map[string]string `json:"store"`
	DiskWrittenBytes  int64             `json:"disk_written_bytes"`
	DiskOccupiedBytes int64             `json:"disk_occupied_bytes"`
	CPUMicros         int64             `json:"cpu_micros"`
	MinLevel          uint32            `json:"min_level"`
	MaxLevel          uint32            `json:"max_level"`
	ClusterLevel      uint32            `json:"cluster_level"` // of all; the same in each line
	Alarms            []alarmJSON       `json:"alarms"`
}

type alarmJSON struct {
	Kind    string   `json:"kind"`
	Subject string   `json:"subject"`
	Message string   `json:"message"`
	Since   jsonTime `json:"since"`
}

func alarmsJSON(as []*headracev1.Alarm) []alarmJSON {
	out := make([]alarmJSON, len(as))
	for i, a := range as {
		out[i] = alarmJSON{a.Kind, a.Subject, a.Message, jsonTime(a.SinceTime.AsTime())}
	}
	return out
}

// alarms returns "kind:subject, kind", by kind; "-" if there are none.
func alarms(as []*headracev1.Alarm) string {
	var parts []string
	for _, a := range as {
		if a.Subject == "" {
			parts = append(parts, a.Kind)
		} else {
			parts = append(parts, a.Kind+":"+a.Subject)
		}
	}
	return orDash(strings.Join(parts, ", "))
}

func (a *app) nodes(ctx context.Context) error {
	c, err := clusterclient.Dial(a.addr, a.apiKey)
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := within(ctx)
	defer cancel()
	nodes, level, err := c.NodesAndLevel(ctx)
	if err != nil {
		return err
	}
	var t term.Table
	t.Row("NODE", "ADDRESS", "VERSION", "LEVELS", "UP", "LEADER", "PARTITIONS", "EXECUTORS", "RUNNING", "BUSY", "ALARMS", "STORE")
	for _, n := range nodes {
		start := time.Time{}
		if n.StartTime != nil {
			start = n.StartTime.AsTime()
		}
		if a.json() {
			j := nodeJSON{n.Id, n.Name, n.Address, n.Version, jsonTime(start), n.Leader, n.Partitions, n.Executors, n.Running,
				n.LoopBusyRatio, n.StoreSettings, n.DiskWrittenBytes, n.DiskOccupiedBytes, n.CpuMicros, n.MinLevel, n.MaxLevel, level, alarmsJSON(n.Alarms)}
			if j.Partitions == nil {
				j.Partitions = []uint32{}
			}
			if j.Store == nil {
				j.Store = map[string]string{}
			}
			if err := a.writeJSON(j); err != nil {
				return err
			}
			continue
		}
		up, leader := "-", ""
		if !start.IsZero() {
			up = time.Since(start).Round(time.Second).String()
		}
		if n.Leader {
			leader = "leader"
		}
		t.Row(orDash(n.Name, n.Id), n.Address, n.Version, fmt.Sprintf("%d-%d", n.MinLevel, n.MaxLevel), up, leader, fmt.Sprint(len(n.Partitions)), fmt.Sprint(n.Executors),
			fmt.Sprint(n.Running), fmt.Sprintf("%.0f%%", 100*n.LoopBusyRatio), alarms(n.Alarms), settings(n.StoreSettings))
	}
	if a.json() {
		return nil
	}
	if _, err = t.WriteTo(a.Out); err == nil {
		_, err = fmt.Fprintf(a.Out, "feature level %d\n", level)
	}
	return err
}

// settings returns "k=v k=v", by key.
func settings(m map[string]string) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, k+"="+m[k])
	}
	return strings.Join(parts, " ")
}

func orDash(s ...string) string {
	for _, v := range s {
		if v != "" {
			return v
		}
	}
	return "-"
}

func newPartition(a *app) *cobra.Command {
	c := &cobra.Command{Use: "partition", Short: "Look at the partitions"}
	c.AddCommand(&cobra.Command{
		Use:   "list",
		Short: "List the partitions, who owns them, and what waits in them",
		Args:  exactly(0, "no arguments"),
		RunE:  func(c *cobra.Command, _ []string) error { return a.partitions(c.Context()) },
	})
	for _, s := range []struct {
		use, short, long string
		intake           headracev1.PartitionIntake
	}{
		{"drain", "Send no new tasks to partitions", `Send no new tasks to partitions. What they hold is still run. Tenants that use them get others in
their place, of the same database if it has any.`, headracev1.PartitionIntake_PARTITION_INTAKE_DRAINING},
		{"activate", "Send new tasks to partitions again", `Send new tasks to partitions again. Tenants that were moved off them stay where they are.`, headracev1.PartitionIntake_PARTITION_INTAKE_ACTIVE},
		{"seal", "Close empty partitions for good", `Close empty partitions for good. They have to drain before, and to have no task left; one of each database stays.
What ended in them can be read as long as it is kept. Their numbers are not used again.`, headracev1.PartitionIntake_PARTITION_INTAKE_SEALED},
	} {
		c.AddCommand(&cobra.Command{
			Use: s.use + " PARTITION…", Short: s.short, Long: s.long,
			Args: atLeast(1, "partitions"),
			RunE: func(c *cobra.Command, args []string) error {
				list, err := parsePartitions("PARTITION", strings.Join(args, ","))
				if err != nil {
					return err
				}
				return a.withCluster(c.Context(), func(ctx context.Context, c *clusterclient.Client) error { return c.SetIntake(ctx, list, s.intake) })
			},
		})
	}
	return asGroup(c)
}

type partitionJSON struct {
	ID        uint32 `json:"id"`
	Node      string `json:"node"`
	Epoch     uint64 `json:"epoch"`
	State     string `json:"state"`
	Backlog   int64  `json:"backlog"`
	Scheduled int64  `json:"scheduled"`
	Running   int64  `json:"running"`
	Database  string `json:"database"`
	Intake    string `json:"intake"`
	Reason    string `json:"reason,omitempty"` // quarantined: why
	// NextTry is when a quarantined partition that nobody has is opened next.
	NextTry *jsonTime `json:"next_try,omitempty"`
}

func nextTry(p *headracev1.Partition) *jsonTime {
	if p.NextTryTime == nil {
		return nil
	}
	t := jsonTime(p.NextTryTime.AsTime())
	return &t
}

// why says why a partition is quarantined, and when it is tried again.
func why(p *headracev1.Partition) string {
	if p.NextTryTime == nil {
		return p.Reason
	}
	return fmt.Sprintf("%s; next try in %v", p.Reason, max(time.Until(p.NextTryTime.AsTime()), 0).Round(time.Second))
}

func intakeName(i headracev1.PartitionIntake) string {
	return strings.ToLower(strings.TrimPrefix(i.String(), "PARTITION_INTAKE_"))
}

func (a *app) partitions(ctx context.Context) error {
	c, err := clusterclient.Dial(a.addr, a.apiKey)
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := within(ctx)
	defer cancel()
	parts, err := c.Partitions(ctx)
	if err != nil {
		return err
	}
	slices.SortFunc(parts, func(x, y *headracev1.Partition) int { return int(x.Id) - int(y.Id) })
	var t term.Table
	t.Row("PARTITION", "STATE", "NODE", "EPOCH", "BACKLOG", "SCHEDULED", "RUNNING", "DATABASE", "INTAKE", "WHY")
	for _, p := range parts {
		if a.json() {
			if err := a.writeJSON(partitionJSON{p.Id, p.NodeId, p.Epoch, p.State, p.Backlog, p.Scheduled, p.Running, p.Database, intakeName(p.Intake), p.Reason, nextTry(p)}); err != nil {
				return err
			}
			continue
		}
		t.Row(fmt.Sprint(p.Id), p.State, orDash(p.NodeId), fmt.Sprint(p.Epoch), fmt.Sprint(p.Backlog), fmt.Sprint(p.Scheduled), fmt.Sprint(p.Running),
			p.Database, intakeName(p.Intake), why(p))
	}
	if a.json() {
		return nil
	}
	_, err = t.WriteTo(a.Out)
	return err
}
