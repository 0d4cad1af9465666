package core

import (
	"math"
	"testing"
	"time"
)

// With constant service the pace is exact after three time constants; after a change its error halves every 42 s; of what
// starts at once, and of what has not started for long, nothing is said.
func TestPace(t *testing.T) {
	var a pace
	constant := paceConstant.Seconds()
	now := began
	run := func(d, every time.Duration, some bool) {
		for end := now.Add(d); now.Before(end); now = now.Add(every) {
			a.waits(now, some)
			a.starts(now)
		}
	}
	run(3*time.Minute, 10*time.Millisecond, false)
	if r := a.rate(now); r != 0 {
		t.Errorf("%g a second, though nothing ever waited", r)
	}
	run(3*paceConstant, 10*time.Millisecond, true)
	if r := a.rate(now); math.Abs(r-100) > 1 {
		t.Errorf("%g a second, want 100", r)
	}
	for wrong := 50.0; wrong > 3; wrong /= 2 {
		run(time.Duration(math.Ln2*constant*float64(time.Second)), 20*time.Millisecond, true)
		if r := a.rate(now) - 50; math.Abs(r-wrong/2) > 2 {
			t.Errorf("half a life later it is wrong by %g, want %g", r, wrong/2)
		}
	}
	if r := a.rate(now.Add(paceLife + time.Second)); r != 0 {
		t.Errorf("%g a second, though nothing has started for long", r)
	}
}
