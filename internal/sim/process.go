package sim

import "time"

// process is a node or an executor: something that can be stopped and killed.
type process struct {
	name        string
	up          bool
	life        int           // counts its starts: what an earlier life has scheduled is void
	pausedUntil time.Duration // SIGSTOP, or a suspended machine: until then nothing happens in it
	stood       time.Duration // how long it has stood still, in all
	tickAt      time.Duration // of the scheduled Tick; 0: none

	// Its clock showed shown at base and runs at rate since. It counts suspends.
	base, shown time.Duration
	rate        float64
}

func newProcess(name string) process { return process{name: name, rate: 1} }

// clock returns the process's time at a moment of the world.
func (p *process) clock(at time.Duration) time.Time {
	return epoch.Add(p.shown + time.Duration(float64(at-p.base)*p.rate))
}

// when is the inverse: how long from now the process's clock shows t, if its rate stays.
func (w *world) when(p *process, t time.Time) time.Duration {
	return max(p.base+time.Duration(float64(t.Sub(epoch)-p.shown)/p.rate)+1-w.now, 0)
}

// Clocks run fast or slow by up to driftMost, so that two differ by a little less than a tenth (takeover.md §1),
// and are at most clockSkew off the world's time.
const (
	driftMost = 0.0475
	clockSkew = 2500 * time.Millisecond
)

// beginDrift lets every clock run fast and slow by turns. Each starts off by something.
func (w *world) beginDrift() {
	if !w.plan.faults[faultDrift] {
		return
	}
	for _, n := range w.nodes {
		w.drift(&n.process, func() {
			if n.up {
				n.arm()
			}
		})
	}
	for _, x := range w.executors {
		w.drift(&x.process, func() {
			if x.up {
				x.arm()
			}
		})
	}
}

func (w *world) drift(p *process, again func()) {
	p.shown = p.clock(w.now).Sub(epoch)
	p.base = w.now
	if p.base == 0 {
		p.shown = w.between(0, clockSkew/2)
	}
	p.rate = 1 - driftMost + 2*driftMost*w.rand.Float64()
	switch off := p.shown - p.base; {
	case w.chance(3): // as far as it may
		p.rate = 1 - driftMost
		if off < 0 {
			p.rate = 1 + driftMost
		}
	case off > clockSkew/2:
		p.rate = 1 - driftMost
	case off < -clockSkew/2:
		p.rate = 1 + driftMost
	}
	w.log(p.name, "clock", "runs at %.3f, is %v off", p.rate, p.shown-p.base)
	again()
	w.after(w.between(2*time.Second, 20*time.Second), func() { w.drift(p, again) })
}

// on schedules something that a process does. It does not happen if the process dies before, and waits
// while the process is stopped.
func (w *world) on(p *process, d time.Duration, run func()) { w.in(p, p.life, d, run) }

// in is on for a certain life of the process: for the answer to what that life has asked.
func (w *world) in(p *process, life int, d time.Duration, run func()) {
	var step func()
	step = func() {
		switch {
		case !p.up || p.life != life:
		case p.pausedUntil > w.now:
			// What has gathered happens in about the old order: messages of a stream keep theirs anyway.
			w.queue.push(p.pausedUntil+w.around(200*time.Microsecond), step)
		default:
			run()
		}
	}
	w.queue.push(w.now+max(d, 0), step)
}

func (w *world) pause(p *process, d time.Duration) {
	if p.up && p.pausedUntil <= w.now {
		p.pausedUntil = w.now + d
		p.stood += d
		w.log(p.name, "pause", "%v", d)
	}
}
