package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/headrace/headrace/internal/clusterclient"
	"github.com/headrace/headrace/internal/term"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
)

func newCluster(a *app) *cobra.Command {
	c := &cobra.Command{Use: "cluster", Short: "Whether etcd and the databases agree, and what to do when they do not"}
	c.AddCommand(&cobra.Command{
		Use:   "status",
		Short: "Say whether tasks are pushed, and which versions of the configuration etcd and the databases know",
		Long: `Say whether tasks are pushed, and which versions of the configuration etcd and the databases know.

Placements, rules, the catalogue of partitions and the cluster's secret are in etcd; the first database keeps
copies, and every database the highest version it was told of. If etcd is behind, it was restored or lost: no
task is pushed until ` + "`headrace cluster accept-restore`" + `.`,
		Args: exactly(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			return a.withCluster(c.Context(), a.clusterStatus)
		},
	})
	from := ""
	accept := &cobra.Command{
		Use:   "accept-restore --from etcd|database",
		Short: "Push tasks again after etcd was restored or lost",
		Long: `Push tasks again after etcd was restored or lost.

--from database makes etcd again from the copies in the first database: nothing is forgotten but what was changed
in the last moments before etcd was lost. --from etcd takes etcd as it is: what was changed since its snapshot is
forgotten, also rules that somebody was told are in force.`,
		Args: exactly(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			source, ok := map[string]headracev1.RestoreSource{
				"etcd": headracev1.RestoreSource_RESTORE_SOURCE_REGISTRY, "database": headracev1.RestoreSource_RESTORE_SOURCE_DATABASE,
			}[from]
			if !ok {
				return usagef("--from: %q given, want etcd or database", from)
			}
			return a.acceptRestore(c.Context(), source)
		},
	}
	accept.Flags().StringVar(&from, "from", "", "which is true: `etcd` as it is, or database")
	c.AddCommand(accept)
	return asGroup(c)
}

type memoryJSON struct {
	Name   string `json:"name"`
	Seen   uint64 `json:"seen_version"`
	Copied uint64 `json:"copied_version"`
	Error  string `json:"error"`
}

type clusterStatusJSON struct {
	Held      bool         `json:"held"`
	Why       string       `json:"why"`
	Since     *jsonTime    `json:"held_since"`
	Registry  uint64       `json:"etcd_version"`
	Databases []memoryJSON `json:"databases"`
	Unowned   []uint32     `json:"partitions_without_owner"`
}

func (a *app) clusterStatus(ctx context.Context, c *clusterclient.Client) error {
	res, err := c.Status(ctx)
	if err != nil {
		return err
	}
	j := clusterStatusJSON{Held: res.Held != "", Why: res.Held, Registry: res.RegistryVersion, Databases: []memoryJSON{}, Unowned: []uint32{}}
	j.Unowned = append(j.Unowned, res.PartitionsWithoutOwner...)
	if j.Held {
		t := jsonTime(res.HeldSinceTime.AsTime())
		j.Since = &t
	}
	for _, d := range res.Databases {
		j.Databases = append(j.Databases, memoryJSON{d.Name, d.SeenVersion, d.CopiedVersion, d.Error})
	}
	if a.json() {
		return a.writeJSON(j)
	}
	if j.Held {
		fmt.Fprintf(a.Out, "pushes      %s (since %s)\n", term.Escape(j.Why), clock(res.HeldSinceTime.AsTime(), time.Now()))
	} else {
		fmt.Fprintln(a.Out, "pushes      go on: etcd and the databases agree")
	}
	fmt.Fprintf(a.Out, "owners      %s\n\n", ownersInWords(j.Unowned))
	var t term.Table
	t.Row("WHERE", "SEEN", "COPIES OF", "")
	t.Row("etcd", fmt.Sprint(j.Registry), "-", "")
	for i, d := range j.Databases {
		copied := "-"
		if i == 0 && d.Error == "" {
			copied = fmt.Sprint(d.Copied)
		}
		t.Row(d.Name, fmt.Sprint(d.Seen), copied, term.Escape(d.Error))
	}
	_, err = t.WriteTo(a.Out)
	return err
}

func ownersInWords(unowned []uint32) string {
	if len(unowned) == 0 {
		return "every partition has one"
	}
	return "none for partitions " + numbers(unowned)
}

// acceptMax bounds an accept, which may write every tenant's placement.
const acceptMax = 5 * time.Minute

func (a *app) acceptRestore(ctx context.Context, source headracev1.RestoreSource) error {
	c, err := clusterclient.Dial(a.addr, a.apiKey)
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeoutCause(ctx, acceptMax, errors.New("no answer: call it again, which is safe"))
	defer cancel()
	version, err := c.AcceptRestore(ctx, source)
	if err != nil {
		return err
	}
	if a.json() {
		return a.writeJSON(struct {
			Version uint64 `json:"etcd_version"`
		}{version})
	}
	_, err = fmt.Fprintf(a.Out, "accepted: the configuration is of version %d from now on; tasks are pushed again within two seconds\n", version)
	return err
}
