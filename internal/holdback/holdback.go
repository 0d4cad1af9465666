// Package holdback is client-side throttling as in Google's SRE book: a client whose calls get no answers makes few of them,
// so that a server that is down, or a proxy before it, has peace to come up.
//
// Over two minutes it counts what callers wanted to call and what was answered. Beyond K = 2 times the answers, calls are held
// back with a probability that grows with the rest; those count as wanted, too. A call that goes counts when it has ended: those
// under way say nothing yet, and a client that begins with many at once is not held back. One call in a second always goes: else a
// client that has just been started would not notice for minutes that the server is there. And once all calls of five
// seconds were answered, what was before is forgotten: by the formula alone a client comes back by doubling every minute.
//
// Pure: the caller passes the time and a random number.
package holdback

import "time"

// The parameters.
const (
	K      = 2.0
	Window = 2 * time.Minute
	Probe  = time.Second // so often one goes, whatever else
	Calm   = 5 * time.Second
	calls  = 4 // at least so many of them answered

	buckets = 12
	width   = Window / buckets
)

// Throttle is the memory of one client. The zero value holds nothing back.
type Throttle struct {
	counts [buckets]struct {
		number          int64 // of its time
		wanted, answers float64
	}
	sent   time.Time // the newest call that went
	failed time.Time // the newest that had no answer; zero: none, or forgotten
	row    int       // answers since
}

// Allow reports whether a call may go. U is a random number in [0, 1). A call that goes is to be followed by
// Answered or Failed, unless its end says nothing about the server.
func (t *Throttle) Allow(now time.Time, u float64) bool {
	if u < t.Share(now) && now.Sub(t.sent) < Probe && !now.Before(t.sent) {
		t.at(now).wanted++
		return false
	}
	t.sent = now
	return true
}

// Answered counts an answer, whatever it says.
func (t *Throttle) Answered(now time.Time) {
	b := t.at(now)
	b.wanted++
	b.answers++
	if t.row++; !t.failed.IsZero() && t.row >= calls && now.Sub(t.failed) >= Calm {
		*t = Throttle{sent: t.sent}
	}
}

// Failed counts a call that had no answer.
func (t *Throttle) Failed(now time.Time) {
	t.at(now).wanted++
	t.failed, t.row = now, 0
}

// Share is the share of calls that are held back now, 0 to 1.
func (t *Throttle) Share(now time.Time) float64 {
	wanted, answers := t.Counts(now)
	return max(0, (wanted-K*answers)/(wanted+1))
}

// Counts is what was wanted and what was answered in the window.
func (t *Throttle) Counts(now time.Time) (wanted, answers float64) {
	n := number(now)
	for i := range t.counts {
		if b := &t.counts[i]; n-b.number < buckets && b.number <= n {
			wanted += b.wanted
			answers += b.answers
		}
	}
	return wanted, answers
}

func number(now time.Time) int64 { return now.UnixNano() / int64(width) }

func (t *Throttle) at(now time.Time) *struct {
	number          int64
	wanted, answers float64
} {
	n := number(now)
	b := &t.counts[n%buckets]
	if b.number != n {
		b.number, b.wanted, b.answers = n, 0, 0
	}
	return b
}
