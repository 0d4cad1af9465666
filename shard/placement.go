package shard

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/headrace/headrace/task"
)

// MaxShard is how many partitions a placement may name: with the members before them, the record stays
// within MaxRecord.
const MaxShard = 24

// homeMembers is how many of a tenant's partitions are in its directory database at least, as long as
// that has as many: with two a task with a client-given id has a choice when one is slow.
const homeMembers = 2

// RetryHorizon is how long after a change a retry looks where the placements before would have sent it: as long
// as a store remembers what a submit made (docs/adr/0014).
const RetryHorizon = 10 * time.Minute

// firstHorizon is the same for a tenant's first placement: only a call that some node took before it heard of
// that one, within moments, is anywhere else.
const firstHorizon = time.Minute

// Reason says why a placement is as it is.
type Reason uint8

// The reasons. Their numbers are stored.
const (
	Created Reason = iota + 1 // the tenant's first
	Moved                     // to partitions that somebody named
	Resized                   // another k; old members stay, as far as there is room
	Drained                   // a member takes no new tasks any more
)

func (r Reason) String() string {
	switch r {
	case Created:
		return "created"
	case Moved:
		return "moved"
	case Resized:
		return "resized"
	case Drained:
		return "drained"
	}
	return fmt.Sprintf("reason %d", uint8(r))
}

// Placement is a tenant's shard as it is stored: the outcome, not the recipe. New tasks go to Members; older
// ones stay where they are until they have ended.
type Placement struct {
	Tenant  string
	Version uint64 // grows with each change
	Salt    uint32
	K       int // how many members there shall be; one or two more if its directory database needs them
	// Members are the tenant's partitions, best first. Those from K on are there for client-given ids only
	// because the first K hold too few of the directory database.
	Members []uint32
	// Before are the members of the versions in the RetryHorizon before this one, as far as they differ, the
	// newest first: a submit whose answer was lost may be there.
	Before []uint32
	// Home is a partition of the tenant's directory database, which holds its client-given ids. It stays
	// for ever, also when the partition is sealed: a second one would accept an id twice.
	Home   uint32
	Reason Reason
	At     time.Time // of the change, whole seconds, UTC
}

// Place draws a tenant's first placement: the shard of the salt whose most loaded member is the least
// loaded; the first such salt wins. Four salts bring the busiest partition from 2.0 to 1.1 times the mean
// under Zipf load when k follows the load (algorithms.md §1.3). Load is any one measure for all
// partitions, such as tasks a second; a missing one counts 0. Salts must not be empty. Another salt than
// the first makes what the first would give Before, because a node that has not heard of the placement
// sends there.
//
// Without open partitions it has no members, and must not be stored.
func Place(key Key, salts []uint32, partitions []Partition, k int, load map[uint32]float64, now time.Time) Placement {
	best := Placement{Tenant: key.Tenant, Version: 1, K: k, Reason: Created, At: now.UTC().Truncate(time.Second)}
	var first []uint32
	least := math.Inf(1)
	for i, salt := range salts {
		key.Salt = salt
		p := Placement{Tenant: key.Tenant, K: k, Salt: salt}
		if ranked := rank(key, partitions, ""); len(ranked) > 0 {
			p.Home = ranked[0].ID
		}
		p.Members = members(key.Secret, p, partitions, k)
		worst := math.Inf(-1)
		for _, m := range p.Members {
			worst = max(worst, load[m])
		}
		if i == 0 {
			first = p.Members
		}
		if i == 0 || worst < least {
			least, best.Salt, best.Home, best.Members = worst, salt, p.Home, p.Members
		}
	}
	if !sameSet(first, best.Members) {
		best.Before = first
	}
	return best
}

// Fit returns the placement for a catalogue: members that take no new tasks are replaced by the next best.
// It is p itself, and false, when nothing has to change. A member that the catalogue does not have stays: the
// catalogue is older than the placement.
func Fit(secret string, p Placement, partitions []Partition, now time.Time) (Placement, bool) {
	closed := func(id uint32) bool { return !open(partitions, id) && known(partitions, id) }
	if !slices.ContainsFunc(p.Members, closed) {
		return p, false
	}
	m := members(secret, p, partitions, p.K)
	if len(m) == 0 || slices.Equal(m, p.Members) {
		return p, false
	}
	return p.next(m, p.K, Drained, now), true
}

// Resize returns the placement with another k. Growing keeps all members; shrinking drops the last ones.
// The error is a *task.FieldError.
func Resize(secret string, p Placement, partitions []Partition, k int, now time.Time) (Placement, error) {
	if k < 1 || k > MaxShard {
		return p, &task.FieldError{Field: "k", Value: fmt.Sprint(k), Want: fmt.Sprintf("1 to %d", MaxShard)}
	}
	if !slices.ContainsFunc(partitions, Partition.Open) {
		return p, &task.FieldError{Field: "k", Value: fmt.Sprint(k), Want: "a cluster with an active partition"}
	}
	return p.next(members(secret, p, partitions, k), k, Resized, now), nil
}

// Move returns the placement with the members to, to which partitions of the directory database are added
// if there are fewer than two among them. The error is a *task.FieldError.
func Move(secret string, p Placement, partitions []Partition, to []uint32, now time.Time) (Placement, error) {
	if len(to) < 1 || len(to) > MaxShard {
		return p, &task.FieldError{Field: "to", Value: fmt.Sprintf("%d partitions", len(to)), Want: fmt.Sprintf("1 to %d", MaxShard)}
	}
	for i, id := range to {
		switch {
		case slices.Contains(to[:i], id):
			return p, &task.FieldError{Field: "to", Value: fmt.Sprint(id), Want: "each partition once"}
		case !open(partitions, id):
			return p, &task.FieldError{Field: "to", Value: fmt.Sprint(id), Want: "active partitions"}
		}
	}
	q := p
	q.Members, q.K = to, len(to)
	return p.next(members(secret, q, partitions, len(to)), len(to), Moved, now), nil
}

// next is the version after p.
func (p Placement) next(members []uint32, k int, why Reason, now time.Time) Placement {
	if !sameSet(p.Members, members) {
		before := slices.Clone(p.Members)
		for _, id := range p.Before {
			if now.Sub(p.At) < RetryHorizon && len(before) < MaxShard+homeMembers && !slices.Contains(before, id) {
				before = append(before, id)
			}
		}
		p.Before = before
	}
	p.Version++
	p.Members, p.K, p.Reason, p.At = members, k, why, now.UTC().Truncate(time.Second)
	return p
}

// members chooses k open partitions: those that p has already, in its order; then the next best of the zone
// that has the fewest; and what the directory database lacks beyond. Without any in p it is Choose
// with the directory database's zone first.
func members(secret string, p Placement, partitions []Partition, k int) []uint32 {
	home, zone := homeOf(partitions, p.Home)
	ranked := rank(Key{Secret: secret, Tenant: p.Tenant, Salt: p.Salt}, partitions, zone)
	base := min(p.K, len(p.Members))
	// What is kept for the directory database is the next best of its zone, whatever the ranking says.
	slices.SortStableFunc(ranked, func(a, b Partition) int {
		inA, inB := slices.Contains(p.Members[base:], a.ID), slices.Contains(p.Members[base:], b.ID)
		switch {
		case inA == inB || a.Zone != b.Zone:
			return 0
		case inA:
			return -1
		}
		return 1
	})
	var out []uint32
	held, atHome := map[string]int{}, 0 // members by zone, and in the directory database
	take := func(q Partition) {
		out, held[q.Zone] = append(out, q.ID), held[q.Zone]+1
		if q.In() == home {
			atHome++
		}
	}
	for _, id := range p.Members[:base] {
		i := slices.IndexFunc(ranked, func(q Partition) bool { return q.ID == id })
		switch {
		case len(out) == k:
		case i >= 0:
			take(ranked[i])
		case !known(partitions, id):
			out = append(out, id)
		}
	}
	// next is the best that is not taken, of the zone that has the fewest; of one database only, if it is named.
	next := func(database string) (best Partition, ok bool) {
		for _, q := range ranked {
			if !slices.Contains(out, q.ID) && (database == "" || q.In() == database) && (!ok || held[q.Zone] < held[best.Zone]) {
				best, ok = q, true
			}
		}
		return best, ok
	}
	for len(out) < k {
		q, ok := next("")
		if !ok {
			break
		}
		take(q)
	}
	for home != "" && atHome < homeMembers {
		q, ok := next(home)
		if !ok {
			break
		}
		take(q)
	}
	return out
}

// Earlier returns where a call that is repeated now may have gone by the placements before.
func (p Placement) Earlier(now time.Time) []uint32 {
	horizon := RetryHorizon
	if p.Reason == Created {
		horizon = firstHorizon
	}
	if now.Sub(p.At) >= horizon {
		return nil
	}
	return p.Before
}

// AtHome returns the partitions of a shard that are in the tenant's directory database, where its tasks with
// client-given ids go. When the database is being drained as a whole these are its draining
// partitions: an id must not be looked for anywhere else. Empty: it has none left, or the catalogue doesn't
// know it.
func (p Placement) AtHome(partitions []Partition, among []uint32) []uint32 {
	home, _ := homeOf(partitions, p.Home)
	if home == "" {
		return nil
	}
	var in, draining []uint32
	for _, q := range partitions {
		switch {
		case q.In() != home:
		case slices.Contains(among, q.ID):
			in = append(in, q.ID)
		case q.State == Draining:
			draining = append(draining, q.ID)
		}
	}
	if len(in) == 0 {
		return draining
	}
	return in
}

// Keyed returns the member that holds all of a tenant's tasks with a concurrency key: one holder, so nobody
// has to coordinate. Another member more or less moves only the keys that it holds.
func Keyed(tenant, key string, members []uint32) (partition uint32, ok bool) {
	base := newHash.str("key").str(tenant).str(key)
	top := uint64(0)
	for i, p := range members {
		if s := base.num(p).sum(); i == 0 || s > top || s == top && p < partition {
			partition, top, ok = p, s, true
		}
	}
	return partition, ok
}

// open reports whether a partition takes new tasks. Catalogues may be in any order.
func open(partitions []Partition, id uint32) bool {
	for i := range partitions {
		if partitions[i].ID == id {
			return partitions[i].Open()
		}
	}
	return false
}

func known(partitions []Partition, id uint32) bool {
	return slices.ContainsFunc(partitions, func(p Partition) bool { return p.ID == id })
}

// homeOf returns the database that holds a partition, and its zone; "" if the catalogue does not have it.
func homeOf(partitions []Partition, id uint32) (database, zone string) {
	for i := range partitions {
		if partitions[i].ID == id {
			return partitions[i].In(), partitions[i].Zone
		}
	}
	return "", ""
}

func sameSet(a, b []uint32) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(id uint32) bool { return !slices.Contains(b, id) })
}
