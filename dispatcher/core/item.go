package core

import (
	"time"

	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// place says where a task in memory is.
type place uint8

const (
	atCommit  place = iota // its insert, or a decision about it, is queued or on its way to disk
	atWindow               // in its lane's window
	atDue                  // waits for its time
	atBudget               // is a retry that its function's budget can't pay yet
	atSuspect              // was lost twice: waits in its pool for an executor of its own
	atFlight               // a try is pushed, announced, or recorded by an earlier owner
	atNowhere              // has left memory
)

// overhead is what a task in memory costs beside its payload.
const overhead = 1 << 10

// item is one task in memory.
type item struct {
	t     *store.Task // the row as the newest change has it, queued or stored
	disk  *store.Task // the row as the last commit has it; nil: its insert is not known to be on disk
	part  *partition
	lane  *lane
	place place
	pend  int32 // changes queued or on their way
	size  int   // bytes that it counts in memory
	timer timer

	try *try // in flight; nil: none

	// While a decision is on its way: whom to tell that it is on disk.
	answer      *executor
	answerToken task.Token
	deciding    *executor // whose try the decision is about: the roster has it until then

	late        []sessionClaim // claims that are answered after that
	waiting     []Cancel       // asked for while a decision was on its way, or unanswered by R16
	unsettled   bool           // from before the takeover, which has not ended: not to be pushed or cancelled yet
	flying      links          // among its tenant's tries
	onExecutor  links          // among its executor's tries
	young       links          // among the confirmed tries that are not recorded yet
	exclusive   bool           // of the try in flight, when it was pushed (R19)
	overdue     bool           // its time has come, and on disk it still waits for it
	gaveUpStart bool           // the wait of R16 for the start of an unconfirmed push is over
}

// edit returns a copy of the row to be changed.
func (it *item) edit() *store.Task {
	t := *it.t
	return &t
}

// recordState says what the store knows of a try.
type recordState uint8

const (
	notRecorded recordState = iota
	recording               // a record is queued or on its way
	announced               // on disk, before the push
	started                 // on disk, and the executor was told
)

// try is one try in flight.
type try struct {
	token    task.Token
	executor *executor
	session  *session // the executor's newest; nil: out of reach
	attempt  int
	chosenAt time.Time
	pushedAt time.Time
	ackedAt  time.Time // zero: the start is not confirmed
	begunAt  time.Time // when it was taken into flight, or was started before that
	beatAt   time.Time // when the beat that the push names was read
	timeout  time.Duration
	bytes    int // of payload on its way to the executor
	record   recordState
	pushed   bool   // false: only announced
	adopted  bool   // claimed from an earlier owner
	claimed  bool   // false: recorded by an earlier owner, and nobody has claimed it yet
	alone    bool   // the only one on its executor
	unsure   bool   // counted in its partition's unsure
	hello    uint64 // number of the newest hello that claimed it

	recordAt   time.Time // when it shall be recorded; zero: not in the list of the young
	cancelSent bool
	cancelAt   time.Time // when the executor was told to stop

	down   *downstream // of its function, when it began
	permit *limiter    // whose permit it holds; nil: down has no limit
	taken  bool        // counted as accepted by down while it ran
	done   bool        // has succeeded

	slots  int   // that it takes of its executor
	seat   *seat // who was charged for it; nil: nobody
	charge int64

	progress   *headracev1.Progress
	checkpoint []byte
	logs       []*headracev1.LogLine
	logBytes   int
	logsCut    bool
}

// links is a place in a list of items.
type links struct{ prev, next *item }

// items is a doubly linked list through one of the items' links, oldest first.
type items struct {
	first, last *item
	n           int
	of          func(*item) *links
}

func (l *items) add(it *item) {
	k := l.of(it)
	k.prev, k.next = l.last, nil
	if l.last != nil {
		l.of(l.last).next = it
	} else {
		l.first = it
	}
	l.last = it
	l.n++
}

func (l *items) remove(it *item) {
	k := l.of(it)
	if k.prev != nil {
		l.of(k.prev).next = k.next
	} else {
		l.first = k.next
	}
	if k.next != nil {
		l.of(k.next).prev = k.prev
	} else {
		l.last = k.prev
	}
	*k = links{}
	l.n--
}

func flyingLinks(it *item) *links     { return &it.flying }
func youngLinks(it *item) *links      { return &it.young }
func onExecutorLinks(it *item) *links { return &it.onExecutor }

// fifo is a queue that keeps its memory.
type fifo[T any] struct {
	s    []T
	head int
}

func (f *fifo[T]) len() int { return len(f.s) - f.head }

func (f *fifo[T]) push(v T) {
	if f.head > 64 && f.head*2 > len(f.s) {
		n := copy(f.s, f.s[f.head:])
		clear(f.s[n:])
		f.s, f.head = f.s[:n], 0
	}
	f.s = append(f.s, v)
}

func (f *fifo[T]) peek() *T { return &f.s[f.head] }

func (f *fifo[T]) pop() T {
	var zero T
	v := f.s[f.head]
	f.s[f.head] = zero
	f.head++
	if f.head == len(f.s) {
		f.s, f.head = f.s[:0], 0
		if cap(f.s) > 1<<14 {
			f.s = nil // after a burst
		}
	}
	return v
}

// unshift puts vs before everything.
func (f *fifo[T]) unshift(vs []T) {
	rest := f.s[f.head:]
	f.s, f.head = append(append(make([]T, 0, len(vs)+len(rest)), vs...), rest...), 0
}
