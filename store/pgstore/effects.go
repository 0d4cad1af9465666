package pgstore

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// effect is what a batch comes to for one task: several changes of it are one write.
type effect struct {
	part    int           // index in writer.live
	at      int           // of the first change, in its part
	first   *store.Change // says whether the task is new, and what was stored before
	last    *store.Change // says what is stored after
	payload *store.Change // the last that brings the payload along; nil: what is stored stays
	flow    *flow
}

// flow is what is known of a flow of a partition, and what the batch at hand changes of it.
type flow struct {
	flowKey
	place int64
	list  int64
	named bool // in table names
	batch int  // the batch that the following belong to
	n     int  // place in the f_ arrays
	ready int64
	bytes int64
}

type flowKey struct {
	partition uint32
	store.Flow
}

type blockKey struct {
	partition uint32
	block     uint64
	day       int32
}

// totals is what a batch changes of a partition's counters.
type totals struct{ ready, due, bytes int64 }

// maxCached bounds each of the writer's caches; a full one is emptied.
const maxCached = 1 << 17

// writer turns batches into the parameters of commit_v1.
type writer struct {
	columns columns
	batch   int // number of the batch, for flow.batch
	live    []*store.Part
	effects []effect
	index   map[task.ID]int // into effects
	flows   []*flow         // that the batch changes, in order of flow.n
	newest  *flow           // that was asked for last: mostly it is the next one, too
	totals  []totals        // by part
	keyed   []int           // nets in the order of the k_ arrays
	funcs   []function
	packs   []*pack         // of the batch; what is behind its length is used again
	open    map[packKey]int // the pack that grows
	message []byte          // of a task on its way into a pack
	lent    lent

	known     map[flowKey]*flow
	blocks    map[blockKey]bool // in table blocks
	lastBlock blockKey          // one of them
	days      map[int32]bool    // that history has
	naming    []*flow           // become named when the batch is stored
	adding    []blockKey        // likewise
}

type function struct {
	partition uint32
	f         *store.Function
}

func (w *writer) init() {
	w.index = map[task.ID]int{}
	w.open = map[packKey]int{}
	w.known = map[flowKey]*flow{}
	w.blocks = map[blockKey]bool{}
	w.days = map[int32]bool{}
	w.columns.init()
}

// load fills the columns from the parts in live.
func (w *writer) load(at time.Time) error {
	w.begin()
	for i, p := range w.live {
		for j := range p.Changes {
			if err := w.add(i, j, &p.Changes[j]); err != nil {
				return fmt.Errorf("change %d of partition %d: %w", j, p.Partition, err)
			}
		}
		for j := range p.Requests {
			w.request(p.Partition, at, &p.Requests[j])
		}
	}
	today := day(at)
	for i := range w.effects {
		w.write(&w.effects[i], i, today)
	}
	w.writePacks()
	w.writeKeys()
	w.writeParts()
	for _, f := range w.funcs {
		c := &w.columns
		c.gPartition.int64(int64(f.partition))
		c.gTenant.text(f.f.Tenant)
		c.gName.text(f.f.Name)
		c.gBody.encode(func(dst []byte) []byte { return store.EncodeFunction(dst, f.f) })
	}
	return nil
}

func (w *writer) begin() {
	w.columns.reset()
	w.batch++
	w.effects, w.flows, w.keyed, w.funcs = w.effects[:0], w.flows[:0], w.keyed[:0], w.funcs[:0]
	w.naming, w.adding = w.naming[:0], w.adding[:0]
	w.packs = w.packs[:0]
	clear(w.index)
	clear(w.open)
	w.totals = slices.Grow(w.totals[:0], len(w.live))[:len(w.live)]
	clear(w.totals)
	if len(w.known) > maxCached {
		clear(w.known)
		w.newest = nil
	}
	if len(w.blocks) > maxCached {
		clear(w.blocks)
	}
}

// add notes one change.
func (w *writer) add(part, at int, ch *store.Change) error {
	partition := w.live[part].Partition
	switch ch.Op {
	case store.PutFunc:
		f := function{partition, ch.Func}
		same := func(o function) bool {
			return o.partition == partition && o.f.Tenant == f.f.Tenant && o.f.Name == f.f.Name
		}
		if i := slices.IndexFunc(w.funcs, same); i >= 0 {
			w.funcs[i] = f
		} else {
			w.funcs = append(w.funcs, f)
		}
		return nil
	case store.Insert:
		if ch.Task.ID.Partition() != partition {
			return fmt.Errorf("task %s is of another partition", ch.Task.ID)
		}
		w.index[ch.Task.ID] = len(w.effects)
		w.effects = append(w.effects, effect{part: part, at: at, first: ch, last: ch, payload: ch})
		return nil
	case store.Update, store.Finish:
		brings := ch.Op == store.Update && !ch.KeepPayload
		if i, ok := w.index[ch.Task.ID]; ok {
			w.effects[i].last = ch
			if brings {
				w.effects[i].payload = ch
			}
			return nil
		}
		if ch.Task.ID.Partition() != partition || ch.Old == nil {
			return fmt.Errorf("task %s is of another partition, or its old row is not given", ch.Task.ID)
		}
		n := effect{part: part, at: at, first: ch, last: ch}
		if brings {
			n.payload = ch
		}
		w.index[ch.Task.ID] = len(w.effects)
		w.effects = append(w.effects, n)
		return nil
	}
	return fmt.Errorf("operation %d", ch.Op)
}

func (n *effect) inserted() bool { return n.first.Op == store.Insert }

// bytes returns the task's payload where it is in memory.
func (n *effect) bytes() []byte {
	if n.payload != nil {
		return n.payload.Task.Payload
	}
	return n.last.Task.Payload
}

// flow returns the flow of a task, as of this batch.
func (w *writer) flow(partition uint32, t *store.Task) *flow {
	key := flowKey{partition, t.Flow()}
	f := w.newest
	if f == nil || f.flowKey != key {
		f = w.known[key]
	}
	if f == nil {
		f = &flow{flowKey: key, place: readyPlace(partition, key.Flow), list: listBase(t.Tenant, t.Function)}
		w.known[key] = f
	}
	w.newest = f
	if f.batch != w.batch {
		f.batch, f.ready, f.bytes = w.batch, 0, 0
		w.flows = append(w.flows, f)
		if !f.named {
			w.naming = append(w.naming, f)
			w.columns.nTenant.text(t.Tenant)
			w.columns.nFunction.text(t.Function)
			w.columns.nPartition.int64(int64(partition))
			w.columns.nBand.int16(int16(t.Band))
		}
	}
	return f
}

// count adds a hot row to the counters, or takes it away.
func (w *writer) count(part int, f *flow, t *store.Task, sign int64) {
	c := &w.totals[part]
	size := sign * int64(t.PayloadSize)
	c.bytes += size
	if !t.Ready() {
		c.due += sign
		return
	}
	c.ready += sign
	f.ready += sign
	f.bytes += size
}

// write adds one task to the columns of what happens to it.
func (w *writer) write(n *effect, at int, today int32) {
	c, t := &w.columns, n.last.Task
	partition := w.live[n.part].Partition
	f := w.flow(partition, t)
	n.flow = f
	ended := t.State.Terminal()
	if n.inserted() {
		if t.ClientID != "" {
			w.keyed = append(w.keyed, at)
		}
	} else {
		old := n.first.Old
		g := f
		if old.Flow() != f.Flow {
			g = w.flow(partition, old)
		}
		w.count(n.part, g, old, -1)
	}
	if !ended {
		w.count(n.part, f, t, +1)
	}
	created := t.CreatedAt.UnixMicro()
	if ended {
		w.block(partition, t.ID.Seq(), today)
	}
	for k, v := range t.Labels {
		w.label(n, labelKey(t.Tenant, k+"="+v), created, t.ID, ended)
	}
	switch {
	case ended:
		if !n.inserted() {
			c.dID.raw(t.ID[:])
		}
		w.pack(n)
	case n.inserted():
		c.iID.raw(t.ID[:])
		c.iNum.int64(int64(t.ID.Seq()))
		w.hot(n, &c.iPlace, &c.iSort, &c.iList, &c.iCreated, &c.iMark, &c.iBody)
		c.iPayload.data(n.bytes())
	default:
		c.uID.raw(t.ID[:])
		w.hot(n, &c.uPlace, &c.uSort, &c.uList, &c.uCreated, &c.uMark, &c.uBody)
		c.uKeep.bool(n.payload == nil)
		if n.payload != nil {
			c.uPayload.data(n.payload.Task.Payload)
		} else {
			c.uPayload.data(nil)
		}
	}
}

// hot adds what an index needs of a hot row, and its body.
func (w *writer) hot(n *effect, place, sort, list, created, mark, body *array) {
	t, partition := n.last.Task, w.live[n.part].Partition
	isPlain := plain(t)
	switch {
	case isPlain:
		place.int64(plainPlace(n.flow.place))
		sort.int64(t.Key().Sort)
		list.null()
		created.null()
	case t.Ready():
		place.int64(n.flow.place)
		sort.int64(t.Key().Sort)
	default:
		place.int64(duePlace(partition))
		sort.int64(t.DueAt.UnixMicro())
	}
	if !isPlain {
		list.int64(n.flow.list | int64(t.State))
		created.int64(t.CreatedAt.UnixMicro())
	}
	if t.Record != nil || t.Cancel != nil {
		mark.int64(int64(partition))
	} else {
		mark.null()
	}
	body.encode(func(dst []byte) []byte { return store.EncodeKeyed(dst, t, !isPlain) })
}

// pack adds a task that has ended to a pack. Its payload is kept where it is a dead letter; then, and where the task may
// turn out to be refused, it is alone.
func (w *writer) pack(n *effect) {
	t := n.last.Task
	w.message = store.EncodeEnded(w.message[:0], t)
	key := packKey{n.flow, t.State, blockOf(t.ID), t.CreatedAt.UnixMicro() >> packSpan}
	keeps := t.State == task.Failed && t.PayloadSize > 0
	if keeps || n.inserted() && t.ClientID != "" {
		p := w.newPack(key)
		p.add(t, w.message)
		p.id = t.ID
		p.payload = nil
		if keeps {
			p.payload = n.bytes()
			p.move = n.payload == nil && len(t.Payload) != t.PayloadSize
		}
		return
	}
	i, ok := w.open[key]
	if !ok || w.packs[i].full(len(w.message)) {
		w.open[key] = len(w.packs)
		w.newPack(key)
	}
	w.packs[w.open[key]].add(t, w.message)
}

func (w *writer) newPack(k packKey) *pack {
	if len(w.packs) == cap(w.packs) {
		w.packs = append(w.packs, nil)
	} else {
		w.packs = w.packs[:len(w.packs)+1]
	}
	at := &w.packs[len(w.packs)-1]
	if *at == nil {
		*at = new(pack)
	}
	(*at).reset(k)
	return *at
}

// writePacks adds the packs to the columns of history. A look-up reads all packs of a task's block, so that few tasks are
// none: they go alone.
func (w *writer) writePacks() {
	var alone pack
	for _, p := range w.packs {
		if p.n == 1 || p.n > len(p.first) {
			w.writePack(p)
			continue
		}
		for _, t := range p.first[:p.n] {
			alone.reset(p.packKey)
			w.message = store.EncodeEnded(w.message[:0], t)
			alone.add(t, w.message)
			w.writePack(&alone)
		}
	}
}

func (w *writer) writePack(p *pack) {
	c := &w.columns
	if p.id.IsZero() {
		c.hID.null()
	} else {
		c.hID.raw(p.id[:])
	}
	c.hBlock.int64(p.block)
	c.hList.int64(p.flow.list | int64(p.state))
	c.hCreated.int64(p.newest)
	c.hMask.int64(int64(p.mask))
	c.hSpan.int32(int32(p.newest - p.oldest))
	if p.n == 1 {
		c.hSole.int16(soleOf(p.first[0].ID))
	} else {
		c.hSole.int16(manyTasks)
	}
	c.hKeyed.bool(p.keyed)
	c.hMove.bool(p.move)
	c.hBody.raw(p.b)
	c.hPayload.data(p.payload)
	if cap(p.b) > packBytes*4 {
		p.b, p.last = nil, nil
	}
	clear(p.first[:])
}

// label adds the entries of one label. The order of a map decides the order of rows, and nothing else.
func (w *writer) label(n *effect, key, created int64, id task.ID, ended bool) {
	c := &w.columns
	add := func(l, at, ids *array) { l.int64(key); at.int64(created); ids.raw(id[:]) }
	switch {
	case ended:
		if !n.inserted() {
			add(&c.xLabel, &c.xCreated, &c.xID)
		}
		add(&c.mLabel, &c.mCreated, &c.mID)
	case n.inserted():
		add(&c.lLabel, &c.lCreated, &c.lID)
	}
}

// block notes that tasks of a block of numbers ended today.
func (w *writer) block(partition uint32, seq uint64, today int32) {
	k := blockKey{partition, seq >> blockBits, today}
	if n := len(w.adding); n > 0 && w.adding[n-1] == k || w.lastBlock == k {
		return
	}
	if w.blocks[k] {
		w.lastBlock = k
		return
	}
	w.adding = append(w.adding, k)
	w.columns.bPartition.int64(int64(partition))
	w.columns.bBlock.int64(int64(k.block))
}

// writeKeys adds the client ids that are to be taken, in the order of the keys; of equal ones the
// first of the batch is the first.
func (w *writer) writeKeys() {
	slices.SortStableFunc(w.keyed, func(i, j int) int {
		a, b := w.effects[i].first.Task, w.effects[j].first.Task
		return cmp.Or(strings.Compare(a.Tenant, b.Tenant), strings.Compare(a.ClientID, b.ClientID), cmp.Compare(i, j))
	})
	for i, f := range w.flows {
		f.n = i + 1
	}
	c := &w.columns
	for _, i := range w.keyed {
		n := &w.effects[i]
		t := n.last.Task
		c.kTenant.text(t.Tenant)
		c.kClient.raw([]byte(t.ClientID))
		c.kID.raw(t.ID[:])
		c.kPart.int32(int32(n.part + 1))
		c.kFlow.int32(int32(n.flow.n))
		var ready, due, size int64
		if !t.State.Terminal() {
			size = int64(t.PayloadSize)
			if t.Ready() {
				ready = 1
			} else {
				due = 1
			}
		}
		c.kReady.int64(ready)
		c.kDue.int64(due)
		c.kBytes.int64(size)
	}
}

// writeParts adds epochs and counters.
func (w *writer) writeParts() {
	c := &w.columns
	parts := make(map[uint32]int32, len(w.live))
	for i, p := range w.live {
		parts[p.Partition] = int32(i + 1)
		t := w.totals[i]
		c.pID.int64(int64(p.Partition))
		c.pEpoch.int64(int64(p.Epoch))
		c.pFloor.int64(int64(p.Floor))
		c.pRelease.bool(p.Release)
		c.pSeq.int64(int64(p.Seq))
		c.pReady.int64(t.ready)
		c.pDue.int64(t.due)
		c.pBytes.int64(t.bytes)
	}
	for _, f := range w.flows {
		if f.ready == 0 && f.bytes == 0 && len(w.keyed) == 0 {
			continue // with client ids all stay: k_flow counts them
		}
		c.fPart.int32(parts[f.partition])
		c.fTenant.text(f.Tenant)
		c.fFunction.text(f.Function)
		c.fBand.int16(int16(f.Band))
		c.fReady.int64(f.ready)
		c.fBytes.int64(f.bytes)
	}
}

func (w *writer) request(partition uint32, at time.Time, r *store.Request) {
	q := *r
	if q.At.IsZero() {
		q.At = at
	}
	c := &w.columns
	c.rSlot.int16(slot(q.At))
	c.rPartition.int64(int64(partition))
	c.rTenant.text(q.Tenant)
	c.rID.raw([]byte(q.ID))
	c.rAt.int64(q.At.UnixMicro())
	c.rBody.encode(func(dst []byte) []byte { return store.EncodeRequest(dst, &q) })
}

// forget drops what is remembered of the database's contents.
func (w *writer) forget() {
	clear(w.known)
	w.newest = nil
	clear(w.blocks)
	w.lastBlock = blockKey{}
	clear(w.days)
}

// stored notes that the batch is on disk.
func (w *writer) stored() {
	for _, f := range w.naming {
		f.named = true
	}
	for _, k := range w.adding {
		w.blocks[k] = true
	}
}
