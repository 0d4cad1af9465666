package dispatcher

import (
	"fmt"
	"os"
	"syscall"

	"go.uber.org/zap"

	"github.com/headrace/headrace/internal/telemetry"
	"github.com/headrace/headrace/task"
)

// inHandFile is its name in a data directory.
const inHandFile = "inhand"

// Bounds of inHand.
const (
	condemnAfter = 3  // deaths of the process with a task in hand
	maxInHand    = 64 // tasks that are remembered
)

// inHand remembers over the end of the process which task the core had in hand: a page of a file that is mapped, so what
// was written is there after a kill -9, and costs no more than memory. For a node that nobody else takes over from
// (docs/adr/0025). The task that is in hand at three deaths is condemned.
type inHand struct {
	log  *zap.Logger
	page []byte // the task in hand, then entries of a task and how many deaths it was in hand at
}

const entrySize = len(task.ID{}) + 1

// openInHand reads what the run before has left. The directory is locked.
func openInHand(path string, log *zap.Logger) (_ *inHand, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("open %s: %w", path, err)
		}
	}()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close() // the mapping stays
	size := os.Getpagesize()
	if err := f.Truncate(int64(size)); err != nil {
		return nil, err
	}
	page, err := syscall.Mmap(int(f.Fd()), 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	h := &inHand{log: log, page: page}
	if id := task.ID(h.page[:len(task.ID{})]); !id.IsZero() {
		h.died(id)
	}
	h.Clear()
	return h, nil
}

func (h *inHand) close() error { return syscall.Munmap(h.page) }

// Set is loop.Hand's.
func (h *inHand) Set(id task.ID) { copy(h.page, id[:]) }

// Clear is loop.Hand's.
func (h *inHand) Clear() { clear(h.page[:len(task.ID{})]) }

func (h *inHand) entry(i int) []byte {
	at := len(task.ID{}) + i*entrySize
	return h.page[at : at+entrySize]
}

// died counts a death; the newest entry is the first, the oldest one makes room.
func (h *inHand) died(id task.ID) {
	at, n := maxInHand-1, byte(0)
	for i := range maxInHand {
		if e := h.entry(i); task.ID(e[:len(id)]) == id {
			at, n = i, e[len(id)]
			break
		}
	}
	copy(h.page[len(id)+entrySize:], h.page[len(id):len(id)+at*entrySize])
	first := h.entry(0)
	copy(first, id[:])
	first[len(id)] = min(n+1, condemnAfter)
	h.log.Warn("the process before this one ended with a task in hand", telemetry.Task(id), zap.Int("times", int(first[len(id)])))
}

// condemned returns the tasks of a partition that the process died of. Each is told once; a further death with it in hand
// tells it again, and one that is redriven may be handled.
func (h *inHand) condemned(partition uint32) (ids []task.ID) {
	if h == nil {
		return nil
	}
	for i := range maxInHand {
		e := h.entry(i)
		id := task.ID(e[:entrySize-1])
		if e[len(id)] >= condemnAfter && id.Partition() == partition {
			e[len(id)] = condemnAfter - 1
			ids = append(ids, id)
			h.log.Error("a task is condemned: the process ended with it in hand again and again", telemetry.Task(id), zap.Int("times", condemnAfter))
		}
	}
	return ids
}
