package shard

import (
	"fmt"
	"slices"
	"time"
)

// TenureCalm is how long an owner must have had a partition for its death to say nothing of the partition
// (design.md §5).
const TenureCalm = 2 * time.Minute

// What a row of deaths means.
const (
	carefulFrom = 2 // the partition is quarantined: what is handed to the core is noted before
	aloneFrom   = 3 // and opened by a node that has nothing else, after a back-off
)

// Back-off of a quarantined partition: after the third death, doubled with each further one.
const (
	backoffBase = 5 * time.Second
	backoffMax  = 10 * time.Minute
)

// maxDeaths bounds what is remembered.
const maxDeaths = 32

// Death is the end of an owner that had not had its partition for TenureCalm.
type Death struct {
	Node NodeID    `json:"node"`
	Addr string    `json:"addr,omitempty"` // the node's address, by which its next run is known
	At   time.Time `json:"at"`             // when it was noticed, by the clock of who did; for people
}

// Tenure is what the registry remembers of a partition's last owner and of those before it that died early. A
// claim writes it, on no lease; the owner removes it once it has had the partition for TenureCalm, or when it
// hands it over. So no clocks are compared: an early death is an open tenure without an owner key.
type Tenure struct {
	Node NodeID `json:"node"`           // who claimed last
	Addr string `json:"addr,omitempty"` // its address, by which its next run is known
	Open bool   `json:"open,omitempty"` // claimed, and not handed over
	// Deaths in a row, oldest first; without that of Node, until the next claim.
	Deaths []Death `json:"deaths,omitempty"`
	// Passed: the owner is alive although everything suspicious was handled.
	Passed bool `json:"passed,omitempty"`
	// NextTry is when the leader gives it to a node again, by its clock: after the TriedAfter-th death.
	NextTry    time.Time `json:"next_try,omitzero"`
	TriedAfter int       `json:"tried_after,omitempty"`
	// Caught is what Node has caught of it, and survived.
	Caught Caught `json:"caught,omitzero"`
}

// Caught are panics over a partition's tasks that its owner caught since it was last calm: each time it dropped the
// partition and opens it again, after a back-off.
type Caught struct {
	Panics int       `json:"panics,omitempty"`
	Task   string    `json:"task,omitempty"` // in hand at the last one; "": none, or nobody knows
	Next   time.Time `json:"next,omitzero"`  // when it is opened again, by the owner's clock
	Passed bool      `json:"passed,omitempty"`
}

// DeathsBut counts the early deaths in a row. Who is alive has not died: it was paused, or cut off. held: the
// partition has its owner, Node.
func (t Tenure) DeathsBut(alive func(NodeID) bool, held bool) int {
	return len(t.deaths(alive, held, time.Time{}))
}

func (t Tenure) deaths(alive func(NodeID) bool, held bool, now time.Time) []Death {
	ds := slices.DeleteFunc(slices.Clone(t.Deaths), func(d Death) bool { return alive(d.Node) })
	if t.Open && !held && !alive(t.Node) {
		ds = append(ds, Death{t.Node, t.Addr, now})
	}
	return ds
}

// Addrs returns the addresses of the last owner and of those that died.
func (t Tenure) Addrs() (list []string) {
	for _, d := range t.Deaths {
		list = append(list, d.Addr)
	}
	return append(list, t.Addr)
}

// Claim is the tenure of the next owner; nobody holds the partition now.
func (t Tenure) Claim(node NodeID, addr string, alive func(NodeID) bool, now time.Time) Tenure {
	ds := t.deaths(alive, false, now)
	next := Tenure{Node: node, Addr: addr, Open: true, Deaths: ds[max(0, len(ds)-maxDeaths):]}
	next.Passed = t.Passed && len(ds) <= len(t.Deaths)
	return next
}

// HandOver is what an orderly end leaves, and false if that is nothing.
func (t Tenure) HandOver() (Tenure, bool) {
	t.Open, t.Caught = false, Caught{}
	return t, t.Careful()
}

// Careful reports whether the owner notes what it handles.
func (t Tenure) Careful() bool { return len(t.Deaths) >= carefulFrom }

// Alone reports whether a partition with that many deaths is opened by a node that has nothing else, after
// Backoff.
func (t Tenure) Alone(deaths int) bool {
	return deaths >= aloneFrom && !(t.Passed && deaths <= len(t.Deaths))
}

// Quarantined reports whether its state is to be called so; why is for people. owner holds the partition; "": nobody.
func (t Tenure) Quarantined(deaths int, owner NodeID) (why string, is bool) {
	if c := t.Caught; c.Panics > 0 && owner == t.Node {
		why = c.String()
		if !c.Passed {
			return why, true
		}
	}
	if deaths < carefulFrom {
		return why, false
	}
	return fmt.Sprintf("%d owners in a row died within %v of opening it", deaths, TenureCalm), !(t.Passed && deaths <= len(t.Deaths))
}

// String says what was caught, for people.
func (c Caught) String() string {
	s := "its owner caught a panic over it"
	if c.Panics > 1 {
		s = fmt.Sprintf("its owner caught %d panics over it", c.Panics)
	}
	if c.Task != "" {
		s += "; at the last one it had task " + c.Task + " in hand"
	}
	return s
}

// Backoff is how long a partition stays without an owner after that many deaths.
func Backoff(deaths int) time.Duration {
	if deaths < aloneFrom {
		return 0
	}
	return min(backoffBase<<min(deaths-aloneFrom, 20), backoffMax)
}
