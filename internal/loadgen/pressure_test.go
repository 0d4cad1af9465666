package loadgen

import (
	"testing"
	"time"

	"github.com/headrace/headrace/internal/inproc"
)

// A flood of four times what is left is held at the door; the figures are wide here, `headrace bench pressure` measures them.
// Exact, in fake time: flowcontrol/pressure, dispatcher/door, internal/testcluster.
func TestPressureScenario(t *testing.T) {
	if testing.Short() {
		t.Skip("twenty seconds")
	}
	t.Parallel()
	addr, stop := inproc.Start(nil)
	defer stop()
	b := ShortPressure()
	b.Addr, b.Tenant, b.DrainMax, b.Night, b.Settle, b.Measure = addr, "acme", 10*time.Second, 5000, 2*time.Second, 4*time.Second
	rep, err := b.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", rep)
	if rep.lightRefused+rep.nightRefused+rep.refusedNoTime > 0 || rep.Night != b.Night || rep.Light == 0 || rep.Lost != 0 {
		t.Errorf("refused of the others: %d of %d, of the batch %d of %d, without a time %d; %d were lost", rep.lightRefused, rep.Light, rep.nightRefused, rep.Night, rep.refusedNoTime, rep.Lost)
	}
	if rep.FirstRefusal == 0 || rep.LimitGone < 0 || rep.AcceptedPerS > 2*rep.LeftPerS {
		t.Errorf("first refusal after %v s, limit gone after %v s, %v/s accepted of %v/s", rep.FirstRefusal, rep.LimitGone, rep.AcceptedPerS, rep.LeftPerS)
	}
}
