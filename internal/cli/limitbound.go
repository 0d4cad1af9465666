package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/headrace/headrace/internal/clusterclient"
	"github.com/headrace/headrace/internal/term"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

// boundJSON is a limit that a user set.
type boundJSON struct {
	Kind        string          `json:"kind"` // "tenant" or "function"
	Tenant      string          `json:"tenant"`
	Function    string          `json:"function,omitempty"`
	Concurrency *uint32         `json:"concurrency"` // null: any number
	Rate        *float64        `json:"rate"`        // a second; null: any
	Burst       *int            `json:"burst"`       // null: without a rate
	InUse       uint32          `json:"in_use"`      // tries, on all nodes
	Reason      string          `json:"reason"`
	At          jsonTime        `json:"created_at"`
	Nodes       []nodeBoundJSON `json:"nodes"`
}

type nodeBoundJSON struct {
	Node       string `json:"node"`
	InUse      uint32 `json:"in_use"`
	Share      uint32 `json:"share"` // of the concurrency
	WaitReason string `json:"wait_reason"`
}

func newBoundJSON(b *headracev1.Bound) boundJSON {
	j := boundJSON{Kind: "tenant", Tenant: b.Tenant, Function: b.Function, Reason: b.Reason, At: jsonTime(b.CreateTime.AsTime()), Nodes: []nodeBoundJSON{}}
	if b.Function != "" {
		j.Kind = "function"
	}
	if b.Concurrency > 0 {
		j.Concurrency = &b.Concurrency
	}
	if b.Rate > 0 {
		burst := task.Bound{Rate: b.Rate, Burst: int(b.Burst)}.BurstSize()
		j.Rate, j.Burst = &b.Rate, &burst
	}
	for _, n := range b.Nodes {
		j.InUse += n.Running
		j.Nodes = append(j.Nodes, nodeBoundJSON{n.NodeId, n.Running, n.Share, n.WaitReason})
	}
	return j
}

// of names what is limited, for people.
func (j boundJSON) of() string {
	if j.Function != "" {
		return j.Tenant + ", function " + j.Function
	}
	return j.Tenant
}

// text says what is allowed.
func (j boundJSON) text() string {
	var parts []string
	if j.Concurrency != nil {
		parts = append(parts, fmt.Sprintf("%d at once", *j.Concurrency))
	}
	if j.Rate != nil {
		parts = append(parts, fmt.Sprintf("%g starts a second, %d after a rest", *j.Rate, *j.Burst))
	}
	return strings.Join(parts, ", ")
}

// why is the reason of the first node that has one.
func (j boundJSON) why() string {
	for _, n := range j.Nodes {
		if n.WaitReason != "" {
			return n.WaitReason
		}
	}
	return "-"
}

// boundTable is the table of limits that users set.
type boundTable struct {
	term.Table
	n int
}

// bounds lists the limits that users set: into t, or as JSON.
func (a *app) bounds(ctx context.Context, c *clusterclient.Client, tenant string, t *boundTable) (missing []string, err error) {
	t.Row("TENANT", "FUNCTION", "LIMIT", "IN USE", "WAITS FOR", "REASON")
	return c.Bounds(ctx, tenant, func(b *headracev1.Bound) error {
		j := newBoundJSON(b)
		if a.json() {
			return a.writeJSON(j)
		}
		t.n++
		t.Row(j.Tenant, orDash(j.Function), j.text(), fmt.Sprint(j.InUse), j.why(), orDash(j.Reason))
		return nil
	})
}

func (a *app) setBound(ctx context.Context, b task.Bound) error {
	if err := b.Validate(); err != nil {
		return usageError{err}
	}
	return a.withCluster(ctx, func(ctx context.Context, c *clusterclient.Client) error {
		res, err := c.SetBound(ctx, &headracev1.SetBoundRequest{Tenant: a.tenant, Function: b.Function, Concurrency: uint32(b.Concurrency), Rate: b.Rate,
			Burst: uint32(b.Burst), Reason: b.Reason})
		if err != nil {
			return err
		}
		j := newBoundJSON(res)
		if a.json() {
			return a.writeJSON(j)
		}
		_, err = fmt.Fprintf(a.Out, "%s: %s\n", j.of(), j.text())
		return err
	})
}

func (a *app) removeBound(ctx context.Context, function string) error {
	if function != "" {
		if err := task.Name("function", function); err != nil {
			return usageError{err}
		}
	}
	return a.withCluster(ctx, func(ctx context.Context, c *clusterclient.Client) error {
		b, err := c.RemoveBound(ctx, a.tenant, function)
		if err != nil {
			return err
		}
		var removed *boundJSON
		if b != nil {
			j := newBoundJSON(b)
			removed = &j
		}
		if a.json() {
			return a.writeJSON(struct {
				Tenant   string     `json:"tenant"`
				Function string     `json:"function,omitempty"`
				Removed  *boundJSON `json:"removed"` // null: there was none
			}{a.tenant, function, removed})
		}
		what := "had no limit"
		if removed != nil {
			what = "has no limit any more; it was " + removed.text()
		}
		_, err = fmt.Fprintf(a.Out, "%s %s\n", boundJSON{Tenant: a.tenant, Function: function}.of(), what)
		return err
	})
}

func (a *app) showBound(ctx context.Context, function string) error {
	if function != "" {
		if err := task.Name("function", function); err != nil {
			return usageError{err}
		}
	}
	var found *headracev1.Bound
	var missing []string
	err := a.withCluster(ctx, func(ctx context.Context, c *clusterclient.Client) (err error) {
		missing, err = c.Bounds(ctx, a.tenant, func(b *headracev1.Bound) error {
			if b.Function == function {
				found = b
			}
			return nil
		})
		return err
	})
	switch {
	case err != nil:
		return err
	case found == nil:
		if err := missingNodes(missing); err != nil {
			return err
		}
		return fmt.Errorf("%s has no limit", boundJSON{Tenant: a.tenant, Function: function}.of())
	}
	j := newBoundJSON(found)
	if a.json() {
		err = a.writeJSON(j)
	} else {
		var t term.Table
		fmt.Fprintf(a.Out, "%s: %s; %d in use; set at %s", j.of(), j.text(), j.InUse, clock(time.Time(j.At), time.Now()))
		if j.Reason != "" {
			fmt.Fprintf(a.Out, " (%s)", j.Reason)
		}
		fmt.Fprint(a.Out, "\n\n")
		t.Row("NODE", "IN USE", "SHARE", "WAITS FOR")
		for _, n := range j.Nodes {
			t.Row(n.Node, fmt.Sprint(n.InUse), fmt.Sprint(n.Share), orDash(n.WaitReason))
		}
		_, err = t.WriteTo(a.Out)
	}
	if err != nil {
		return err
	}
	return missingNodes(missing)
}
