package sim

import (
	"strings"
	"time"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/dispatcher/ownership"
	"github.com/headrace/headrace/store"
)

// Times of dispatcher/peer's roster.
const (
	rosterTick    = 100 * time.Millisecond
	rosterWait    = time.Second
	rosterTimeout = 3 * time.Second
)

// rosters is what dispatcher/peer does around a node's own roster and its views of others': long polls, which may
// be late, lost and answered late.
type rosters struct {
	n       *node
	own     *ownership.Roster // nil: nobody takes over from here
	stirred bool              // a look is due
	waiting []*poll
	views   []*rosterView // of every life of another node that was polled, oldest first
}

// poll waits at a node for news.
type poll struct {
	version uint64
	answer  func(ownership.RosterNews)
}

type rosterView struct {
	of   *node
	life int
	ownership.RosterView
}

func newRosters(n *node) rosters {
	r := rosters{n: n}
	if n.w.plan.roster {
		r.own = ownership.NewRoster(ownership.RosterLife(leaseTTL))
	}
	return r
}

// begin polls all other nodes.
func (r *rosters) begin() {
	if r.own == nil {
		return
	}
	for _, to := range r.n.w.nodes {
		if to != r.n {
			r.n.w.on(&r.n.process, r.n.w.around(50*time.Millisecond), func() { r.poll(to) })
		}
	}
}

// changed takes what the core says, and wakes those who wait for it.
func (r *rosters) changed(changes []core.RosterChange) {
	if len(changes) == 0 {
		return
	}
	if r.n.w.trace.on {
		r.n.w.log(r.n.name, "roster", "%s", rosterText(changes))
	}
	r.own.Change(0, changes)
	waiting := r.waiting
	r.waiting = nil
	for _, p := range waiting {
		p.answer(r.own.Since(p.version))
	}
	r.stir(0)
}

// there is the directory's word on who has which session.
func (r *rosters) there(p ownership.Poller) bool {
	if v := r.n.membership.view; v != nil {
		for _, k := range v.members {
			if k.lease.id == p.Node && k.lease.number == p.Session {
				return true
			}
		}
	}
	return false
}

// directory is called when the node sees another view of the registry.
func (r *rosters) directory() {
	if r.own != nil {
		r.own.Look(r.n.clock(r.n.w.now), r.there)
		r.stir(0)
	}
}

// stir has the node look who may get pushes by now.
func (r *rosters) stir(d time.Duration) {
	w := r.n.w
	if r.stirred && d > 0 {
		return
	}
	r.stirred = true
	w.on(&r.n.process, d+w.around(20*time.Microsecond), func() {
		r.stirred = false
		_, upTo, more := r.own.Listed(r.n.clock(w.now), r.there)
		if upTo > 0 {
			w.log(r.n.name, "listed", "up to %d", upTo)
			r.n.mail(func() { r.n.call("listed", func(now time.Time) { r.n.core.Listed(now, upTo) }) })
		}
		if more {
			r.stir(rosterTick)
		}
	})
}

// view returns what is known of a node in its present life.
func (r *rosters) view(of *node) *rosterView {
	for _, v := range r.views {
		if v.of == of && v.life == of.life {
			return v
		}
	}
	v := &rosterView{of: of, life: of.life}
	r.views = append(r.views, v)
	if len(r.views) > 20 { // older than any that can be used
		r.views = r.views[1:]
	}
	return v
}

// poll asks a node for its news, and again when the answer is there or does not come.
func (r *rosters) poll(to *node) {
	n, w := r.n, r.n.w
	again := func(d time.Duration) { w.on(&n.process, d, func() { r.poll(to) }) }
	l := n.membership.lease
	if l == nil || !to.up || !w.talk(n, to) {
		again(w.between(50*time.Millisecond, time.Second))
		return
	}
	v := r.view(to)
	askedAt, life, version, done := n.clock(w.now), n.life, v.Version(), false
	ended := func(d time.Duration, news *ownership.RosterNews) {
		w.in(&n.process, life, d, func() {
			if done {
				return
			}
			if done = true; news == nil {
				again(w.between(50*time.Millisecond, time.Second))
				return
			}
			v.Take(*news, l.number, askedAt)
			again(0)
		})
	}
	ended(rosterTimeout, nil)
	late := func() time.Duration {
		if w.faulty(faultPeers) && w.chance(30) {
			return w.between(0, 6*time.Second)
		}
		return w.around(w.plan.delay)
	}
	w.in(&to.process, v.life, late(), func() {
		if w.faulty(faultPeers) && w.chance(30) {
			return // lost
		}
		to.rosters.polled(ownership.Poller{Node: l.id, Session: l.number}, version, func(news ownership.RosterNews) {
			if w.talk(n, to) && !(w.faulty(faultPeers) && w.chance(30)) {
				ended(late(), &news)
			}
		})
	})
}

// polled is the other end of a poll.
func (r *rosters) polled(by ownership.Poller, version uint64, answer func(ownership.RosterNews)) {
	n, w := r.n, r.n.w
	r.own.Polled(n.clock(w.now), by, version, r.there)
	r.stir(0)
	if version != r.own.Version() {
		answer(r.own.Since(version))
		return
	}
	p := &poll{version, answer}
	r.waiting = append(r.waiting, p)
	w.on(&n.process, rosterWait, func() {
		for i, o := range r.waiting {
			if o == p {
				r.waiting = append(r.waiting[:i:i], r.waiting[i+1:]...)
				answer(r.own.Since(version))
				return
			}
		}
	})
}

// executors is dispatcher/peer's Router.Executors.
func (r *rosters) executors(partition uint32, epoch store.Epoch, session int64, raisedAt time.Time) ([]string, bool) {
	for _, v := range r.views {
		if ids, ok := v.Use(partition, epoch, session, raisedAt, ownership.RosterLife(leaseTTL)); ok {
			return ids, true
		}
	}
	return nil, false
}

// session is the number of a lease, 0 without one.
func (l *lease) session() int64 {
	if l == nil {
		return 0
	}
	return l.number
}

// rosterText says what a roster is told.
func rosterText(changes []core.RosterChange) string {
	var b strings.Builder
	for _, c := range changes {
		if c.Gone {
			b.WriteByte('-')
		}
		if c.Executor == "" {
			b.WriteString(sprint("p%d=%d ", c.Partition, c.Epoch))
		} else {
			b.WriteString(sprint("%x:%d ", c.Executor[:4], c.Number))
		}
	}
	return strings.TrimSuffix(b.String(), " ")
}
