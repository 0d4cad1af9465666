package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/headrace/headrace/client"
)

func newTaskExplain(a *app) *cobra.Command {
	c := a.eachTask("explain", "Say why tasks do not run, and when they will", func(ctx context.Context, c *client.Client, id string, ref client.Ref) error {
		ctx, cancel := within(ctx)
		defer cancel()
		e, err := c.Explain(ctx, ref)
		if err != nil {
			return err
		}
		now := time.Now()
		if a.json() {
			return a.writeJSON(newTaskExplainJSON(id, e, now))
		}
		_, err = fmt.Fprintf(a.Out, "%s  %s\n", id, e.Text)
		if err != nil || e.Reason == "finished" || e.Reason == "running" {
			return err
		}
		place := ""
		if e.Queued {
			place = fmt.Sprintf("place %s of its function and band; ", between(e.Ahead+1, e.AheadMax+1))
		}
		_, err = fmt.Fprintf(a.Out, "  %sstarts %s\n", place, startsIn(e))
		return err
	})
	c.Long = `Say in one sentence why tasks do not run, how many of the same function and band are before them on their node, and when they
start: a range, or unknown.`
	return c
}

func between(least, most int64) string {
	if least == most {
		return fmt.Sprint(least)
	}
	return fmt.Sprintf("%d to %d", least, most)
}

func startsIn(e *client.Explanation) string {
	if !e.ETAKnown {
		return "nobody knows when"
	}
	short := func(d time.Duration) time.Duration {
		if d > 10*time.Second {
			return d.Round(time.Second)
		}
		return d.Round(100 * time.Millisecond)
	}
	return fmt.Sprintf("in %v to %v", short(e.Soonest), short(e.Latest))
}

// taskExplainJSON is one line of task explain.
type taskExplainJSON struct {
	ID          string   `json:"id"`
	Tenant      string   `json:"tenant"`
	Function    string   `json:"function"`
	State       string   `json:"state"`
	Reason      string   `json:"reason"`
	Text        string   `json:"text"`
	Position    *int64   `json:"position"`     // 1 is the next; null: it does not wait for its turn
	PositionMax *int64   `json:"position_max"` // it may be as far behind
	ETA         string   `json:"eta"`          // "known", "unknown", or "" of one that runs or has ended
	ETASoonest  jsonTime `json:"eta_soonest"`
	ETALatest   jsonTime `json:"eta_latest"`
}

func newTaskExplainJSON(id string, e *client.Explanation, now time.Time) taskExplainJSON {
	j := taskExplainJSON{ID: id, Reason: e.Reason, Text: e.Text, ETA: "unknown"}
	if t := e.Task; t != nil {
		j.ID, j.Tenant, j.Function, j.State = t.ID, t.Tenant, t.Function, t.State.String()
	}
	if e.Queued {
		least, most := e.Ahead+1, e.AheadMax+1
		j.Position, j.PositionMax = &least, &most
	}
	switch {
	case e.Reason == "finished" || e.Reason == "running":
		j.ETA = ""
	case e.ETAKnown:
		j.ETA, j.ETASoonest, j.ETALatest = "known", jsonTime(now.Add(e.Soonest)), jsonTime(now.Add(e.Latest))
	}
	return j
}
