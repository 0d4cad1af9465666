package dispatcher

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/headrace/headrace/dispatcher/pools"
)

// maxSeries bounds the pools that are told apart; the rest are one series each, named other.
const maxSeries = 1000

// poolMetrics are of the whole cluster, and the same on each node. docs/metrics.md has them as a table.
var poolMetrics = []struct {
	name, help string
	of         func(*pools.Pool) float64
}{
	{"headrace_pool_desired_executors", "Executors that the pool should have.", func(p *pools.Pool) float64 { return float64(p.Desired) }},
	{"headrace_pool_desired_slots", "Slots in use that the pool needs now.", func(p *pools.Pool) float64 { return p.Need.Slots }},
	{"headrace_pool_executors", "Executors of the pool, draining ones too.", func(p *pools.Pool) float64 { return float64(len(p.Executors)) }},
	{"headrace_pool_slots", "Slots of the pool's executors that don't drain.", func(p *pools.Pool) float64 { return float64(p.Slots) }},
	{"headrace_pool_running_attempts", "Attempts of the pool's functions in flight.", func(p *pools.Pool) float64 { return float64(p.Running) }},
	{"headrace_pool_waiting_tasks", "Tasks of the pool's functions that are due, not running and not paused.", func(p *pools.Pool) float64 { return float64(p.Waiting) }},
	{"headrace_pool_downstream_limited", "1 where downstreams bear no more: more executors would only be throttled.", func(p *pools.Pool) float64 {
		if p.Need.Why.String() == "downstream" {
			return 1
		}
		return 0
	}},
}

// metrics serves what there is to measure, in the text format of Prometheus.
func (n *Node) metrics(w http.ResponseWriter, _ *http.Request) {
	v, _ := n.pools.View()
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	writeMetrics(w, v)
}

func writeMetrics(w io.Writer, v *pools.View) {
	// Those with most are told apart, whatever their names.
	ps := slices.Clone(v.Pools)
	if len(ps) > maxSeries {
		slices.SortStableFunc(ps, func(a, b *pools.Pool) int {
			return int(min(max(b.Waiting+int64(b.Running)-a.Waiting-int64(a.Running), -1), 1))
		})
	}
	var b strings.Builder
	for _, m := range poolMetrics {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s gauge\n", m.name, m.help, m.name)
		other := 0.0
		for i, p := range ps {
			if i >= maxSeries {
				other += m.of(p)
				continue
			}
			fmt.Fprintf(&b, "%s{tenant=\"%s\",pool=\"%s\"} %s\n", m.name, p.Tenant, p.Name, number(m.of(p))) // names need no escapes
		}
		if len(ps) > maxSeries {
			fmt.Fprintf(&b, "%s{tenant=\"other\",pool=\"other\"} %s\n", m.name, number(other))
		}
	}
	io.WriteString(w, b.String())
}

func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
