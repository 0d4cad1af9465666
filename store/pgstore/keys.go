package pgstore

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
	"time"

	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// Names are in an index as 64 bits of their SHA-256: a quarter of the bytes, and nobody can make his
// names collide with another's. Should two collide all the same, readers look at the row itself.

func hash(parts ...string) uint64 {
	b := make([]byte, 0, 160)
	for _, p := range parts {
		b = append(binary.AppendUvarint(b, uint64(len(p))), p...)
	}
	sum := sha256.Sum256(b)
	return binary.BigEndian.Uint64(sum[:])
}

// readyPlace is hot.place of a flow's ready rows: below 0, where no partition is; even. That of its plain rows is the next, plainPlace.
func readyPlace(partition uint32, f store.Flow) int64 {
	var p [5]byte
	binary.BigEndian.PutUint32(p[:], partition)
	p[4] = byte(f.Band)
	return int64((hash("ready", string(p[:]), f.Tenant, f.Function) | 1<<63) &^ 1)
}

func plainPlace(ready int64) int64 { return ready | 1 }

// noPlace is where no row is.
const noPlace = math.MaxInt64

// plainAge is how far the sort of a plain row is behind its creation, in microseconds.
var plainAge = task.DefaultPriority * store.AgeStep.Microseconds()

// plain says that a hot row is ready since it was submitted, at the default priority: its sort says when, and nothing else
// about times needs a place.
func plain(t *store.Task) bool {
	us := t.CreatedAt.UnixMicro()
	return t.State == task.Queued && t.Priority == task.DefaultPriority && t.DueAt.UnixMicro() == us && t.FirstDueAt.UnixMicro() == us &&
		us > 0 && us < 1<<52 // where nothing overflows: 1970 to 2112
}

// blockOf is history.block of a task: in the order of ids.
func blockOf(id task.ID) int64 {
	return int64(uint64(id.Partition())<<(48-blockBits) | id.Seq()>>blockBits)
}

// manyTasks is history.sole of a pack of several: in a list, which is read backwards, it comes before all single ones of its block.
const manyTasks = 1 << blockBits

// soleOf is history.sole of a pack of one.
func soleOf(id task.ID) int16 { return int16(id.Seq() & (1<<blockBits - 1)) }

// maskOf is the task's bit in history.mask.
func maskOf(id task.ID) uint64 { return 1 << (id.Seq() & 63) }

// duePlace is hot.place of what waits for its time.
func duePlace(partition uint32) int64 { return int64(partition) }

// listBits is the room for a state in a list key.
const listBits = 15

// listBase is the list key of a function's tasks without their state.
func listBase(tenant, function string) int64 {
	return int64(hash("list", tenant, function)) &^ listBits
}

func labelKey(tenant, label string) int64 { return int64(hash("label", tenant, label)) }

// behind turns a cursor into the place that rows must be behind: the zero one is the start.
func behind(after store.Key) (sort, num int64) {
	if after == (store.Key{}) {
		return math.MinInt64, 0
	}
	return after.Sort, int64(min(after.Seq, math.MaxInt64))
}

// under is the number that tasks of a partition must be under to come before an id.
func under(partition uint32, id task.ID) int64 {
	switch p := id.Partition(); {
	case partition < p:
		return math.MaxInt64
	case partition > p:
		return math.MinInt64
	}
	return int64(id.Seq())
}

const (
	blockBits = 10 // of numbers in a block: see tables blocks and history
	slots     = 4
	slotSize  = 10 * time.Minute // of requests
)

// day is the day of history since 1970.
func day(at time.Time) int32 {
	return int32(min(max(floorDiv(at.Unix(), 86400), 0), 1<<30))
}

func slot(at time.Time) int16 {
	return int16(((floorDiv(at.Unix(), int64(slotSize/time.Second)) % slots) + slots) % slots)
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
