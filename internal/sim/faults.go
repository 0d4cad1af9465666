package sim

import "time"

// beginFaults lets something go wrong every now and then until the world calms down.
func (w *world) beginFaults() {
	var kinds []string
	for _, kind := range faultKinds {
		if w.plan.faults[kind] && w.strike(kind, false) {
			kinds = append(kinds, kind)
		}
	}
	if len(kinds) == 0 {
		return
	}
	var next func()
	next = func() {
		if w.calm {
			return
		}
		w.strike(kinds[w.rand.IntN(len(kinds))], true)
		w.after(w.around(w.plan.every), next)
	}
	w.after(w.around(w.plan.every), next)
}

// strike does one fault. It reports whether the kind is one that strikes: the others are drawn where they
// happen. Without now nothing is done.
func (w *world) strike(kind string, now bool) bool {
	pick := func() int { return w.rand.IntN(1 << 20) }
	var act func()
	switch kind {
	case faultNodeCrash:
		act = func() {
			if n := w.nodes[pick()%len(w.nodes)]; n.up {
				n.crash()
				w.after(w.around(2*time.Second), n.start)
			}
		}
	case faultNodePause:
		act = func() {
			n, d := w.nodes[pick()%len(w.nodes)], w.pauseTime()
			if w.chance(2) {
				n.pauseAmid = d
			} else {
				w.pause(&n.process, d)
			}
		}
	case faultExecCrash:
		act = func() {
			if x := w.executors[pick()%len(w.executors)]; x.up {
				x.crash()
				w.after(w.around(2*time.Second), x.start)
			}
		}
	case faultExecPause:
		act = func() { w.pause(&w.executors[pick()%len(w.executors)].process, w.pauseTime()) }
	case faultCut:
		act = func() {
			if open := w.openStreams(); len(open) > 0 {
				st := open[pick()%len(open)]
				w.log("net", "cut", "session %d of %s and %s", st.id, st.x.name, st.n.name)
				st.cut()
			}
		}
	case faultStall:
		act = func() {
			if open := w.openStreams(); len(open) > 0 {
				st := open[pick()%len(open)]
				p, to := st.up, st.n.name
				if w.chance(2) {
					p, to = st.down, st.x.name
				}
				d := w.pauseTime()
				p.stalled = max(p.stalled, w.now+d)
				w.log("net", "stall", "session %d towards %s, %v", st.id, to, d)
			}
		}
	case faultSplit:
		act = func() {
			x, n := w.executors[pick()%len(w.executors)], w.nodes[pick()%len(w.nodes)]
			if w.chance(3) {
				x.cutAtStart = true
			} else {
				w.split(x, n)
			}
		}
	case faultIsolate:
		act = func() {
			n, x := w.nodes[pick()%len(w.nodes)], w.executors[pick()%len(w.executors)]
			if w.faulty(faultNodePause) && w.chance(2) {
				w.behind(n, x)
				return
			}
			d := w.between(2*time.Second, 60*time.Second)
			n.isolate(d)
			if w.chance(2) {
				w.only(x, n, d)
			}
		}
	case faultLease:
		act = func() {
			if n := w.nodes[pick()%len(w.nodes)]; n.up && n.membership.lease != nil {
				w.log("etcd", "revoke", "the lease of %s", n.name)
				w.registry.revoke(n.membership.lease)
			}
		}
	case faultRegistry:
		act = func() {
			w.registry.down = w.now + w.between(time.Second, 40*time.Second)
			w.log("etcd", "down", "until %v", w.registry.down)
		}
	case faultPeers:
		act = func() {
			w.apartPeers(w.nodes[pick()%len(w.nodes)], w.nodes[pick()%len(w.nodes)], w.between(2*time.Second, 30*time.Second))
		}
	case faultFull:
		act = func() { w.fullUntil[pick()%len(w.fullUntil)] = w.now + w.around(3*time.Second) }
	case faultSlow:
		act = func() {
			db := pick() % len(w.slowUntil)
			w.slowUntil[db] = w.now + w.around(3*time.Second)
			w.log("db", "slow", "database %d until %v", db, w.slowUntil[db])
		}
	case faultMove:
		act = func() { w.registry.turn() }
	case faultDrain:
		act = func() {
			if w.chance(2) {
				w.nodes[pick()%len(w.nodes)].drain()
			} else {
				w.executors[pick()%len(w.executors)].drain()
			}
		}
	default:
		return false
	}
	if now {
		act()
	}
	return true
}

// isolate cuts a node off from the databases, the registry, or both.
func (n *node) isolate(d time.Duration) {
	w := n.w
	from := w.rand.IntN(4)
	if from != 1 {
		n.noStore = w.now + d
	}
	if from != 2 {
		n.noRegistry = w.now + d
	}
	w.log("net", "isolate", "%s from %s, %v", n.name, []string{"both", "the registry", "the databases", "both"}[from], d)
}

// split lets nothing pass between an executor and a node: at first messages wait, then streams break.
func (w *world) split(x *executor, n *node) {
	wait := w.between(0, 23*time.Second)
	for _, st := range w.openStreams() {
		if st.x == x && st.n == n {
			st.up.stalled = max(st.up.stalled, w.now+wait)
			st.down.stalled = max(st.down.stalled, w.now+wait)
		}
	}
	w.log("net", "stall", "%s and %s, %v", x.name, n.name, wait)
	w.after(wait, func() {
		if !w.calm {
			w.apart(x, n, w.between(5*time.Second, 60*time.Second))
		}
	})
}

// only lets an executor reach one node and nobody else for a while: it hears only what that one says.
func (w *world) only(x *executor, n *node, d time.Duration) {
	for _, other := range w.nodes {
		if other != n {
			w.apart(x, other, d)
		}
	}
}

// behind stops a node for long enough for somebody else to own what it owned, and lets an executor hear only of
// the old one.
func (w *world) behind(n *node, x *executor) {
	d := w.between(6*time.Second, 24*time.Second)
	if w.chance(3) {
		w.pause(&n.process, d)
	} else {
		n.pauseAmid = d
	}
	w.only(x, n, w.between(20*time.Second, 70*time.Second))
}

// lonely cuts an executor off from all nodes, one of which may die then.
func (w *world) lonely(x *executor, n *node) {
	d := w.between(5*time.Second, 90*time.Second)
	for _, n := range w.nodes {
		w.apart(x, n, d)
	}
	if w.faulty(faultNodeCrash) && w.chance(2) {
		w.on(&n.process, w.around(200*time.Millisecond), func() {
			n.crash()
			w.after(w.around(2*time.Second), n.start)
		})
	}
}

// apart breaks the streams between an executor and a node, and lets no new one be opened for a while.
func (w *world) apart(x *executor, n *node, d time.Duration) {
	x.apart[n.index] = max(x.apart[n.index], w.now+d)
	w.log("net", "apart", "%s and %s, %v", x.name, n.name, d)
	for _, st := range w.openStreams() {
		if st.x == x && st.n == n {
			st.cut()
		}
	}
}

// reach reports whether an executor can open a stream to a node.
func (w *world) reach(x *executor, n *node) bool { return w.calm || x.apart[n.index] <= w.now }

// pauseTime draws how long something stands still: mostly shorter than what the protocol waits for.
func (w *world) pauseTime() time.Duration {
	switch w.rand.IntN(6) {
	case 0:
		return w.between(time.Second, 10*time.Second)
	case 1:
		return w.between(5*time.Second, 45*time.Second)
	case 2:
		return w.between(20*time.Millisecond, 100*time.Millisecond)
	}
	return w.between(50*time.Millisecond, 2500*time.Millisecond)
}

// calmDown ends the faults. From now on everything must come to rest.
func (w *world) calmDown() {
	w.calm = true
	w.log("", "calm", "faults end")
	for _, p := range w.pauses.standing {
		w.pauses.resume(p)
	}
	bound := 15 * time.Minute // back-offs, losses and orphan timeouts one after the other
	for _, f := range w.plan.functions {
		if f.long {
			bound = 90 * time.Minute
		}
	}
	end := w.now + bound
	settled := w.now + 2*time.Minute // longer than any orphan timeout and pause
	var look func()
	look = func() {
		why := w.restless()
		switch {
		case why == "":
			w.oracle.end()
			w.done = true
		case w.now >= settled && w.idle():
			w.fail("I6: something waits, everybody is idle, and nothing happens for 10 s: %s", why)
		case w.now >= end:
			w.fail("no rest %v after the faults: %s", bound, why)
		default:
			w.after(500*time.Millisecond, look)
		}
	}
	look()
}

// idle reports whether a task that could run has been waiting for 10 s in which no executor had anything to do.
func (w *world) idle() bool {
	const long = 10 * time.Second
	if w.oracle.activeAt+long > w.now {
		return false
	}
	for _, x := range w.executors {
		if !x.up || x.engine.Running() > 0 {
			return false
		}
	}
	for _, t := range w.oracle.order {
		if t.row.State.Terminal() || t.row.Record != nil || t.row.DueAt.Sub(epoch)+long > w.now {
			continue
		}
		return true
	}
	return false
}

// restless says what is not at rest, or "".
func (w *world) restless() string {
	if w.clients.open > 0 {
		return w.clients.waiting()
	}
	if why := w.oracle.unfinished(); why != "" {
		return why
	}
	for _, x := range w.executors {
		if !x.up {
			return x.name + " is down"
		}
		if n := x.engine.Running() + x.engine.Unconfirmed(); n > 0 {
			return sprint("%s holds %d tries", x.name, n)
		}
	}
	if why := w.unowned(); why != "" {
		return why
	}
	for _, n := range w.nodes {
		if !n.up {
			continue
		}
		for _, s := range n.core.Stats() {
			if !s.Open || s.Running != 0 || s.Backlog != 0 || s.Scheduled != 0 || s.Bytes != 0 {
				return sprint("%s counts %+v", n.name, s)
			}
		}
	}
	for _, wt := range w.clients.watches {
		if !wt.done {
			return sprint("the watch of %s has not ended", short(wt.id))
		}
	}
	return ""
}
