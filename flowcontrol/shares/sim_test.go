package shares

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/headrace/headrace/flowcontrol/gcra"
)

var (
	flagSeed  = flag.Uint64("seed", 0, "run this seed of TestNeverMore only")
	flagSeeds = flag.Int("seeds", 0, "how many seeds TestNeverMore runs; 0: 60")
)

// The world of the simulation: nodes that die, pause (also beyond their lease, and come back), join, and hand partitions over; messages that are lost, late and
// doubled; views of the membership that lag. Tries run on executors, which outlive nodes.
const (
	simStep  = 10 * time.Millisecond
	simLease = 2 * time.Second
)

var simKey = Key{"acme", "f"}

type world struct {
	t      *testing.T
	r      *rand.Rand
	now    time.Time
	began  time.Time
	nodes  []*simNode // that run
	named  int
	lapsed map[string]time.Time // when the lease of a node that is gone ends
	parts  []*simPart
	limit  Limit
	was    []limitAt // limits of the last seconds
	calm   bool      // no faults
	mail   []letter
	starts []time.Time
	served map[string]int // starts by node, since faults ended
	log    []string
}

type limitAt struct {
	until time.Time
	n     int
}

type simPart struct {
	id       uint32
	epoch    uint64
	owner    *simNode
	openAt   time.Time // when the takeover ends; zero: it has
	freeAt   time.Time // when somebody may take it, if it has no owner
	running  []time.Time
	adopting bool
}

type simNode struct {
	name    string
	pools   *Pools
	lease   Lease
	limit   bool // it has heard of the limit
	view    []string
	viewAt  time.Time // when it looks next
	seq     uint64
	askedAt time.Time // of the newest report
	asked   string    // whom
	nextAt  time.Time
	paused  time.Time // until
	out     time.Time // when it is taken for gone, if it is paused for so long; zero: never
	session int64
	counted map[uint32]int
	lost    map[Opened]int
	ready   int
	holding bool // never wants anything
}

// letter is a message on its way.
type letter struct {
	at     time.Time
	to     string
	report *Report
	answer *Answer
	from   string
	seq    uint64
}

func newWorld(t *testing.T, seed uint64, nodes, parts int, l Limit) *world {
	w := &world{t: t, r: rand.New(rand.NewPCG(seed, 11)), now: time.Unix(1_000_000, 0), limit: l, lapsed: map[string]time.Time{}, served: map[string]int{}}
	w.began = w.now
	for i := range parts {
		w.parts = append(w.parts, &simPart{id: uint32(i), freeAt: w.now})
	}
	for range nodes {
		w.join()
	}
	return w
}

func (w *world) note(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf("%7.2f ", w.now.Sub(w.began).Seconds())+fmt.Sprintf(format, args...))
}

func (w *world) join() *simNode {
	w.named++
	n := &simNode{name: fmt.Sprint("n", w.named), counted: map[uint32]int{}, lost: map[Opened]int{}, ready: 1000, nextAt: w.now.Add(w.upTo(Every))}
	n.pools = NewPools(n.name)
	w.nodes = append(w.nodes, n)
	w.note("%s joins", n.name)
	return n
}

func (w *world) upTo(d time.Duration) time.Duration { return time.Duration(w.r.Int64N(int64(d) + 1)) }

// members are those whose lease lives.
func (w *world) members() (ns []string) {
	for _, n := range w.nodes {
		if !n.isOut(w) {
			ns = append(ns, n.name)
		}
	}
	for n, at := range w.lapsed {
		if at.After(w.now) {
			ns = append(ns, n)
		}
	}
	slices.Sort(ns)
	return ns
}

func (w *world) node(name string) *simNode {
	for _, n := range w.nodes {
		if n.name == name {
			return n
		}
	}
	return nil
}

func (n *simNode) isOut(w *world) bool { return !n.out.IsZero() && !n.out.After(w.now) }

// back is what a node does that was paused beyond its lease: it joins again under its name, with what it knew.
func (n *simNode) back(w *world) {
	if n.isOut(w) {
		n.session++
		n.out = time.Time{}
		w.note("%s is back", n.name)
	}
}

// end kills a node: what it knew is gone, what runs goes on.
func (w *world) end(n *simNode) {
	w.note("%s dies", n.name)
	w.nodes = slices.DeleteFunc(w.nodes, func(o *simNode) bool { return o == n })
	w.lapsed[n.name] = w.now.Add(simLease)
	for _, p := range w.parts {
		if p.owner == n {
			p.owner, p.freeAt, p.openAt = nil, w.now.Add(simLease), time.Time{}
		}
	}
}

func (w *world) running() (n int) {
	for _, p := range w.parts {
		n += len(p.running)
	}
	return n
}

func (n *simNode) inUse() (sum int) {
	for _, k := range n.counted {
		sum += k
	}
	for _, k := range n.lost {
		sum += k
	}
	return sum
}

// strip takes the partitions from a node whose lease has ended.
func (w *world) strip(n *simNode) {
	for _, p := range w.parts {
		if p.owner == n {
			w.note("%s has lost p%d with %d", n.name, p.id, n.counted[p.id])
			n.lost[Opened{p.id, p.epoch}] = n.counted[p.id]
			delete(n.counted, p.id)
			p.owner, p.freeAt, p.openAt = nil, w.now, time.Time{}
		}
	}
}

func (w *world) step() {
	w.now = w.now.Add(simStep)
	for _, n := range w.nodes {
		if n.isOut(w) && n.paused.After(w.now) {
			w.strip(n)
		} else if !n.paused.After(w.now) {
			n.back(w)
		}
	}
	for _, p := range w.parts { // ends are told to the owner, if there is one that counts them
		for i := 0; i < len(p.running); i++ {
			if !p.running[i].After(w.now) {
				p.running = slices.Delete(p.running, i, i+1)
				i--
				if o := p.owner; o != nil && o.counted[p.id] > 0 {
					if p.openAt.IsZero() || !p.adopting {
						o.counted[p.id]--
					}
				}
			}
		}
		if o := p.owner; o != nil && !p.openAt.IsZero() && !p.openAt.After(w.now) && !o.paused.After(w.now) {
			p.openAt, p.adopting = time.Time{}, false
			o.counted[p.id] = len(p.running) // executors have said what they hold
			w.note("%s has p%d open at %d with %d", o.name, p.id, p.epoch, len(p.running))
		}
		if p.owner == nil && !p.freeAt.After(w.now) && len(w.nodes) > 0 {
			n := w.nodes[w.r.IntN(len(w.nodes))]
			if !n.paused.After(w.now) {
				p.owner, p.adopting = n, true
				p.epoch++
				p.openAt = w.now.Add(100*time.Millisecond + w.upTo(1500*time.Millisecond))
				n.counted[p.id] = 0
				w.note("%s acquires p%d at %d", n.name, p.id, p.epoch)
			}
		}
	}
	for i := 0; i < len(w.mail); i++ {
		m := w.mail[i]
		if m.at.After(w.now) {
			continue
		}
		n := w.node(m.to)
		if n != nil && n.paused.After(w.now) {
			continue // it reads it later
		}
		w.mail = slices.Delete(w.mail, i, i+1)
		i--
		if n == nil {
			continue
		}
		if m.report != nil {
			n.see(w)
			a := n.pools.Report(w.now, *m.report)
			w.send(letter{to: m.report.Node, from: n.name, answer: &a, seq: m.report.Seq})
		} else {
			n.answered(w, m)
		}
	}
	for _, n := range slices.Clone(w.nodes) {
		if !n.paused.After(w.now) {
			n.live(w)
		}
	}
}

func (w *world) send(m letter) {
	m.at = w.now.Add(w.upTo(20 * time.Millisecond))
	if !w.calm {
		switch w.r.IntN(12) {
		case 0:
			return
		case 1:
			m.at = w.now.Add(w.upTo(2 * time.Second))
		case 2:
			late := m
			late.at = w.now.Add(w.upTo(time.Second))
			w.mail = append(w.mail, late)
		}
	}
	w.mail = append(w.mail, m)
}

// see looks at the membership from time to time.
func (n *simNode) see(w *world) {
	n.pools.SetSession(w.now, n.session)
	if w.now.Before(n.viewAt) {
		return
	}
	n.viewAt = w.now.Add(w.upTo(400 * time.Millisecond))
	n.view = w.members()
	var ids []uint32
	for _, p := range w.parts {
		ids = append(ids, p.id)
	}
	n.pools.SetView(w.now, n.view, ids)
	if w.r.IntN(3) == 0 || w.calm {
		n.limit = true
	}
	if n.limit {
		n.pools.SetLimit(w.now, simKey, w.limit)
	}
}

func (n *simNode) live(w *world) {
	n.see(w)
	if !n.nextAt.After(w.now) {
		n.nextAt = w.now.Add(Every)
		n.report(w)
	}
	for range w.parts { // it starts what it may
		p := w.parts[w.r.IntN(len(w.parts))]
		if p.owner != n || n.holding || n.ready == 0 {
			continue
		}
		if w.limit.Concurrency > 0 && n.inUse() >= n.lease.Share(w.now) || w.limit.Rate.PerSecond > 0 && n.lease.Tokens(w.now) == 0 {
			continue
		}
		n.lease.Spend()
		n.ready--
		n.counted[p.id]++
		p.running = append(p.running, w.now.Add(20*time.Millisecond+w.upTo(600*time.Millisecond)))
		if w.r.IntN(40) == 0 && !w.calm {
			p.running[len(p.running)-1] = w.now.Add(w.upTo(20 * time.Second))
		}
		w.started(n, p)
	}
	n.ready = 1000
}

// started judges a start.
func (w *world) started(n *simNode, p *simPart) {
	w.served[n.name]++
	w.starts = append(w.starts, w.now)
	w.note("%s starts one in p%d: %d in use of %d, all %d", n.name, p.id, n.inUse(), n.lease.Share(w.now), w.running())
	if w.limit.Concurrency == 0 {
		return
	}
	most := w.limit.Concurrency
	for _, l := range w.was {
		if l.until.After(w.now) {
			most = max(most, l.n)
		}
	}
	if w.running() > most {
		w.t.Fatalf("%d run, the limit is %d\n%s", w.running(), most, w.story())
	}
}

func (w *world) story() string {
	s := ""
	for _, l := range w.log[max(0, len(w.log)-120):] {
		s += l + "\n"
	}
	return s
}

func (n *simNode) report(w *world) {
	if !n.limit {
		n.asked = ""
		return
	}
	n.asked, n.askedAt = Coordinator(simKey, n.view), w.now
	n.seq++
	r := Report{Node: n.name, Seq: n.seq, Known: simKey.Sum(), Uses: []Use{{Key: simKey, InUse: n.inUse(), Ready: n.ready, Share: n.lease.Share(w.now), Tokens: n.lease.Tokens(w.now)}}}
	if n.holding || !slices.ContainsFunc(w.parts, func(p *simPart) bool { return p.owner == n }) {
		r.Uses[0].Ready = 0
	}
	if w.r.IntN(4) == 0 && r.Uses[0].InUse == 0 && r.Uses[0].Share == 0 && !w.calm {
		r.Uses = nil
	}
	for _, p := range w.parts {
		if p.owner == n && p.openAt.IsZero() {
			r.Open = append(r.Open, Opened{p.id, p.epoch})
		}
	}
	for l := range n.lost {
		r.Lost = append(r.Lost, l)
	}
	slices.SortFunc(r.Lost, func(a, b Opened) int { return int(a.Partition) - int(b.Partition) })
	w.send(letter{to: n.asked, from: n.name, report: &r})
}

func (n *simNode) answered(w *world, m letter) {
	if m.seq != n.seq || m.from != n.asked || Coordinator(simKey, n.view) != n.asked {
		return
	}
	n.asked = "" // a second copy says nothing
	for _, g := range m.answer.Grants {
		n.lease.Grant(n.askedAt, g)
	}
	for _, l := range m.answer.Adopted {
		delete(n.lost, l)
	}
}

// handOver gives a partition back: what runs there counts until somebody else has it.
func (w *world) handOver(p *simPart) {
	n := p.owner
	if n == nil || !p.openAt.IsZero() {
		return
	}
	w.note("%s hands p%d over with %d", n.name, p.id, n.counted[p.id])
	n.lost[Opened{p.id, p.epoch}] = n.counted[p.id]
	delete(n.counted, p.id)
	p.owner, p.freeAt = nil, w.now.Add(w.upTo(500*time.Millisecond))
}

func (w *world) fault() {
	switch n := w.nodes[w.r.IntN(len(w.nodes))]; w.r.IntN(9) {
	case 0:
		if len(w.nodes) > 1 {
			w.end(n)
		}
	case 1, 2:
		if len(w.nodes) < 5 {
			w.join()
		}
	case 3:
		for _, p := range w.parts {
			if p.owner == n && !p.openAt.IsZero() {
				return // one that is paused in the middle of a takeover is as good as dead
			}
		}
		n.paused = w.now.Add(w.upTo(simLease - 100*time.Millisecond))
		if w.r.IntN(3) == 0 {
			n.out, n.paused = w.now.Add(simLease), w.now.Add(simLease+w.upTo(3*simLease))
		}
		w.note("%s pauses until %.2f", n.name, n.paused.Sub(w.began).Seconds())
	case 4, 5:
		w.handOver(w.parts[w.r.IntN(len(w.parts))])
	case 6:
		w.was = append(w.was, limitAt{w.now.Add(25 * time.Second), w.limit.Concurrency}) // as long as tries run
		w.limit.Concurrency = 1 + w.r.IntN(12)
		w.note("the limit is %d", w.limit.Concurrency)
	case 7:
		n.holding = !n.holding
	}
}

// Whatever is lost, late or doubled, whoever dies, pauses or joins: no start exceeds the limit; and when the faults are
// over the whole of it is used, and the same by all.
func TestNeverMore(t *testing.T) {
	n := *flagSeeds
	if n == 0 {
		n = 60
	}
	for i := range n {
		seed := uint64(i + 1)
		if *flagSeed != 0 {
			seed, i = *flagSeed, n
		}
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newWorld(t, seed, 4, 8, Limit{Concurrency: 8})
			for range 6000 {
				w.step()
				if w.r.IntN(120) == 0 {
					w.fault()
				}
			}
			w.calm = true
			w.was = append(w.was, limitAt{w.now.Add(25 * time.Second), w.limit.Concurrency})
			w.limit.Concurrency = 10
			for _, n := range w.nodes {
				n.holding = false
			}
			for range 4000 {
				w.step()
			}
			clear(w.served)
			began := len(w.starts)
			for range 1000 {
				w.step()
			}
			if got := len(w.starts) - began; got < 250 { // 10 places, 10 s, 320 ms each
				t.Errorf("%d starts in 10 s when all is well\n%s", got, w.story())
			}
		})
		if i == n {
			break
		}
	}
}

// Starts a second: never more than the rate, the burst and one Life allow, and when all is well no less.
func TestTokens(t *testing.T) {
	for seed := range uint64(10) {
		w := newWorld(t, seed, 4, 8, Limit{Rate: gcra.Rate{PerSecond: 20, Burst: 5}})
		for i := range 4000 {
			w.calm = i > 2000
			w.step()
			if !w.calm && w.r.IntN(200) == 0 && w.r.IntN(2) == 0 && len(w.nodes) > 1 {
				w.end(w.nodes[w.r.IntN(len(w.nodes))])
				w.join()
			}
		}
		for i, at := range w.starts {
			for j := i; j < len(w.starts); j += 7 {
				d := w.starts[j].Sub(at) + Life
				if got, most := j-i+1, 5+20*d.Seconds()+4; float64(got) > most {
					t.Fatalf("seed %d: %d starts within %v, want %.0f at most", seed, got, d, most)
				}
			}
		}
		late := 0
		for _, at := range w.starts {
			if at.Sub(w.began) > 30*time.Second {
				late++
			}
		}
		if late < 185 || late > 225 {
			t.Errorf("seed %d: %d starts in the last 10 s, want 200", seed, late)
		}
	}
}
