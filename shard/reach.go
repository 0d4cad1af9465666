package shard

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// CutOff says that a node can't reach one of its databases, in its own words.
type CutOff struct {
	Database string    `json:"database"`
	Since    time.Time `json:"since"` // its last answer; by the node's clock, for people
	// Back: it answers again, and has to go on for a while. Until then the node keeps what it has of it, and gets nothing more.
	Back bool `json:"back,omitempty"`
}

// Bounds of Reach.
const (
	reachParts   = 5                // looks in the time after which a silent database counts as out of reach
	dwellFactor  = 2                // how often that time a database has to answer until it is within reach again
	dwellDoubles = 5                // how often that doubles while it comes and goes
	dwellCalm    = 10 * time.Minute // within reach for so long, it begins anew
)

// Reach is whether a node reaches one of its databases, by what its calls tell. It goes out of reach when nothing has
// succeeded for a time although something was tried, and is back when everything has succeeded for
// twice as long; that doubles, up to 32 times, while it comes and goes. Make it with NewReach.
type Reach struct {
	after time.Duration

	lastOK   time.Time // when the newest success was sent
	failedAt time.Time // when the first failure since came back; zero: none
	probedAt time.Time // when the look that is under way was sent; zero: none is
	tickedAt time.Time

	cut     bool
	since   time.Time
	okSince time.Time // while cut: the first success since the last failure
	backAt  time.Time
	doubles int
}

// NewReach returns a database that is within reach, and out of it once nothing has succeeded for after.
func NewReach(after time.Duration, now time.Time) *Reach {
	return &Reach{after: after, lastOK: now, tickedAt: now}
}

// Every is how often Tick is to be called.
func (r *Reach) Every() time.Duration { return r.after / reachParts }

// Ended takes how a call ended that was sent at sentAt, a look or any other.
func (r *Reach) Ended(now, sentAt time.Time, ok bool) {
	switch {
	case ok:
		if sentAt.After(r.lastOK) {
			r.lastOK = sentAt
		}
		r.failedAt = time.Time{}
		if r.okSince.IsZero() {
			r.okSince = now
		}
	case sentAt.Before(r.lastOK): // older than what succeeded
	default:
		if r.failedAt.IsZero() {
			r.failedAt = now
		}
		r.okSince = time.Time{}
	}
}

// Probing says that a look is under way since now, Probed that it has ended.
func (r *Reach) Probing(now time.Time) { r.probedAt = now }

// Probed is Ended for a look.
func (r *Reach) Probed(now time.Time, ok bool) {
	sentAt := r.probedAt
	r.probedAt = time.Time{}
	r.Ended(now, sentAt, ok)
}

// Tick decides, and reports whether it is time for a look. A process that stood still for long has heard nothing for
// that long either: it proves nothing.
func (r *Reach) Tick(now time.Time) (probe bool) {
	if now.Sub(r.tickedAt) > r.after/2 {
		r.lastOK, r.failedAt = now, time.Time{}
		if !r.probedAt.IsZero() {
			r.probedAt = now
		}
	}
	r.tickedAt = now
	silent := now.Sub(r.lastOK)
	failing := !r.failedAt.IsZero() && now.Sub(r.failedAt) >= r.after/4
	waiting := !r.probedAt.IsZero() && now.Sub(r.probedAt) >= r.after*3/4
	switch {
	case !r.cut && silent >= r.after && (failing || waiting):
		if !r.backAt.IsZero() && now.Sub(r.backAt) < dwellCalm {
			r.doubles = min(r.doubles+1, dwellDoubles)
		} else {
			r.doubles = 0
		}
		r.cut, r.since, r.okSince = true, r.lastOK, time.Time{}
	case r.cut && !r.okSince.IsZero() && silent < r.after && now.Sub(r.okSince) >= r.after*dwellFactor<<r.doubles:
		r.cut, r.backAt = false, now
	}
	return r.probedAt.IsZero() && (silent >= r.Every() || !r.failedAt.IsZero())
}

// Doubtful reports whether the database has not answered for a moment, after which few would wait for it: long before it is out
// of reach.
func (r *Reach) Doubtful(now time.Time) bool {
	failing := !r.failedAt.IsZero() && now.Sub(r.failedAt) >= r.after/10
	waiting := !r.probedAt.IsZero() && now.Sub(r.probedAt) >= r.after/2
	return r.cut && r.okSince.IsZero() || failing || waiting
}

// Cut reports whether the database is out of reach, and when its last answer was asked for.
func (r *Reach) Cut() (since time.Time, cut bool) { return r.since, r.cut }

// Access is what a leader may do with a node and the partitions of one database.
type Access uint8

// The kinds of access, the best first.
const (
	Full   Access = iota
	Keeps         // it may be cut off: what it has stays, it gets nothing more
	Barred        // it is, and others are not
)

// Cuts is what a leader makes of what nodes say of their databases. A node is barred from a database that it can't
// reach for as long as another one does. That has to stand for a while: when a database dies or comes back, not all
// notice at once, and moving its partitions would help nobody. The zero value knows of nothing.
type Cuts struct {
	since map[cutKey]time.Time // of the cut off
	back  map[cutKey]bool      // of those that the database answers again
}

type cutKey struct {
	node     NodeID
	database string
}

// Look takes what the members say now. It returns when to look again at the latest, if nothing changes; zero: never.
func (c *Cuts) Look(now time.Time, nodes []Node, confirm time.Duration) (again time.Time) {
	next, back := map[cutKey]time.Time{}, map[cutKey]bool{}
	for _, n := range nodes {
		if !n.Takes() {
			continue
		}
		for _, cut := range n.Cut {
			if !slices.ContainsFunc(nodes, func(o Node) bool { return o.Takes() && !o.cutFrom(cut.Database) }) {
				continue // nobody reaches it
			}
			k := cutKey{n.ID, cut.Database}
			if cut.Back {
				back[k] = true
				continue
			}
			at, known := c.since[k]
			if !known {
				at = now
			}
			next[k] = at
			if end := at.Add(confirm); end.After(now) && (again.IsZero() || end.Before(again)) {
				again = end
			}
		}
	}
	c.since, c.back = next, back
	return again
}

// Access is what the last Look says, confirm as there.
func (c *Cuts) Access(now time.Time, confirm time.Duration, node NodeID, database string) Access {
	k := cutKey{node, database}
	at, cut := c.since[k]
	switch {
	case c.back[k]:
		return Keeps
	case !cut:
		return Full
	case now.Sub(at) < confirm:
		return Keeps
	}
	return Barred
}

// None reports whether every node has full access to everything.
func (c *Cuts) None() bool { return len(c.since)+len(c.back) == 0 }

func (n Node) cutFrom(database string) bool {
	return slices.ContainsFunc(n.Cut, func(c CutOff) bool { return c.Database == database && !c.Back })
}

// AssignReached is Assign where not every node may have every partition. No partition stays on a node that is barred from
// its database, or comes to one without full access, as long as there is another; else it moves as little as can be,
// and shares differ by at most one as far as single moves can bring that about.
func AssignReached(prev map[uint32]NodeID, nodes []Node, partitions []Partition, access func(NodeID, string) Access) map[uint32]NodeID {
	in := map[uint32]string{}
	for _, p := range partitions {
		in[p.ID] = p.In()
	}
	var takers []NodeID
	for _, n := range nodes {
		if n.Takes() && !slices.Contains(takers, n.ID) {
			takers = append(takers, n.ID)
		}
	}
	slices.Sort(takers)
	held := map[NodeID][]uint32{}
	out, free := map[uint32]NodeID{}, []uint32(nil)
	give := func(p uint32, id NodeID) {
		out[p] = id
		held[id] = append(held[id], p)
	}
	if len(takers) == 0 {
		return out
	}
	for _, p := range IDs(partitions) {
		if id := prev[p]; slices.Contains(takers, id) && access(id, in[p]) != Barred {
			give(p, id)
		} else {
			free = append(free, p)
		}
	}
	liking := func(p uint32, id NodeID) uint64 { return newHash.str("own").num(p).str(string(id)).sum() }
	for _, p := range free {
		give(p, slices.MinFunc(takers, func(a, b NodeID) int {
			return cmp.Or(
				cmp.Compare(access(a, in[p]), access(b, in[p])),
				cmp.Compare(len(held[a]), len(held[b])),
				cmp.Compare(liking(p, b), liking(p, a)),
				strings.Compare(string(a), string(b)),
			)
		}))
	}
	for evened := true; evened; {
		evened = false
		byLoad := slices.Clone(takers)
		slices.SortStableFunc(byLoad, func(a, b NodeID) int { return cmp.Compare(len(held[b]), len(held[a])) })
		for i := 0; i < len(byLoad) && !evened; i++ {
			for j := len(byLoad) - 1; j > i && len(held[byLoad[i]])-len(held[byLoad[j]]) > 1 && !evened; j-- {
				from, to := byLoad[i], byLoad[j]
				at := slices.IndexFunc(held[from], func(p uint32) bool { return access(to, in[p]) == Full })
				if evened = at >= 0; evened {
					p := held[from][at]
					held[from] = slices.Delete(held[from], at, at+1)
					give(p, to)
				}
			}
		}
	}
	return out
}
