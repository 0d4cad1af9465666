package engine

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
)

// desk is an executor with two nodes, each of which keeps its books of credit as the core does.
type desk struct {
	t     *testing.T
	e     *Engine
	now   time.Time
	nodes []*till
}

type till struct {
	id                     SessionID
	credit, sent, returned uint64
	recall                 uint64
}

func (n *till) free() int { return int(n.credit - n.sent - n.returned) }

func newDesk(t *testing.T, slots, nodes int) *desk {
	d := &desk{t: t, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	d.e = New(Config{Slots: slots, Functions: []*headracev1.FunctionDeclaration{{Tenant: "acme", Name: "f"}}})
	for range nodes {
		n := &till{id: d.e.Open(d.now, string(rune('a'+len(d.nodes))))}
		d.nodes = append(d.nodes, n)
		d.e.Receive(d.now, n.id, &headracev1.SessionResponse{Welcome: &headracev1.Welcome{}})
		d.talk()
	}
	return d
}

// talk exchanges messages until nobody has anything to say, and checks that no slot is promised twice.
func (d *desk) talk() {
	d.t.Helper()
	for said := true; said; {
		said = false
		for _, n := range d.nodes {
			m := d.e.Message(d.now, n.id)
			if m == nil {
				continue
			}
			said = true
			d.e.Sent(n.id)
			n.credit = max(n.credit, m.Credit)
			if m.Recall > n.recall {
				n.returned += min(m.Recall-n.recall, uint64(n.free()))
				n.recall = m.Recall
				d.e.Receive(d.now, n.id, &headracev1.SessionResponse{Returned: n.returned, Recalled: n.recall})
			}
		}
	}
	total := 0
	for _, n := range d.nodes {
		total += n.free()
	}
	if total > d.e.cfg.Slots-d.e.used {
		d.t.Fatalf("%d credits out for %d free slots", total, d.e.cfg.Slots-d.e.used)
	}
}

func (d *desk) free() []int {
	out := make([]int, len(d.nodes))
	for i, n := range d.nodes {
		out[i] = n.free()
	}
	return out
}

func (d *desk) want(what string, free ...int) {
	d.t.Helper()
	for i, n := range d.free() {
		if n != free[i] {
			d.t.Fatalf("%s: free %v, want %v", what, d.free(), free)
		}
	}
}

func (d *desk) demand(node, n int) {
	d.e.Receive(d.now, d.nodes[node].id, &headracev1.SessionResponse{Demand: proto.Uint32(uint32(n))})
	d.talk()
}

// The first node gets all slots; the next ones get their even share, which is called back from it.
func TestCreditIsSpreadOverNewNodes(t *testing.T) {
	d := newDesk(t, 9, 1)
	d.want("alone", 9)
	d = newDesk(t, 9, 3)
	d.want("three", 3, 3, 3)
	d = newDesk(t, 1, 3)
	d.want("one slot stays where it is until somebody wants it", 1, 0, 0)
}

// Credit follows demand, and comes back.
func TestCreditFollowsDemand(t *testing.T) {
	d := newDesk(t, 9, 3)
	d.demand(1, 20)
	d.want("one is busy", 0, 9, 0)
	d.demand(2, 2)
	d.want("two are: what has demand is not called back", 0, 9, 0)
	d.demand(1, 0)
	if got := d.free(); got[2] < 2 || got[0]+got[1]+got[2] != 9 {
		t.Fatalf("the second is done: %v", got)
	}
	d = newDesk(t, 1, 3)
	for _, node := range []int{1, 2, 0, 2} { // one slot goes round
		d.demand(node, 1)
		if d.nodes[node].free() != 1 {
			t.Fatalf("node %d wants the slot: %v", node, d.free())
		}
		d.demand(node, 0)
	}
}

// Two nodes that need four slots at once do not keep half of them each: one gets all, then the other.
func TestCreditInPieces(t *testing.T) {
	d := newDesk(t, 4, 2)
	d.want("nobody wants any", 2, 2)
	ask := func(node int, demand, unit uint32) {
		d.e.Receive(d.now, d.nodes[node].id, &headracev1.SessionResponse{Demand: &demand, DemandUnit: unit})
	}
	ask(0, 4, 4)
	ask(1, 4, 4)
	d.talk()
	first := 0
	if d.nodes[1].free() == 4 {
		first = 1
	}
	if d.nodes[first].free() != 4 || d.nodes[1-first].free() != 0 {
		t.Fatalf("both need four: %v", d.free())
	}
	ask(first, 0, 0)
	d.talk()
	if d.nodes[1-first].free() != 4 {
		t.Fatalf("the first needs none any more: %v", d.free())
	}

	// One that can use single slots is not starved by one that needs four, nor the other way round.
	d = newDesk(t, 4, 2)
	ask(0, 4, 4)
	ask(1, 8, 1)
	d.talk()
	turns := [2]int{}
	for range 12 {
		for i, n := range d.nodes {
			unit := [2]int{4, 1}[i]
			if n.free() < unit {
				continue
			}
			turns[i]++
			n.sent += uint64(unit)
			s := d.e.session(n.id)
			s.pushed(unit) // it ends at once
			ask(i, uint32([2]int{4, 8}[i]), uint32(unit))
			d.talk()
		}
	}
	if turns[0] < 3 || turns[1] < 3 {
		t.Errorf("the one that needs four ran %d, the other %d", turns[0], turns[1])
	}
}
