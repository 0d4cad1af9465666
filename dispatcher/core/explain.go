package core

import (
	"fmt"
	"math"
	"time"

	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// Why is the kind of a reason to wait, for programs; the sentence beside it is for people.
type Why string

// The kinds. Which node or database does not answer is known outside the core only.
const (
	WhyFinished  Why = "finished"
	WhyRunning   Why = "running"
	WhyInFlight  Why = "in_flight"         // pushed, or about to be; or its end is being written
	WhyTakeover  Why = "takeover"          // a new owner asks the executors first
	WhyDue       Why = "due_time"          // its time has not come
	WhyRetry     Why = "retry_time"        // the time of its next try has not come
	WhyBudget    Why = "retry_budget"      // of its function's retries
	WhyPaused    Why = "paused"            //
	WhyClosed    Why = "downstream_closed" // until a time that a handler was told
	WhyLimit     Why = "downstream_limit"  // the adaptive limit
	WhyBound     Why = "limit"             // one that a user has set
	WhyHeld      Why = "held"              // all pushes of the node are
	WhyLeaving   Why = "handover"          // its partition is being given to another node
	WhyExecutor  Why = "no_executor"       //
	WhyBusy      Why = "executors_busy"    // those that can run it take no more
	WhyAlone     Why = "waits_for_idle"    // was lost twice: for an executor that runs nothing else
	WhyStoreSlow Why = "store_slow"        //
	WhyTurn      Why = "turn"              // others are before it
	WhyNoOwner   Why = "no_owner"          // no node owns its partition
	WhyStoreAway Why = "store_unreachable" // its database does not answer
	WhyNodeAway  Why = "owner_unreachable" // its owner does not answer
)

// etaMost is the farthest time that is guessed.
const etaMost = 24 * time.Hour

// Explanation says why a task does not run, and when it may.
type Explanation struct {
	Why  Why
	Text string // one sentence, without a full stop
	// How many of its flow on this node are before it: at least Ahead, at most AheadMax. Queued only if it is due and
	// waits.
	Queued          bool
	Ahead, AheadMax int64
	// When it starts, from now; not OK: unknown.
	ETAOK           bool
	Soonest, Latest time.Duration
}

// Explain says why a task of this node does not run. T is its row as the store has it; what is in memory is newer. False: the
// node does not own its partition. It looks at the flow's lanes and the sessions that can run it.
func (c *Core) Explain(now time.Time, t *store.Task) (e Explanation, ok bool) {
	c.enter(now)
	p := c.parts[t.ID.Partition()]
	if p == nil {
		return e, false
	}
	it := c.item(t.ID)
	if it != nil {
		t = it.t
	}
	f := c.function(t.Tenant, t.Function)
	fl := f.flows[t.Band]
	switch {
	case t.State.Terminal():
		return Explanation{Why: WhyFinished, Text: "it has ended: " + t.State.String()}, true
	case it != nil && it.try != nil && it.try.pushed:
		v := c.view(it)
		e.Why, e.Text = WhyInFlight, v.WaitReason
		if v.WaitReason == "" {
			e.Why = WhyRunning
			e.Text = fmt.Sprintf("runs on executor %s since %s, attempt %d of %d", v.Executor, stampOf(v.AckedAt), it.try.attempt, v.MaxAttempts)
		}
		return e, true
	case it != nil:
		e.Why, e.Text = c.waits(it)
	default:
		e.Why, e.Text = c.waitsInStore(p, fl, t)
	}
	if e.Why == WhyExecutor {
		e.Text = fl.bereft()
	}
	if t.State == task.Queued || it != nil && it.place == atWindow {
		e.Queued = true
		e.Ahead, e.AheadMax = fl.ahead(t.Key())
	}
	if e.Why == WhyTurn {
		e.Why, e.Text = c.inTurn(fl, e)
	}
	c.guess(&e, p, fl, t)
	return e, true
}

func stampOf(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// waitReason says why a task in memory does not run, in words.
func (c *Core) waitReason(it *item) string {
	_, text := c.waits(it)
	return text
}

// waits says why a task in memory without a push does not run.
func (c *Core) waits(it *item) (Why, string) {
	p := it.part
	switch {
	case it.place == atFlight:
		return WhyInFlight, "in flight: its record is being written"
	case it.place == atCommit && it.pend > 0:
		if p.db.slow(c.now) {
			return WhyStoreSlow, "store is slow"
		}
		return WhyInFlight, "in flight: what follows from its last try is being written"
	case it.unsettled || p.takeover.active && it.t.ID.Seq() <= p.old:
		return WhyTakeover, takesOver
	case it.place == atDue:
		return waitsForTime(it.t)
	case it.place == atBudget:
		return WhyBudget, it.lane.flow.function.budget.why()
	}
	if why, text := c.heldUp(p, it.lane.flow); why != WhyTurn {
		return why, text
	}
	if it.place == atSuspect {
		return WhyAlone, "waits for an executor of its own: it was lost twice"
	}
	return WhyTurn, waitsForTurn
}

const (
	waitsForTurn = "waits for its turn"
	takesOver    = "after a takeover: nobody may run it before the executors had time to say what they hold"
)

// waitsInStore is waits for a task that is not in memory.
func (c *Core) waitsInStore(p *partition, fl *flow, t *store.Task) (Why, string) {
	switch {
	case p.takeover.active && t.ID.Seq() <= p.old:
		return WhyTakeover, takesOver
	case !t.Ready() && t.DueAt.After(c.now):
		return waitsForTime(t)
	}
	return c.heldUp(p, fl)
}

func waitsForTime(t *store.Task) (Why, string) {
	if t.State == task.Retrying {
		return WhyRetry, "waits for a retry at " + stampOf(t.DueAt)
	}
	return WhyDue, "waits for its time " + stampOf(t.DueAt)
}

// heldUp says what keeps all of a flow in a partition from running.
func (c *Core) heldUp(p *partition, fl *flow) (Why, string) {
	f := fl.function
	switch {
	case fl.paused != nil:
		return WhyPaused, fl.paused.Why(f.tenant.name)
	case f.down.until.After(c.now):
		return WhyClosed, fmt.Sprintf("throttled by %s until %s", f.down.name, stampOf(f.down.until))
	case f.shutBy() != nil && (len(fl.seats) > 0 || !c.cfg.Shared): // no share is asked for what nobody can run
		return WhyBound, f.shutBy().why(c)
	case !f.down.takes(c):
		return WhyLimit, f.down.full(f.tenant.name)
	case c.heldFor != "":
		return WhyHeld, c.heldFor
	case p.releasing || c.draining:
		return WhyLeaving, "its partition is being given to another node"
	case len(fl.seats) == 0:
		return WhyExecutor, "no executor"
	case p.db.slow(c.now):
		return WhyStoreSlow, "store is slow"
	}
	if n := fl.keptSlots(); n > 0 {
		return WhyBusy, fmt.Sprintf("waits until an executor that is kept for it has %d slots free", n)
	}
	return WhyTurn, waitsForTurn
}

// bereft says since when nobody can run the function, or that those who can take other bands only.
func (fl *flow) bereft() string {
	f := fl.function
	if len(f.pools) > 0 {
		return fmt.Sprintf("no executor that offers %s of %s to its node takes band %v", f.name, f.tenant.name, fl.band)
	}
	if f.hadPool {
		return fmt.Sprintf("no executor offers %s of %s to its node since %s", f.name, f.tenant.name, stampOf(f.poolsAt))
	}
	return fmt.Sprintf("no executor has offered %s of %s to its node since that knows of it, %s", f.name, f.tenant.name, stampOf(f.poolsAt))
}

// ahead counts what is before a key in all lanes of the flow: at least so many, at most so many. What lies in the store behind a
// window is not counted one by one: at most all that the tenant has ready here.
func (fl *flow) ahead(k store.Key) (least, most int64) {
	open := false
	for _, l := range fl.lanes {
		for _, s := range l.window[l.head:] {
			if s.key.Compare(k) >= 0 {
				break
			}
			least++
		}
		open = open || l.more && l.cursor.Compare(k) < 0
	}
	if most = least; open {
		all := int64(-fl.function.tenant.flying.n - 1)
		seen := map[*partition]bool{}
		for _, f := range fl.function.tenant.functions { // a sum: the order does not matter
			for _, o := range f.flows {
				for _, l := range o.lanes {
					if !seen[l.part] {
						seen[l.part] = true
						all += l.use.ready
					}
				}
			}
		}
		most = max(most, all)
	}
	return least, most
}

// inTurn says who is before a task that nothing else holds up.
func (c *Core) inTurn(fl *flow, e Explanation) (Why, string) {
	f := fl.function
	text := fmt.Sprintf("%s: it is the next of %s, band %v", waitsForTurn, f.name, fl.band)
	switch {
	case !e.Queued:
		text = waitsForTurn
	case e.AheadMax > e.Ahead:
		text = fmt.Sprintf("%s: %d to %d tasks of %s, band %v, are before it", waitsForTurn, e.Ahead, e.AheadMax, f.name, fl.band)
	case e.Ahead == 1:
		text = fmt.Sprintf("%s: 1 task of %s, band %v, is before it", waitsForTurn, f.name, fl.band)
	case e.Ahead > 1:
		text = fmt.Sprintf("%s: %d tasks of %s, band %v, are before it", waitsForTurn, e.Ahead, f.name, fl.band)
	}
	executors, own, others := 0, 0, 0
	seen := map[*executor]bool{}
	for _, st := range fl.seats {
		for _, s := range st.pool.all {
			if s.index >= 0 {
				return WhyTurn, text // somebody takes more
			}
			if x := s.executor; !seen[x] {
				seen[x] = true
				executors++
				for it := x.flying.first; it != nil; it = it.onExecutor.next {
					if it.lane.flow.function.tenant == f.tenant {
						own++
					} else {
						others++
					}
				}
			}
		}
	}
	return WhyBusy, fmt.Sprintf("%s; the executors that can run it (%d) take no more now, they run %d of %s and %d of other tenants", text, executors, own, f.tenant.name, others)
}

// guess says when a task starts: not before what it waits for, then after those before it at the pace of its flow
// (algorithms.md 7.3).
func (c *Core) guess(e *Explanation, p *partition, fl *flow, t *store.Task) {
	from, more := time.Duration(0), time.Duration(0) // more: that it may take longer
	switch e.Why {
	case WhyTurn, WhyBusy, WhyLimit, WhyBound:
	case WhyDue, WhyRetry:
		from = max(0, t.DueAt.Sub(c.now))
	case WhyClosed:
		from = fl.function.down.until.Sub(c.now)
	case WhyPaused:
		from = fl.paused.Until.Sub(c.now) // without an end it is unknown, below
	case WhyTakeover:
		more = c.cfg.Grace
	case WhyBudget:
		b := &fl.function.budget
		from = b.law.Wait(c.now)
		more = time.Duration(b.n) * budgetEvery
	default:
		return
	}
	if why, _ := c.heldUp(p, fl); why == WhyExecutor || why == WhyPaused && fl.paused.Until.IsZero() {
		return
	}
	least, most := e.Ahead, e.AheadMax
	if !e.Queued { // those that wait now may be gone by then
		_, most = fl.ahead(store.Key{Sort: math.MaxInt64})
		least = -1
	}
	rate := fl.pace.rate(c.now)
	switch {
	case rate > 0:
		low, high := float64(least+1)/rate, float64(most+1)/rate
		low *= max(0, 1-1.28/math.Sqrt(float64(max(least, 0)+1)))
		high *= 1 + 1.28/math.Sqrt(float64(most+1))
		e.Soonest, e.Latest = from+seconds(low), from+more+max(seconds(high), time.Second)
	case most > 0 || e.Why == WhyLimit || e.Why == WhyBound || e.Why == WhyBusy:
		return
	default:
		e.Soonest, e.Latest = from, from+more+time.Second
	}
	e.ETAOK = true
}

// seconds is a duration that is guessed, etaMost at most.
func seconds(v float64) time.Duration {
	return time.Duration(min(v, etaMost.Seconds()) * float64(time.Second))
}

// pace is how many tries of a flow start a second while it has something to run. What starts at once says nothing.
type pace struct {
	mark  time.Time // since when n were counted; zero: nothing waits
	at    time.Time // of the newest start
	n     int
	avg   float64
	known time.Duration
}

const (
	paceEvery    = 250 * time.Millisecond
	paceConstant = time.Minute
	paceLife     = 3 * paceConstant // without a start nobody knows it any more
)

// waits says whether the flow has something that may start.
func (a *pace) waits(now time.Time, something bool) {
	if !something {
		a.mark, a.n = time.Time{}, 0
	} else if a.mark.IsZero() {
		a.mark, a.n = now, 0
	}
}

// starts counts one.
func (a *pace) starts(now time.Time) {
	a.at = now
	a.n++
	d := now.Sub(a.mark)
	if a.mark.IsZero() || d < paceEvery {
		return
	}
	a.known += d
	a.avg += (float64(a.n)/d.Seconds() - a.avg) * d.Seconds() / min(a.known, max(paceConstant, d)).Seconds()
	a.mark, a.n = now, 0
}

// rate is so many a second; 0: unknown.
func (a *pace) rate(now time.Time) float64 {
	if a.known == 0 || now.Sub(a.at) > paceLife {
		return 0
	}
	return a.avg
}
