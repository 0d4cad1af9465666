package loadgen

import (
	"strings"
	"testing"
	"time"

	"github.com/headrace/headrace/internal/inproc"
)

// Half a minute of the scenario on a real node and real executors. What must hold on any machine holds; use, throttles and
// waits are measured by `headrace bench throttle`, and bounded here so that a loaded machine keeps them.
func TestThrottleScenario(t *testing.T) {
	if testing.Short() {
		t.Skip("half a minute")
	}
	t.Parallel()
	addr, stop := inproc.Start(nil)
	defer stop()
	b := Short()
	b.Addr, b.Tenant = addr, "acme"
	rep, err := b.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if rep.Succeeded != rep.Tasks || rep.Tasks < 500 {
		t.Errorf("%d of %d tasks have succeeded", rep.Succeeded, rep.Tasks)
	}
	for _, c := range rep.Checks {
		t.Logf("%+v", c)
		bad := false
		switch {
		case strings.HasPrefix(c.Name, "use"):
			bad = c.Value < 0.5
		case strings.HasPrefix(c.Name, "share"):
			bad = c.Value > 0.25
		case strings.HasPrefix(c.Name, "attempts"), strings.HasPrefix(c.Name, "pushes"):
			bad = !c.OK
		case strings.HasPrefix(c.Name, "p99"):
			bad = c.Value > 2000
		}
		if bad {
			t.Errorf("%s: %v", c.Name, c.Value)
		}
	}
	if failed := rep.Phases[0].Failed; failed == 0 || rep.Phases[0].Throttled == 0 {
		t.Errorf("the downstream was not what it should be: %+v", rep.Phases)
	}
}

func TestServiceCounts(t *testing.T) {
	var s service
	s.begin(1)
	s.calm(1)
	now := time.Now()
	if a, _ := s.enter("a", 1, now); a != answerTaken {
		t.Fatal("a free place is refused")
	}
	a, after := s.enter("b", 1, now)
	if a != answerThrottled || after <= 0 {
		t.Fatal("a second call is taken")
	}
	s.leave("a", true)
	s.enter("b", 1, now.Add(after-1))
	s.enter("c", 2, now)
	if s.early != 1 || s.spent != 1 || s.done() != 1 {
		t.Errorf("%d early, %d spent, %d done; want one each", s.early, s.spent, s.done())
	}
}
