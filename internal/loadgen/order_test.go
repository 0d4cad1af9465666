package loadgen

import (
	"testing"
	"time"

	"github.com/headrace/headrace/internal/inproc"
)

// A flood of 100 times what others submit, after a burst of four seconds of all slots: who waited behind it would wait for
// seconds. The true bounds are measured by `headrace bench noisy`.
func TestNoisyScenario(t *testing.T) {
	if testing.Short() {
		t.Skip("ten seconds")
	}
	t.Parallel()
	addr, stop := inproc.Start(nil)
	defer stop()
	b := ShortNoisy()
	b.Addr, b.Tenant, b.Alone, b.Beside = addr, "acme", 2*time.Second, 4*time.Second
	rep, err := b.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", rep)
	covered := 0
	for _, v := range rep.Victims {
		if v.Tasks == 0 || v.BesideP50 > 1000 {
			t.Errorf("%s, with %d of %d partitions shared: %d tasks, half of them waited for %v ms", v.Tenant, v.Shared, v.Partitions, v.Tasks, v.BesideP50)
		}
		if v.Shared == v.Partitions {
			covered++
		}
	}
	if covered == 0 {
		t.Error("the flood's shard covers nobody")
	}
	for _, c := range rep.Checks[len(rep.Checks)-2:] { // the flood, and what was lost
		if !c.OK {
			t.Errorf("%s: %v, want %v", c.Name, c.Value, c.Bound)
		}
	}
}

// The shares are exact in turns, so they hold on a slow machine, too.
func TestPriorityScenario(t *testing.T) {
	if testing.Short() {
		t.Skip("ten seconds")
	}
	t.Parallel()
	addr, stop := inproc.Start(nil)
	defer stop()
	b := ShortPriority()
	b.Addr, b.Tenant, b.Full, b.Trickle = addr, "acme", 4*time.Second, 2*time.Second
	rep, err := b.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", rep)
	if full := rep.Phases[0]; full.LowShare < 0.035 || full.LowGap > 60 || full.Low == 0 {
		t.Errorf("low had %v of the turns, the longest wait was %d turns", full.LowShare, full.LowGap)
	}
	if trickle := rep.Phases[1]; trickle.Low == 0 || trickle.LowP50 > 1000 {
		t.Errorf("half of the low tasks that trickle waited for %v ms", trickle.LowP50)
	}
	if lost := rep.Checks[len(rep.Checks)-1]; !lost.OK {
		t.Errorf("%s: %v", lost.Name, lost.Value)
	}
}
