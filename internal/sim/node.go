package sim

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/internal/mutant"
	"github.com/headrace/headrace/store"
)

var (
	errKeyLost = errors.New("the key is not ours any more")
	errDown    = errors.New("unavailable")
)

// partState is where a node stands with a partition, beside its core.
type partState uint8

const (
	partNone      partState = iota
	partAcquiring           // on the way from the key to Acquired
	partOwned
	partReleasing
)

// node is the shell around one core: what dispatcher/loop, push and the membership do.
type node struct {
	process
	w        *world
	index    int
	core     *core.Core
	lease    *lease
	parts    []partState
	acquires []int // grows with each change of parts: an older acquisition stops
	streams  map[core.SessionID]*stream
	opened   map[core.SessionID]bool // the core knows the session
	replies  map[core.ReplyID]func(core.SubmitAnswer)
	cancels  map[core.ReplyID]func(core.CancelAnswer)
	watches  map[core.WatchID]*watch
	tickAt   time.Duration // of the scheduled Tick; 0: none
	draining bool
	alone    time.Duration // until when it can't reach the database and etcd
}

func newNode(w *world, i int) *node {
	return &node{process: process{name: fmt.Sprintf("n%d", i+1), rate: 1}, w: w, index: i}
}

// start begins a life of the process. Who holds the data directory's lock revokes its predecessor's
// lease: a restart waits for nothing.
func (n *node) start() {
	w := n.w
	n.up, n.draining, n.tickAt, n.pausedUntil = true, false, 0, 0
	n.life++
	n.core = core.New(n.config())
	n.parts = make([]partState, w.plan.partitions)
	n.acquires = make([]int, w.plan.partitions)
	n.streams = map[core.SessionID]*stream{}
	n.opened = map[core.SessionID]bool{}
	n.replies = map[core.ReplyID]func(core.SubmitAnswer){}
	n.cancels = map[core.ReplyID]func(core.CancelAnswer){}
	n.watches = map[core.WatchID]*watch{}
	if old := n.lease; old != nil {
		n.lease = nil
		w.etcd.revoke(old)
	}
	n.lease = w.etcd.grant(n)
	w.log(n.name, "start", "life %d", n.life)
	n.keepAlive()
	n.assignments()
}

func (n *node) config() core.Config {
	cfg := n.w.plan.config
	cfg.Random = n.w.rand.Uint64
	return cfg
}

// crash is kill -9.
func (n *node) crash() {
	if !n.up {
		return
	}
	n.w.log(n.name, "crash", "")
	n.up, n.core = false, nil
	for _, st := range n.w.streamsOf(n) {
		st.cut()
	}
}

// keepAlive renews the lease, three times in its life.
func (n *node) keepAlive() {
	w, life, l, sentAt := n.w, n.life, n.lease, n.clock(n.w.now)
	w.on(&n.process, leaseTTL/3, n.keepAlive)
	if w.faulty(faultLease) && w.chance(3) || n.isolated() {
		return // lost on the way
	}
	w.after(w.around(time.Millisecond), func() {
		if l.gone {
			return // the watch tells
		}
		l.until = w.now + leaseTTL
		w.in(&n.process, life, w.around(time.Millisecond), func() {
			if n.lease == l {
				n.call("trust", func(time.Time) { n.core.Trust(sentAt.Add(trustFor)) })
			}
		})
	})
}

// isolated reports whether the node can't reach the database and etcd.
func (n *node) isolated() bool { return !n.w.calm && n.alone > n.w.now }

func (n *node) leaseLost(l *lease) {
	if n.lease != l {
		return
	}
	n.w.log(n.name, "lease lost", "")
	n.lease = n.w.etcd.grant(n)
	for p := range n.parts {
		n.drop(uint32(p), errKeyLost)
	}
}

func (n *node) drop(p uint32, reason error) {
	if n.parts[p] != partNone {
		n.setPart(p, partNone)
		n.call("drop", func(now time.Time) { n.core.Drop(now, p, reason) })
	}
}

func (n *node) setPart(p uint32, s partState) {
	n.parts[p] = s
	n.acquires[p]++
}

// assignments looks what this node should own: it acquires what is free and gives away what is not
// wanted any more.
func (n *node) assignments() {
	w := n.w
	w.on(&n.process, w.between(200*time.Millisecond, 400*time.Millisecond), n.assignments)
	if n.draining {
		n.drained()
		return
	}
	for i := range n.parts {
		p := uint32(i)
		holder := w.etcd.holders[p]
		switch {
		case n.parts[p] == partNone && (holder == n.lease || holder == nil && w.etcd.wanted(p, n)):
			n.acquire(p)
		case n.parts[p] == partOwned && holder == n.lease && !w.etcd.wanted(p, n):
			n.release(p)
		}
	}
}

func (n *node) release(p uint32) {
	n.setPart(p, partReleasing)
	n.w.log(n.name, "release", "partition %d", p)
	n.call("release", func(now time.Time) { n.core.Release(now, p) })
}

// drained goes on with a drain: a node that owns nothing ends, and starts again.
func (n *node) drained() {
	for p, s := range n.parts {
		switch s {
		case partOwned:
			n.release(uint32(p))
			return
		case partReleasing, partAcquiring:
			return
		}
	}
	n.w.log(n.name, "exit", "drained")
	n.crash()
	n.w.after(n.w.around(500*time.Millisecond), n.start)
}

func (n *node) drain() {
	if n.up && !n.draining {
		n.w.log(n.name, "drain", "")
		n.draining = true
		n.call("drain", func(now time.Time) { n.core.Drain(now) })
	}
}

// acquire wins the key, raises the epoch, looks at the key again, and only then reads the rest (R10).
func (n *node) acquire(p uint32) {
	w, life, l := n.w, n.life, n.lease
	n.setPart(p, partAcquiring)
	number := n.acquires[p]
	// step does one piece of I/O: io happens outside, then goes on in the process if the acquisition is still wanted.
	step := func(io func() error, then func()) {
		var err error
		if w.faulty(faultNodePause) && w.chance(12) { // long enough for somebody else to become the owner meanwhile
			w.pause(&n.process, w.between(4*time.Second, 10*time.Second))
		}
		w.on(&n.process, 0, func() {
			w.after(w.around(w.plan.commit), func() {
				if err = errDown; !n.isolated() {
					err = io()
				}
				w.in(&n.process, life, w.around(time.Millisecond), func() {
					switch {
					case n.acquires[p] != number || n.lease != l:
					case err != nil:
						w.log(n.name, "acquire", "partition %d: %v", p, err)
						n.setPart(p, partNone) // the next look at the assignments tries again
					default:
						then()
					}
				})
			})
		})
	}
	look := func() error {
		if w.etcd.holders[p] != l {
			return errKeyLost
		}
		return nil
	}
	a := core.Acquired{}
	var from store.Epoch
	win := func() error {
		if !w.etcd.win(p, l) {
			return errKeyLost
		}
		return nil
	}
	read := func() (err error) { from, err = w.readEpoch(p); return err }
	raise := func() (err error) { a.Epoch, err = w.raise(n, p, from); a.RaisedAt = n.clock(w.now); return err }
	rest := func() (err error) { a.Recovered, a.Flows, err = w.recoverPartition(p); return err }
	order := []func() error{win, read, raise, look, rest}
	switch {
	case mutant.On("load-before-raise"):
		order = []func() error{win, read, rest, raise, look}
	case mutant.On("no-idle-check"), mutant.On("fenced-keeps"): // and no look: either alone is made up for by the other
		order = []func() error{win, read, raise, rest}
	}
	done := func() {
		n.setPart(p, partOwned)
		w.log(n.name, "acquired", "partition %d epoch %d, %d recorded, %d cancels, %d flows", p, a.Epoch,
			len(a.Recovered.Recorded), len(a.Recovered.Cancels), len(a.Flows))
		n.call("acquired", func(now time.Time) { n.core.Acquired(now, a) })
	}
	for _, io := range slices.Backward(order) {
		then := done
		done = func() { step(io, then) }
	}
	done()
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
	for _, e := range fx.Events {
		w.oracle.event(n, e)
	}
	for _, lost := range fx.Lost {
		w.log(n.name, "lost", "partition %d epoch %d: %v", lost.Partition, lost.Epoch, lost.Reason)
		if n.parts[lost.Partition] == partOwned || n.parts[lost.Partition] == partReleasing {
			n.setPart(lost.Partition, partNone)
		}
	}
	for _, p := range fx.Released {
		w.log(n.name, "released", "partition %d", p)
		n.setPart(p, partNone)
		l := n.lease
		w.after(w.around(time.Millisecond), func() { w.etcd.give(p, l) })
	}
	for _, s := range fx.Close {
		if st := n.streams[s]; st != nil {
			st.closeByNode()
		}
	}
}
