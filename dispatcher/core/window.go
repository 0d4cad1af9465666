package core

import (
	"sort"
	"time"

	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// lane is the part of a flow that one partition holds.
type lane struct {
	flow *flow
	part *partition
	use  *usage // of the flow's tenant in the partition

	ready   int64 // rows that are due and not finished, running ones too: its part of use.ready
	overdue int64 // tasks in memory that are due as well, and not in ready before their next commit

	window []slot // by key; what comes before head is gone
	head   int
	bytes  int // of payload in the window

	// Every ready row with a key up to cursor is in memory. With more, rows may be behind it; without,
	// every ready row is in memory.
	cursor  store.Key
	more    bool
	reading *Load
	left    store.Key // smallest key that was left to the store while reading; zero: none
	gone    []uint64  // sequence numbers that left memory while reading
	failed  bool      // the last read did not work: again when the timer says

	open    bool // has something to run, and may
	parked  bool // waits for a check of the partition's epoch
	turned  bool // waits in the core's turned
	expires bool // its rows in the store may have a start TTL or a deadline
	policy  uint64
	timer   timer
}

type slot struct {
	key store.Key
	it  *item
}

func (l *lane) len() int    { return len(l.window) - l.head }
func (l *lane) first() slot { return l.window[l.head] }
func (l *lane) last() slot  { return l.window[len(l.window)-1] }

func (c *Core) lane(p *partition, f store.Flow) *lane {
	l := p.lanes[f]
	if l == nil {
		fl := c.function(f.Tenant, f.Function).flows[f.Band]
		l = &lane{flow: fl, part: p, use: p.usageOf(fl.function.tenant)}
		l.timer.owner = l
		p.lanes[f] = l
		i := sort.Search(len(fl.lanes), func(i int) bool { return fl.lanes[i].part.id >= p.id })
		fl.lanes = append(fl.lanes, nil)
		copy(fl.lanes[i+1:], fl.lanes[i:])
		fl.lanes[i] = l
		l.more = p.takeover.loading(f)
	}
	return l
}

// before returns the largest key below k.
func before(k store.Key) store.Key {
	k.Seq-- // numbers begin at 1
	return k
}

// room reports whether the window may take a task of the given size that is not in memory yet. An empty
// one always may, unless its flow is paused.
func (c *Core) room(l *lane, size int) bool {
	return l.len() == 0 && l.flow.paused == nil || c.fits(l, size, size+overhead)
}

// roomFor is room for a task in memory: its bytes are counted already.
func (c *Core) roomFor(it *item) bool {
	l := it.lane
	return l.len() == 0 && l.flow.paused == nil || c.fits(l, len(it.t.Payload), 0)
}

// leave decides about a new row on disk whether it stays in the store only. It saves making an item
// for each task of a backlog.
func (c *Core) leave(p *partition, l *lane, t *store.Task) bool {
	if t.State != task.Queued || p.takeover.active {
		return false
	}
	k := t.Key()
	if l.more && k.Compare(l.cursor) > 0 {
		l.skip(k)
		c.refill(l)
		return true
	}
	if c.room(l, inlineSize(c, t)) || l.len() > 0 && k.Compare(l.last().key) < 0 {
		return false
	}
	c.lower(l, k)
	return true
}

func inlineSize(c *Core, t *store.Task) int {
	if len(t.Payload) > c.cfg.InlineBytes {
		return 0
	}
	return len(t.Payload)
}

// skip notes that a row stays in the store.
func (l *lane) skip(k store.Key) {
	if l.reading != nil && (l.left == store.Key{} || k.Compare(l.left) < 0) {
		l.left = k
	}
}

// lower moves the cursor before a row that stays in the store.
func (c *Core) lower(l *lane, k store.Key) {
	l.skip(k)
	if b := before(k); !l.more || b.Compare(l.cursor) < 0 {
		first := !l.more
		if l.cursor, l.more = b, true; first && l.expires {
			c.armPartition(l.part) // to sweep what expires in the store
		}
	}
}

// load makes an item of a row on disk.
func (c *Core) load(p *partition, l *lane, t *store.Task) *item {
	it := &item{t: t, disk: t, part: p, lane: l, size: overhead + len(t.Payload)}
	it.timer.owner = it
	p.items[t.ID.Seq()] = it
	c.bytes += it.size
	return it
}

// leaveMemory forgets an item, wherever it is. Reads that are under way must not bring it back.
func (c *Core) leaveMemory(it *item) {
	p, l := it.part, it.lane
	seq := it.t.ID.Seq()
	if it.place == atWindow {
		c.unwindow(it)
	}
	if it.place == atDue {
		p.due.count--
	}
	if it.place == atBudget {
		c.leaveBudget(it)
	}
	c.timers.unset(&it.timer)
	if it.try != nil {
		c.endTry(it)
	}
	c.unkeep(it)
	it.place = atNowhere
	if p.items[seq] != it {
		return
	}
	delete(p.items, seq)
	it.settle()
	c.bytes -= it.size
	if l.reading != nil {
		l.gone = append(l.gone, seq)
	}
	if p.due.reading != nil {
		p.due.gone = append(p.due.gone, seq)
	}
	if p.sweep.reading != nil && p.sweep.lane == l {
		p.sweep.gone = append(p.sweep.gone, seq)
	}
	if g := p.gets[seq]; g != nil {
		g.stale = true
	}
}

// offer takes a task whose time has come to its window. If there is no room, its row lies in the
// ready index or is moved there, and the task leaves memory.
func (c *Core) offer(it *item) {
	l := it.lane
	k := it.t.Key()
	stored := it.t.State == task.Queued
	// Rows in the store come first; but nothing is read from there while a takeover lasts.
	behind := l.more && k.Compare(l.cursor) > 0 && !it.part.takeover.active
	for !behind && !c.roomFor(it) {
		if l.len() == 0 || l.last().key.Compare(k) < 0 {
			behind = true
			break
		}
		c.evict(l.last().it)
	}
	if behind {
		if !stored {
			c.promote(it)
			return
		}
		c.lower(l, k)
		c.leaveMemory(it)
		c.refill(l)
		return
	}
	it.place = atWindow
	l.insert(slot{k, it})
	l.bytes += len(it.t.Payload)
	if l.flow.paused != nil {
		c.pausedBytes += len(it.t.Payload) + overhead
	}
	c.timers.set(&it.timer, expiry(it.t))
	if l.len() == 1 || !l.open {
		c.updateLane(l)
	}
}

func (l *lane) insert(s slot) {
	if n := len(l.window); n == l.head || l.window[n-1].key.Compare(s.key) < 0 {
		if l.head > 0 && n == cap(l.window) {
			m := copy(l.window, l.window[l.head:])
			clear(l.window[m:])
			l.window, l.head = l.window[:m], 0
		}
		l.window = append(l.window, s)
		return
	}
	i := l.head + sort.Search(l.len(), func(i int) bool { return l.window[l.head+i].key.Compare(s.key) > 0 })
	l.window = append(l.window, slot{})
	copy(l.window[i+1:], l.window[i:])
	l.window[i] = s
}

// unwindow takes an item out of its window.
func (c *Core) unwindow(it *item) {
	l := it.lane
	k := it.t.Key()
	i := l.head + sort.Search(l.len(), func(i int) bool { return l.window[l.head+i].key.Compare(k) >= 0 })
	if i == l.head {
		l.window[i] = slot{}
		if l.head++; l.head == len(l.window) {
			l.window, l.head = l.window[:0], 0
		}
	} else {
		copy(l.window[i:], l.window[i+1:])
		l.window[len(l.window)-1] = slot{}
		l.window = l.window[:len(l.window)-1]
	}
	l.bytes -= len(it.t.Payload)
	if l.flow.paused != nil {
		c.pausedBytes -= len(it.t.Payload) + overhead
	}
	it.place = atCommit
	c.timers.unset(&it.timer)
	if l.len() == 0 {
		c.updateLane(l)
	}
	c.refill(l)
}

// evict makes room: the task with the largest key goes back to the store.
func (c *Core) evict(it *item) {
	c.unwindow(it)
	if it.t.State != task.Queued {
		c.promote(it)
		return
	}
	c.lower(it.lane, it.t.Key())
	c.leaveMemory(it)
}

// promote moves a row from the due index to the ready index.
func (c *Core) promote(it *item) {
	it.place = atCommit
	t := it.edit()
	t.State = task.Queued
	c.change(it, store.Update, t, thenPlaced)
}

// updateLane moves the lane's flow into its pools' order or out of it.
func (c *Core) updateLane(l *lane) {
	open := l.len() > 0 && !l.parked && !l.part.dead
	if open == l.open {
		return
	}
	l.open = open
	if open {
		l.flow.open++
	} else {
		l.flow.open--
	}
	l.flow.pace.waits(c.now, l.flow.open > 0)
	if l.flow.open <= 1 {
		l.flow.update(c)
	}
}

// refill pulls rows from behind the cursor once the window is half empty.
func (c *Core) refill(l *lane) {
	p := l.part
	if !l.more || l.reading != nil || l.failed || l.flow.paused != nil || p.dead || p.takeover.active || p.releasing {
		return
	}
	room := c.cfg.WindowTasks - l.len()
	bytes := min(c.cfg.WindowBytes-l.bytes, c.cfg.NodeWindowBytes-c.bytes)
	if l.len() == 0 {
		bytes = max(bytes, 1)
	} else if room < (c.cfg.WindowTasks+1)/2 || l.bytes > c.cfg.WindowBytes/2 || bytes <= 0 {
		return
	}
	l.left, l.gone = store.Key{}, l.gone[:0]
	f := l.flow.function
	l.reading = &Load{
		Kind: LoadReady, Database: p.db.index, Partition: p.id, Epoch: p.epoch,
		Flow:  store.Flow{Tenant: f.tenant.name, Function: f.name, Band: l.flow.band},
		After: l.cursor, Limit: min(room, c.cfg.Slice), MaxBytes: bytes, Inline: c.cfg.InlineBytes, context: l,
	}
	c.ask(l.reading)
}

func (c *Core) ask(l *Load) {
	fx := c.effects()
	fx.Loads = append(fx.Loads, l)
}

// readAgain is how long a failed read waits.
const readAgain = 500 * time.Millisecond

func (l *lane) alarm(c *Core) {
	l.failed = false
	c.refill(l)
}

// pulled takes the rows of a refill.
func (c *Core) pulled(l *lane, ld *Load, a LoadAnswer) {
	if l.reading != ld || l.part.dead {
		return
	}
	switch {
	case a.Err != nil:
		l.reading, l.failed = nil, true
		c.timers.set(&l.timer, c.now.Add(readAgain))
		return
	case l.cursor != ld.After: // it was lowered meanwhile: rows are missing before these
		l.reading = nil
		c.refill(l)
		return
	}
	// The read counts as under way until all its rows are taken: one of them may push another out of the
	// window, which is noted in left and gone as before.
	more, full := a.More, false
	for _, t := range a.Rows {
		k := t.Key()
		if l.left != (store.Key{}) && k.Compare(l.left) >= 0 {
			break // the row at left may have come after the read; from there on it must be read again
		}
		seq := t.ID.Seq()
		if l.part.items[seq] != nil || contains(l.gone, seq) || l.part.unknown(seq) {
			l.cursor = k
			continue
		}
		if full = !c.room(l, len(t.Payload)); full {
			break
		}
		l.cursor = k
		c.inHand(l.part.id, t.ID)
		c.recovered(l.part, t)
		if full = l.cursor != k; full { // it did not stay
			break
		}
	}
	l.more = more || full || l.left != store.Key{}
	l.reading = nil
	if !full || l.len() == 0 { // else the window has something to do, and asks when it needs more
		c.refill(l)
	}
}

// recovered takes a row into memory that this owner did not have there.
func (c *Core) recovered(p *partition, t *store.Task) *item {
	it := c.load(p, c.lane(p, t.Flow()), t)
	it.timer.owner = it
	if t.Record != nil || t.Cancel != nil || p.takeover.suspects[t.ID] {
		c.adoptRow(it)
	} else {
		c.handles(t)
		c.settle(it)
	}
	return it
}

// handles tells Config.Handles.
func (c *Core) handles(t *store.Task) {
	if c.cfg.Handles != nil {
		c.cfg.Handles(t)
	}
}

// settle puts a task that no try holds where its row says.
func (c *Core) settle(it *item) {
	switch {
	case it.t.Cancel != nil && !it.unsettled:
		c.endCancelled(it, "")
	case it.t.State == task.Queued:
		c.offer(it)
	default:
		c.await(it)
	}
}

func contains(seqs []uint64, seq uint64) bool {
	for _, s := range seqs {
		if s == seq {
			return true
		}
	}
	return false
}
