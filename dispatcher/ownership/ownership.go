// Package ownership decides what a node does about the partitions whose keys it wins and loses: when it
// acquires one, gives it up, hands it over, gives its key back. It is a plain state machine between the
// membership (who ought to own) and the loop (who serves); package dispatcher runs it with goroutines,
// internal/sim with a seed. Acquire (acquire.go) is R10, in order.
//
//	        key won            acquired: look, raise, look, load (R10)
//	none ────────────▶ held ───────────────────────────────────────▶ owned
//	  ▲                  ▲                                             │ fenced, unknown commit, panic
//	  │ key lost         └──────────────── again, after a pause ───────┤
//	  └────────────────────────────────────────────────────────────────┘ released, key lost
//
// A partition has at most one acquisition under way, wanted or not: its end is waited for. It makes nothing
// safe; the epoch in the store does.
package ownership

import (
	"maps"
	"slices"
	"time"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/internal/mutant"
)

// Pauses before a lost partition is acquired again. Losing one is normal once; again and again it is not.
const (
	pauseBase = 50 * time.Millisecond
	pauseMax  = 5 * time.Second
	calmAfter = time.Minute // owned for this long, the count begins anew
)

// Trust is how long a node may push and answer after it sent a keep-alive that was answered: 0.9·TTL − 500 ms
// (design §5). What is left of the TTL is for clocks that differ, and for what is on its way.
func Trust(ttl time.Duration) time.Duration { return ttl*9/10 - 500*time.Millisecond }

// Table is what a node knows of its partitions. All methods belong to one goroutine. New with New.
type Table struct {
	parts    map[uint32]*part
	draining bool
	fx       Effects
}

// part is one partition.
type part struct {
	assigned  bool // the leader wants it here
	held      bool // its key is ours
	owned     bool // the loop has it
	releasing bool // on its way out: by the loop, then by its key
	acquiring bool // an acquisition is under way, or paused before it begins
	failures  int  // since it was last owned for a while
	ownedAt   time.Time
}

// Start asks for an acquisition; Ended answers it, always.
type Start struct {
	Partition uint32
	Pause     time.Duration // before it begins
}

// Effects is what is to be done, kind by kind in the order of the fields.
type Effects struct {
	Acquire  []Start
	Cancel   []uint32        // the acquisition under way is not wanted any more; Ended comes all the same
	Acquired []core.Acquired // to the loop
	Drop     []uint32        // the loop drops it, and says Lost
	Release  []uint32        // the loop hands it over, and says Released, or Lost
	GiveBack []uint32        // give the key back, as often as it takes; KeyLost follows
}

// New returns a table without partitions.
func New() *Table { return &Table{parts: map[uint32]*part{}} }

// Take returns what the calls since the last one ask for.
func (t *Table) Take() Effects {
	fx := t.fx
	t.fx = Effects{}
	return fx
}

func (t *Table) part(id uint32) *part {
	p := t.parts[id]
	if p == nil {
		p = &part{}
		t.parts[id] = p
	}
	return p
}

// Assigned says that the leader wants a partition here.
func (t *Table) Assigned(id uint32) { t.part(id).assigned = true }

// Unassigned says that the leader wants it elsewhere.
func (t *Table) Unassigned(id uint32) {
	p := t.part(id)
	p.assigned = false
	t.release(id, p)
}

// GiveUp says that the partition's database is out of this node's reach: if the leader wants the partition elsewhere, it is
// not handed over but dropped, as by a crash. Its next owner fences this one.
func (t *Table) GiveUp(id uint32) {
	p := t.part(id)
	switch {
	case p.assigned || !p.held:
	case p.acquiring:
		t.fx.Cancel = append(t.fx.Cancel, id)
	case p.owned:
		p.releasing = true
		t.fx.Release = slices.DeleteFunc(t.fx.Release, func(r uint32) bool { return r == id })
		t.fx.Drop = append(t.fx.Drop, id)
	}
}

// Won says that the key is this node's.
func (t *Table) Won(id uint32) {
	p := t.part(id)
	p.held = true
	t.acquire(id, p, 0)
}

// KeyLost says that it is not any more.
func (t *Table) KeyLost(id uint32) {
	p := t.part(id)
	p.held, p.releasing = false, false
	if p.acquiring {
		t.fx.Cancel = append(t.fx.Cancel, id)
	}
	if p.owned {
		t.fx.Drop = append(t.fx.Drop, id)
	}
}

// Lost says that the loop has dropped a partition. Crashed: its handling panicked, which it may do again.
func (t *Table) Lost(now time.Time, id uint32, crashed bool) {
	p := t.part(id)
	p.owned = false
	if p.releasing {
		t.giveBack(id, p)
		return
	}
	if now.Sub(p.ownedAt) > calmAfter {
		p.failures = 0
	}
	pause := time.Duration(0)
	if p.failures > 0 || crashed {
		pause = p.pause()
	}
	p.failures++
	if !mutant.On("fenced-stops") {
		t.acquire(id, p, pause)
	}
}

// Released says that the loop has handed a partition over.
func (t *Table) Released(id uint32) {
	p := t.part(id)
	p.owned = false
	t.giveBack(id, p)
}

// Ended takes what an acquisition found, or why it failed.
func (t *Table) Ended(now time.Time, id uint32, a core.Acquired, err error) {
	p := t.part(id)
	p.acquiring = false
	switch {
	case !p.held:
	case t.draining || !p.assigned && err != nil:
		t.giveBack(id, p) // the epoch may be raised; the next owner raises it again
	case err != nil:
		p.failures++
		t.acquire(id, p, p.pause())
	default:
		p.owned, p.ownedAt, p.releasing = true, now, false
		t.fx.Acquired = append(t.fx.Acquired, a)
		if !p.assigned { // taken away meanwhile
			t.release(id, p)
		}
	}
}

// Drain releases everything, for good; Idle tells when that is done.
func (t *Table) Drain() {
	t.draining = true
	for _, id := range slices.Sorted(maps.Keys(t.parts)) {
		p := t.parts[id]
		if p.acquiring {
			t.fx.Cancel = append(t.fx.Cancel, id)
		}
		t.release(id, p)
	}
}

// Serves reports whether every partition that is assigned here is owned, and how many these are.
func (t *Table) Serves() (all bool, assigned int) {
	all = !t.draining
	for _, p := range t.parts {
		if p.assigned {
			assigned++
			all = all && p.owned
		}
	}
	return all, assigned
}

// Idle reports whether nothing is owned, nor on its way in or out.
func (t *Table) Idle() bool {
	for _, p := range t.parts {
		if p.owned || p.acquiring || p.held && p.releasing {
			return false
		}
	}
	return true
}

// release starts the hand-over of a partition that the loop has.
func (t *Table) release(id uint32, p *part) {
	if p.owned && p.held && !p.releasing { // not held: it is being dropped
		p.releasing = true
		t.fx.Release = append(t.fx.Release, id)
	}
}

func (t *Table) giveBack(id uint32, p *part) {
	if !p.held {
		return
	}
	p.releasing = true
	t.fx.GiveBack = append(t.fx.GiveBack, id)
}

// acquire starts an acquisition unless there is one, or no reason for it. A key that comes while the node
// drains goes back at once.
func (t *Table) acquire(id uint32, p *part, pause time.Duration) {
	switch {
	case !p.held || p.owned || p.acquiring || p.releasing:
	case t.draining:
		t.giveBack(id, p)
	default:
		p.acquiring = true
		t.fx.Acquire = append(t.fx.Acquire, Start{id, pause})
	}
}

func (p *part) pause() time.Duration { return min(pauseBase<<min(p.failures, 10), pauseMax) }
