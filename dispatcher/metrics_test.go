package dispatcher

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/headrace/headrace/dispatcher/pools"
	"github.com/headrace/headrace/flowcontrol/elastic"
)

func metricsText(v *pools.View) string {
	var b strings.Builder
	writeMetrics(&b, v)
	return b.String()
}

// What is exposed is what testdata/metrics.golden has, and docs/metrics.md names each metric with its help.
func TestMetricsGolden(t *testing.T) {
	v := &pools.View{Pools: []*pools.Pool{
		{Tenant: "acme", Name: "mail+report", Slots: 20, Running: 13, Waiting: 6000, Desired: 18, Executors: make([]pools.Executor, 3),
			Need: elastic.Need{Slots: 140.5, Why: elastic.Backlog, Active: true}},
		{Tenant: "zoo", Name: "pay", Desired: 8, Need: elastic.Need{Slots: 60, Why: elastic.Downstream, Active: true}},
	}}
	got := metricsText(v)
	want, err := os.ReadFile("testdata/metrics.golden")
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("testdata/metrics.golden is not:\n%s", got)
	}
	doc, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range poolMetrics {
		if row := fmt.Sprintf("| `%s` | gauge | `tenant`, `pool` | %s |", m.name, m.help); !strings.Contains(string(doc), row) {
			t.Errorf("docs/metrics.md lacks: %s", row)
		}
	}
	for _, name := range regexp.MustCompile("`headrace_[a-z_]+`").FindAllString(string(doc), -1) {
		if !strings.Contains(got, "# TYPE "+strings.Trim(name, "`")+" ") {
			t.Errorf("docs/metrics.md has %s, which nobody exposes", name)
		}
	}
}

// However many pools there are, so many are told apart, and nothing is left out of the sum.
func TestMetricsAreBounded(t *testing.T) {
	v := &pools.View{}
	for i := range maxSeries + 500 {
		v.Pools = append(v.Pools, &pools.Pool{Tenant: "t", Name: fmt.Sprint("f", i), Waiting: int64(i)})
	}
	lines := slices.DeleteFunc(strings.Split(metricsText(v), "\n"), func(l string) bool { return !strings.HasPrefix(l, "headrace_pool_waiting_tasks{") })
	if len(lines) != maxSeries+1 || lines[maxSeries] != fmt.Sprintf(`headrace_pool_waiting_tasks{tenant="other",pool="other"} %d`, 500*499/2) {
		t.Errorf("%d series, the last %s", len(lines), lines[len(lines)-1])
	}
}
