package sim

import (
	"cmp"
	"errors"
	"iter"
	"slices"
	"time"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/dispatcher/ownership"
	"github.com/headrace/headrace/internal/mutant"
	"github.com/headrace/headrace/store"
)

var (
	errKeyLost  = errors.New("the key is not ours any more")
	errDown     = errors.New("unavailable")
	errUnwanted = errors.New("not wanted any more")
	errTooSlow  = errors.New("the acquisition took too long")
)

// acquireMax bounds an acquisition, as in package dispatcher.
const acquireMax = 10 * time.Second

// own does what the table of ownership asks for: what dispatcher's owners do.
func (n *node) own() {
	fx := n.table.Take()
	for _, s := range fx.Acquire {
		n.acquire(s)
	}
	for _, p := range fx.Cancel {
		if a := n.acquiring[p]; a != nil {
			n.w.on(&n.process, 0, func() { a.interrupt(errUnwanted) })
		}
	}
	for _, a := range fx.Acquired {
		p := a.Recovered.Partition.ID
		n.w.log(n.name, "acquired", "partition %d epoch %d, %d recorded, %d cancels, %d flows; %d executors, complete %v", p, a.Epoch,
			len(a.Recovered.Recorded), len(a.Recovered.Cancels), len(a.Flows), len(a.Executors), a.Complete)
		n.mail(func() {
			n.owns[p] = true
			n.tenure[p]++
			n.call("acquired", func(now time.Time) { n.core.Acquired(now, a) })
		})
	}
	for _, p := range fx.Drop {
		n.mail(func() { n.call("drop", func(now time.Time) { n.core.Drop(now, p, errKeyLost) }) })
	}
	for _, p := range fx.Release {
		n.w.log(n.name, "release", "partition %d", p)
		n.mail(func() { n.call("release", func(now time.Time) { n.core.Release(now, p) }) })
	}
	for _, p := range fx.GiveBack {
		n.giveBack(p)
	}
	if n.draining && n.table.Idle() {
		n.exit()
	}
}

// mail brings something to another goroutine of the process, in order and some time later.
func (n *node) mail(f func()) {
	w := n.w
	n.box = append(n.box, f)
	w.on(&n.process, w.around(20*time.Microsecond), func() {
		f := n.box[0]
		n.box = n.box[1:]
		f()
	})
}

// giveBack deletes the owner key, as often as it takes.
func (n *node) giveBack(p uint32) {
	l := n.membership.lease
	n.ask(func() { n.w.registry.release(l, p) }, func(err error) {
		if err != nil {
			n.w.on(&n.process, time.Second, func() { n.giveBack(p) })
		}
	})
}

// acquisition is one run of ownership.Acquire: a coroutine that stops at each of its doors and goes on when the
// answer is there.
type acquisition struct {
	n         *node
	partition uint32
	next      func() (func(), bool) // runs on to the next door and returns how to knock
	stop      func()
	yield     func(func()) bool
	waiting   int // number of the door that it waits at
	err       error
	session   int64 // of the membership, when it began
	rules     []*tenantRules
	state     core.Acquired
}

func (n *node) acquire(s ownership.Start) {
	w := n.w
	a := &acquisition{n: n, partition: s.Partition}
	n.acquiring[s.Partition] = a
	a.next, a.stop = iter.Pull(func(yield func(func()) bool) {
		a.yield = yield
		a.state, a.err = ownership.Acquire(a)
	})
	begin := func() {
		a.session = n.membership.lease.session()
		w.on(&n.process, acquireMax, func() { a.interrupt(errTooSlow) })
		a.step(nil)
	}
	if s.Pause > 0 {
		a.waiting++
		number := a.waiting
		w.on(&n.process, s.Pause, func() {
			if a.waiting == number {
				begin()
			}
		})
		return
	}
	begin()
}

// step runs on to the next door, or to the end.
func (a *acquisition) step(err error) {
	a.waiting++
	a.err = err
	if knock, more := a.next(); more {
		knock()
		return
	}
	n := a.n
	if n.acquiring[a.partition] != a {
		return
	}
	n.acquiring[a.partition] = nil
	a.state.Database = n.w.plan.database(a.partition)
	if a.err != nil {
		n.w.log(n.name, "acquire", "partition %d: %v", a.partition, a.err)
	} else {
		for _, t := range a.rules {
			n.take(t)
		}
		ownership.Complete(&a.state, a.session, n.membership.lease.session(), n.rosters.executors)
	}
	n.table.Ended(n.clock(n.w.now), a.partition, a.state, a.err)
	n.own()
}

// interrupt ends an acquisition that waits: what it has asked for may still happen.
func (a *acquisition) interrupt(err error) {
	if a.n.acquiring[a.partition] == a {
		a.step(err)
	}
}

// door does one piece of I/O on behalf of the coroutine, which waits for it.
func (a *acquisition) door(knock func(answer func(error))) error {
	if a.err != nil {
		return a.err // interrupted before it had begun
	}
	number := a.waiting
	if !a.yield(func() {
		knock(func(err error) {
			if a.waiting == number {
				a.step(err)
			}
		})
	}) {
		return errDown // the process is dead
	}
	return a.err
}

// Look implements ownership.Doors.
func (a *acquisition) Look() error {
	held, l := false, a.n.membership.lease
	err := a.door(func(answer func(error)) {
		a.n.ask(func() { held = l != nil && a.n.w.registry.now.owners[a.partition].lease == l }, answer)
	})
	if err == nil && !held {
		err = errKeyLost
	}
	return err
}

// atStore does one piece of I/O at the database.
func (a *acquisition) atStore(io func() error) error {
	n, w := a.n, a.n.w
	life := n.life
	return a.door(func(answer func(error)) {
		if w.faulty(faultNodePause) && w.chance(12) { // long enough for somebody else to become the owner meanwhile
			w.pause(&n.process, w.between(4*time.Second, 10*time.Second))
		}
		w.on(&n.process, 0, func() {
			d, ok := n.storeDelay(w.plan.database(a.partition), w.plan.commit)
			w.after(d, func() {
				err := errDown
				if ok {
					err = io()
				}
				w.in(&n.process, life, w.around(time.Millisecond), func() { answer(err) })
			})
		})
	})
}

// Epoch implements ownership.Doors.
func (a *acquisition) Epoch() (e store.Epoch, err error) {
	if mutant.On("rules-before-raise") {
		if err := a.knowRules(); err != nil {
			return 0, err
		}
	}
	err = a.atStore(func() (err error) { e, err = a.n.w.readEpoch(a.partition); return err })
	return e, err
}

// Raise implements ownership.Doors.
func (a *acquisition) Raise(from store.Epoch) (e store.Epoch, err error) {
	err = a.atStore(func() (err error) { e, err = a.n.w.raise(a.n, a.partition, from); return err })
	return e, err
}

// Now implements ownership.Doors.
func (a *acquisition) Now() time.Time { return a.n.clock(a.n.w.now) }

// Recover implements ownership.Doors. The pause rules are read first, after the raise.
func (a *acquisition) Recover() (r *store.Recovered, err error) {
	if !mutant.On("rules-before-raise") {
		if err := a.knowRules(); err != nil {
			return nil, err
		}
	}
	err = a.atStore(func() (err error) {
		if a.n.w.badRead(10) {
			return errDown
		}
		r, err = a.n.w.store.Recover(background, a.partition)
		return err
	})
	return r, err
}

// Flows implements ownership.Doors.
func (a *acquisition) Flows() (flows []store.FlowStat, err error) {
	err = a.atStore(func() (err error) {
		flows, err = a.n.w.store.Flows(background, a.partition)
		slices.SortFunc(flows, func(a, b store.FlowStat) int { // the contract promises no order; a seed needs one
			return cmp.Or(cmp.Compare(a.Flow.Tenant, b.Flow.Tenant), cmp.Compare(a.Flow.Function, b.Flow.Function), cmp.Compare(a.Flow.Band, b.Flow.Band))
		})
		return err
	})
	return flows, err
}
