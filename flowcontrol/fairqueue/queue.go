package fairqueue

// tagShift is the fixed point of virtual times.
const tagShift = 20

// rebaseAt is the virtual time at which a queue starts again from zero.
const rebaseAt = 1 << 62

// An Entry is one tenant's place in a Queue. Make it with NewEntry; it belongs to one queue.
type Entry struct {
	Owner any // the caller's own

	start     int64  // virtual start of its next task; where its last one ended while it is not queued
	remainder int64  // of the last division by weight
	weight    int64  // ≥ 1
	arrival   uint64 // breaks ties: who came first goes first
	index     int    // in the heap; -1: not queued
	era       uint32 // of start: an older era is before everything
}

// NewEntry returns a place for an owner of the given weight; weights below 1 count as 1.
func NewEntry(owner any, weight int) *Entry {
	return &Entry{Owner: owner, weight: int64(max(weight, 1)), index: -1}
}

// Queued reports whether the entry waits in its queue.
func (e *Entry) Queued() bool { return e.index >= 0 }

// Queue orders entries. The zero value is empty and ready. Every operation is O(log entries).
type Queue struct {
	heap     []*Entry
	now      int64 // virtual time: the start of what was served last
	arrivals uint64
	era      uint32
}

// Len returns how many entries wait.
func (q *Queue) Len() int { return len(q.heap) }

// Add lets an entry that has something to run wait for its turn.
func (q *Queue) Add(e *Entry) {
	if e.index >= 0 {
		return
	}
	if e.era != q.era {
		e.start, e.era = 0, q.era
	}
	e.start = max(e.start, q.now)
	q.arrivals++
	e.arrival = q.arrivals
	e.index = len(q.heap)
	q.heap = append(q.heap, e)
	q.up(e.index)
}

// Remove takes an entry out that has nothing to run any more. It keeps what it has used: who leaves
// and returns at once gains nothing.
func (q *Queue) Remove(e *Entry) {
	i := e.index
	if i < 0 {
		return
	}
	last := len(q.heap) - 1
	q.heap[i] = q.heap[last]
	q.heap[i].index = i
	q.heap[last] = nil
	q.heap = q.heap[:last]
	if i < last {
		q.fix(i)
	}
	e.index = -1
}

// Min returns whose turn it is; nil if nobody waits.
func (q *Queue) Min() *Entry {
	if len(q.heap) == 0 {
		return nil
	}
	return q.heap[0]
}

// Charge says that a task of the given cost of the waiting entry e was served.
func (q *Queue) Charge(e *Entry, cost int64) {
	q.now = max(q.now, e.start)
	e.add(cost)
	q.arrivals++
	e.arrival = q.arrivals
	if e.index >= 0 {
		q.fix(e.index)
	}
	if q.now >= rebaseAt {
		q.rebase()
	}
}

// Correct adds the difference between the real and the expected cost of a task served before. It
// never puts an entry before the queue's time: what was reserved for nothing is no credit.
func (q *Queue) Correct(e *Entry, difference int64) {
	if e.era != q.era {
		return
	}
	e.add(difference)
	e.start = max(e.start, q.now)
	if e.index >= 0 {
		q.fix(e.index)
	}
}

// SetWeight changes the weight; what it has used stays what it was. Weights below 1 count as 1.
func (e *Entry) SetWeight(weight int) { e.weight = int64(max(weight, 1)) }

func (e *Entry) add(cost int64) {
	total := cost<<tagShift + e.remainder
	e.start += total / e.weight
	e.remainder = total % e.weight
}

// rebase moves all virtual times down. Entries that don't wait learn of it by the era: what they have
// used lies in the past by then.
func (q *Queue) rebase() {
	for _, e := range q.heap {
		e.start -= q.now
		e.era = q.era + 1
	}
	q.now = 0
	q.era++
}

func (q *Queue) less(a, b *Entry) bool {
	return a.start < b.start || a.start == b.start && a.arrival < b.arrival
}

func (q *Queue) fix(i int) {
	if !q.down(i) {
		q.up(i)
	}
}

func (q *Queue) up(i int) {
	e := q.heap[i]
	for i > 0 {
		parent := (i - 1) / 2
		if !q.less(e, q.heap[parent]) {
			break
		}
		q.heap[i] = q.heap[parent]
		q.heap[i].index = i
		i = parent
	}
	q.heap[i] = e
	e.index = i
}

func (q *Queue) down(i int) (moved bool) {
	e := q.heap[i]
	for {
		child := 2*i + 1
		if child >= len(q.heap) {
			break
		}
		if child+1 < len(q.heap) && q.less(q.heap[child+1], q.heap[child]) {
			child++
		}
		if !q.less(q.heap[child], e) {
			break
		}
		q.heap[i] = q.heap[child]
		q.heap[i].index = i
		i, moved = child, true
	}
	q.heap[i] = e
	e.index = i
	return moved
}
