package sim

import (
	"fmt"
	"time"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/dispatcher/ownership"
)

// node is the shell around one core: what dispatcher, its loop, its sessions and its membership do.
type node struct {
	process
	w          *world
	index      int
	core       *core.Core
	table      *ownership.Table
	membership membership
	rosters    rosters
	acquiring  []*acquisition // by partition
	owns       []bool         // the loop has the partition
	tenure     []int          // grows with each time that it got it
	box        []func()       // see mail
	streams    map[core.SessionID]*stream
	opened     map[core.SessionID]bool // the core knows the session
	replies    map[core.ReplyID]func(core.SubmitAnswer)
	cancels    map[core.ReplyID]func(core.CancelAnswer)
	watches    map[core.WatchID]*watch
	paused     map[core.ReplyID]func(core.PauseAnswer)
	rules      map[string]int64 // revision of the pause rules that it has, by tenant
	draining   bool
	pauseAmid  time.Duration   // it is stopped for so long once its next exchange with a database is under way
	noStore    time.Duration   // until when it can't reach the databases
	noRegistry time.Duration   // and the registry
	noPeer     []time.Duration // and each other node
}

func newNode(w *world, i int) *node {
	return &node{process: newProcess(fmt.Sprintf("n%d", i+1)), w: w, index: i, noPeer: make([]time.Duration, w.plan.nodes)}
}

// start begins a life of the process, which joins by a new name.
func (n *node) start() {
	w := n.w
	n.up, n.draining, n.tickAt, n.pausedUntil = true, false, 0, 0
	n.life++
	n.rosters = newRosters(n)
	n.core = core.New(n.config())
	n.table = ownership.New()
	n.membership = newMembership(n)
	n.acquiring = make([]*acquisition, w.plan.partitions)
	n.owns = make([]bool, w.plan.partitions)
	n.tenure = make([]int, w.plan.partitions)
	n.box = nil
	n.streams = map[core.SessionID]*stream{}
	n.opened = map[core.SessionID]bool{}
	n.replies = map[core.ReplyID]func(core.SubmitAnswer){}
	n.cancels = map[core.ReplyID]func(core.CancelAnswer){}
	n.watches = map[core.WatchID]*watch{}
	n.paused = map[core.ReplyID]func(core.PauseAnswer){}
	n.rules = map[string]int64{}
	w.log(n.name, "start", "life %d", n.life)
	n.membership.join(nil, 0)
	n.rosters.begin()
}

func (n *node) config() core.Config {
	cfg := n.w.plan.config
	cfg.Random = n.w.rand.Uint64
	cfg.Roster = n.rosters.own != nil
	return cfg
}

// crash is kill -9. Its lease goes on until its time is over.
func (n *node) crash() {
	if !n.up {
		return
	}
	n.w.log(n.name, "crash", "")
	n.stopped()
	for _, st := range n.w.streamsOf(n) {
		st.cut()
	}
}

// stopped ends the life of the process.
func (n *node) stopped() {
	if !n.up {
		return
	}
	n.up, n.core = false, nil
	for _, a := range n.acquiring {
		if a != nil {
			a.stop()
		}
	}
}

// withoutStore and withoutRegistry report whether the node can't reach them.
func (n *node) withoutStore() bool { return !n.w.calm && n.noStore > n.w.now }
func (n *node) withoutRegistry() bool {
	return !n.w.calm && max(n.noRegistry, n.w.registry.down) > n.w.now
}

// drain is a stop in order: what it owns is handed over, then it ends.
func (n *node) drain() {
	if !n.up || n.draining {
		return
	}
	w, l := n.w, n.membership.lease
	w.log(n.name, "drain", "")
	n.draining = true
	n.ask(func() { w.registry.announceDrain(l) }, func(error) {})
	n.call("drain", func(now time.Time) { n.core.Drain(now) })
	n.table.Drain()
	n.own()
}

// exit is the end of a drain: the lease is given back, and the process starts again some time later.
func (n *node) exit() {
	l := n.membership.lease
	n.w.log(n.name, "exit", "drained")
	n.crash()
	if !n.withoutRegistry() {
		n.w.registry.revoke(l)
	}
	n.w.after(n.w.around(500*time.Millisecond), n.start)
}

// call is one entry into the core, with what it asks for.
func (n *node) call(what string, f func(now time.Time)) {
	f(n.clock(n.w.now))
	if fx := n.core.Take(); fx != nil {
		n.w.oracle.called(n, what, fx)
		n.perform(fx)
	}
	n.arm()
}

// arm schedules the next Tick.
func (n *node) arm() {
	next := n.core.Next()
	if next.IsZero() {
		return
	}
	at := n.w.now + n.w.when(&n.process, next)
	if n.tickAt > n.w.now && n.tickAt <= at {
		return
	}
	n.tickAt = at
	n.w.on(&n.process, at-n.w.now, func() {
		if n.tickAt == at {
			n.tickAt = 0
			n.call("tick", func(now time.Time) { n.core.Tick(now) })
		}
	})
}

// perform turns effects into what happens.
func (n *node) perform(fx *core.Effects) {
	w := n.w
	n.rosters.changed(fx.Roster)
	for _, s := range fx.Send {
		if st := n.streams[s.Session]; st != nil {
			w.oracle.sent(n, st, s.Message)
			st.toExecutor(s.Message)
		}
	}
	for _, c := range fx.Commits {
		n.commit(c)
	}
	for _, l := range fx.Loads {
		n.load(l)
	}
	for _, r := range fx.EpochReads {
		n.epochRead(r)
	}
	for _, a := range fx.Submitted {
		w.oracle.submitted(n, a)
		if f := n.replies[a.Reply]; f != nil {
			delete(n.replies, a.Reply)
			f(a)
		}
	}
	for _, a := range fx.Cancelled {
		w.oracle.cancelled(n, a)
		if f := n.cancels[a.Reply]; f != nil {
			delete(n.cancels, a.Reply)
			f(a)
		}
	}
	for _, a := range fx.Paused {
		n.paused[a.Reply](a)
		delete(n.paused, a.Reply)
	}
	for _, e := range fx.Events {
		w.oracle.event(n, e)
	}
	for _, lost := range fx.Lost {
		w.log(n.name, "lost", "partition %d epoch %d: %v", lost.Partition, lost.Epoch, lost.Reason)
		n.owns[lost.Partition] = false
		n.mail(func() {
			n.table.Lost(n.clock(w.now), lost.Partition, false)
			n.own()
		})
	}
	for _, p := range fx.Released {
		w.log(n.name, "released", "partition %d", p)
		n.owns[p] = false
		n.mail(func() {
			n.table.Released(p)
			n.own()
		})
	}
	for _, s := range fx.Close {
		if st := n.streams[s]; st != nil {
			st.closeByNode()
		}
	}
}
