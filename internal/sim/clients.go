package sim

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// clients are the submitters, with the api's part of the way: they try again until they have an answer.
type clients struct {
	w        *world
	requests []*request // all, in the order in which they were first sent
	byID     map[string]*request
	open     int // requests and cancels without an answer
	cancels  []*cancel
	watches  []*watch
	replies  core.ReplyID
	watchIDs core.WatchID
}

// request is one Submit with its retries.
type request struct {
	id        string
	tenant    string
	specs     []*spec
	partition uint32
	maybe     []uint32 // partitions in which it may have been stored
	sends     int
	answered  bool
	items     []core.SubmitItem // of the first answer
}

// spec is one task as the client means it.
type spec struct {
	function  *functionPlan
	clientID  string
	payload   []byte
	priority  uint8
	band      task.Band
	delay     time.Duration
	startTTL  time.Duration
	deadline  time.Duration // since the start of the world; 0: none
	id        task.ID       // once known
	insert    *truth        // the row that it became
	wantWatch bool
}

type cancel struct {
	id       task.ID
	tenant   string
	answered bool
	sends    int
}

// watch is an open wait.
type watch struct {
	id   task.ID
	done bool
}

// begin plans all submits and cancels.
func (cs *clients) begin(w *world) {
	cs.w, cs.byID = w, map[string]*request{}
	for left := w.plan.tasks; left > 0; {
		n := min(1+w.rand.IntN(4), left)
		if w.plan.bursts && w.chance(3) {
			n = min(5+w.rand.IntN(60), left)
		}
		left -= n
		w.after(w.between(0, w.plan.busy*9/10), func() { cs.submit(n) })
	}
	if w.plan.faults[faultCancel] {
		for range 1 + w.plan.tasks/6 {
			w.after(w.between(0, w.plan.busy), cs.cancelSome)
			w.after(w.between(0, w.plan.busy), cs.cancelRunning)
		}
	}
}

func (cs *clients) submit(n int) {
	w := cs.w
	r := &request{id: fmt.Sprintf("%016x", w.rand.Uint64()), partition: uint32(w.rand.IntN(w.plan.partitions))}
	for i := range n {
		f := &w.plan.functions[w.rand.IntN(len(w.plan.functions))]
		if i > 0 && f.tenant != r.tenant {
			f = r.specs[0].function
		}
		r.tenant = f.tenant
		r.specs = append(r.specs, cs.draw(f))
	}
	cs.requests = append(cs.requests, r)
	cs.byID[r.id] = r
	cs.open++
	cs.send(r)
}

func (cs *clients) draw(f *functionPlan) *spec {
	w := cs.w
	s := &spec{function: f, priority: uint8(w.rand.IntN(10)), band: task.Band(w.rand.IntN(task.Bands)), wantWatch: w.chance(6)}
	s.payload = binary.BigEndian.AppendUint64(nil, w.rand.Uint64())
	if w.chance(3) {
		s.payload = append(s.payload, make([]byte, w.rand.IntN(1500))...)
	}
	if w.chance(8) {
		s.clientID = fmt.Sprintf("order-%d", w.rand.IntN(6))
		s.payload = []byte(fmt.Sprintf("payload %d", w.rand.IntN(2)))
	}
	if w.plan.delayed {
		if w.chance(3) {
			s.delay = w.between(0, 40*time.Second)
		}
		if w.chance(8) {
			s.startTTL = w.between(100*time.Millisecond, 20*time.Second)
		}
		if w.chance(8) {
			s.deadline = w.now + s.delay + w.between(time.Second, 40*time.Second)
		}
	}
	return s
}

// rows makes the tasks of a request, as the api does for each send.
func (r *request) rows(now time.Time) (ts []*store.Task) {
	for _, s := range r.specs {
		t := &store.Task{
			Tenant: r.tenant, Function: s.function.name, ClientID: s.clientID, RequestID: r.id,
			Payload: s.payload, PayloadSize: len(s.payload), Priority: s.priority, Band: s.band,
			DueAt: now.Add(s.delay), StartTTL: s.startTTL,
		}
		t.FirstDueAt = t.DueAt
		if s.deadline > 0 {
			t.Deadline = epoch.Add(s.deadline)
		}
		if s.clientID != "" {
			sum := sha256.Sum256(s.payload)
			t.PayloadHash = string(sum[:16])
		}
		ts = append(ts, t)
	}
	return ts
}

// send sends a request to the owner of its partition, or to whom the client takes for it.
func (cs *clients) send(r *request) {
	w := cs.w
	if r.answered {
		return
	}
	r.sends++
	again := func(d time.Duration) { w.after(d, func() { cs.send(r) }) }
	n := w.route(r.partition)
	if n == nil || w.faulty(faultLostAnswer) && w.chance(10) {
		again(w.between(100*time.Millisecond, 2*time.Second)) // never sent, or lost before it was read
		return
	}
	retry := len(r.maybe) > 0
	candidates := slices.Clone(r.maybe)
	if !slices.Contains(r.maybe, r.partition) {
		r.maybe = append(r.maybe, r.partition)
	}
	sends := r.sends
	w.after(w.between(5*time.Second, 8*time.Second), func() { // no answer
		if r.sends == sends {
			cs.send(r)
		}
	})
	if w.faulty(faultLostAnswer) && w.chance(10) {
		w.after(w.between(0, 300*time.Millisecond), func() { // impatient: the first is still on its way
			if r.sends == sends {
				cs.send(r)
			}
		})
	}
	w.on(&n.process, w.around(w.plan.delay), func() {
		cs.replies++
		reply := cs.replies
		n.replies[reply] = func(a core.SubmitAnswer) {
			if w.faulty(faultLostAnswer) && w.chance(5) {
				w.log("", "lost", "the answer to request %s", r.id)
				return
			}
			w.after(w.around(w.plan.delay), func() { cs.answered(r, sends, retry, a) })
		}
		w.log("", "submit", "%s to %s: request %s, %d tasks, partition %d, retry %v", r.tenant, n.name, r.id, len(r.specs), r.partition, retry)
		n.call("submit", func(now time.Time) {
			n.core.Submit(now, &core.Submit{Reply: reply, Tenant: r.tenant, Partition: r.partition, RequestID: r.id,
				Retry: retry, Candidates: candidates, Tasks: r.rows(now)})
		})
	})
}

// answered is the client's end: certain refusals let it choose another partition.
func (cs *clients) answered(r *request, sends int, retry bool, a core.SubmitAnswer) {
	w := cs.w
	if a.Err != nil {
		if r.answered || r.sends != sends {
			return // another send is on its way
		}
		if !retry && !errors.Is(a.Err, core.ErrUnknownOutcome) {
			r.maybe = r.maybe[:0] // certainly stored nowhere
			r.partition = uint32(w.rand.IntN(w.plan.partitions))
		}
		w.after(w.between(50*time.Millisecond, time.Second), func() { cs.send(r) })
		return
	}
	w.oracle.known(r, a)
	if r.answered {
		return
	}
	r.answered = true
	r.items = a.Items
	cs.open--
	for i, it := range a.Items {
		if it.Err == nil {
			r.specs[i].id = it.ID
			if w.faulty(faultCancel) && w.chance(12) { // while it is pushed
				w.after(w.around(w.plan.delay), func() { cs.cancel(it.ID, r.tenant) })
			}
			if r.specs[i].wantWatch {
				cs.watch(it.ID)
			}
		}
	}
}

// watch opens a wait at the owner, until it gives the end.
func (cs *clients) watch(id task.ID) {
	w := cs.w
	n := w.route(id.Partition())
	if n == nil || !n.owns[id.Partition()] {
		w.after(500*time.Millisecond, func() { cs.watch(id) })
		return
	}
	wt := &watch{id: id}
	life, tenure := n.life, n.tenure[id.Partition()]
	w.on(&n.process, w.around(w.plan.delay), func() {
		cs.watchIDs++
		n.watches[cs.watchIDs] = wt
		cs.watches = append(cs.watches, wt)
		watchID := cs.watchIDs
		n.call("watch", func(now time.Time) { n.core.Watch(now, watchID, id) })
	})
	var look func()
	look = func() { // the api opens it again at the next owner
		if wt.done {
			return
		}
		if !n.up || n.life != life || !n.owns[id.Partition()] || n.tenure[id.Partition()] != tenure {
			wt.done = true
			cs.watch(id)
			return
		}
		w.after(time.Second, look)
	}
	w.after(time.Second, look)
}

// cancelSome cancels a task that a client knows.
func (cs *clients) cancelSome() {
	w := cs.w
	if len(cs.requests) == 0 {
		return
	}
	r := cs.requests[w.rand.IntN(len(cs.requests))]
	s := r.specs[w.rand.IntN(len(r.specs))]
	if s.id.IsZero() {
		return
	}
	cs.cancel(s.id, r.tenant)
}

// cancelRunning cancels one of the tasks that run or were pushed a moment ago.
func (cs *clients) cancelRunning() {
	w := cs.w
	var live []*truth
	for _, t := range w.oracle.order {
		if n := len(t.runs); n > 0 && t.runs[n-1].alive() && !t.spec.id.IsZero() {
			live = append(live, t)
		}
	}
	if len(live) > 0 {
		t := live[w.rand.IntN(len(live))]
		cs.cancel(t.row.ID, t.row.Tenant)
	}
}

func (cs *clients) cancel(id task.ID, tenant string) {
	c := &cancel{id: id, tenant: tenant}
	cs.cancels = append(cs.cancels, c)
	cs.open++
	cs.sendCancel(c)
}

func (cs *clients) sendCancel(c *cancel) {
	w := cs.w
	if c.answered {
		return
	}
	c.sends++
	sends := c.sends
	n := w.route(c.id.Partition())
	again := func(d time.Duration) {
		w.after(d, func() {
			if c.sends == sends {
				cs.sendCancel(c)
			}
		})
	}
	if n == nil {
		again(w.between(100*time.Millisecond, time.Second))
		return
	}
	again(w.between(5*time.Second, 8*time.Second))
	w.oracle.cancelAsked(c.id)
	w.on(&n.process, w.around(w.plan.delay), func() {
		cs.replies++
		reply := cs.replies
		n.cancels[reply] = func(a core.CancelAnswer) {
			if w.faulty(faultLostAnswer) && w.chance(5) {
				return
			}
			w.after(w.around(w.plan.delay), func() {
				if c.answered {
					return
				}
				if a.Err != nil {
					again(w.between(50*time.Millisecond, time.Second))
					return
				}
				c.answered = true
				cs.open--
			})
		}
		w.log("", "cancel", "%s at %s", short(c.id), n.name)
		n.call("cancel", func(now time.Time) {
			n.core.Cancel(now, core.Cancel{Reply: reply, Tenant: c.tenant, ID: c.id, Reason: "changed my mind"})
		})
	})
}

// waiting names what has no answer.
func (cs *clients) waiting() string {
	for _, r := range cs.requests {
		if !r.answered {
			return sprint("request %s to partition %d has no answer after %d sends", r.id, r.partition, r.sends)
		}
	}
	for _, c := range cs.cancels {
		if !c.answered {
			return sprint("the cancel of %s has no answer after %d sends", short(c.id), c.sends)
		}
	}
	return ""
}
