package engine

import (
	"cmp"
	"slices"
)

// keptMax is how many outcomes may wait to be committed before no more credit is given: with the running
// tries they fit a hello.
const keptMax = 90_000

// allot gives slots that are neither in use nor promised to the sessions: the executor alone allots, and
// credits out + running <= slots (B036: a slot is a slot, the handlers of a cancelled try included). Nodes
// where something waits come first, in turns; what is left is spread evenly, so that most pushes find
// credit where they start. Credit that lies idle is asked back when another node has need of it.
func (e *Engine) allot() {
	if e.draining || e.kept >= e.cfg.KeptBytes || e.ended >= keptMax {
		return
	}
	free := e.cfg.Slots - e.running
	takers := make([]*session, 0, 8)
	for _, s := range e.sessions {
		s.credit = max(s.credit, s.received+s.returned) // a node that sent more than it may got refusals
		free -= s.outstanding()
		if !s.goingAway {
			takers = append(takers, s)
		}
	}
	if len(takers) == 0 {
		return
	}
	if len(takers) == 1 {
		takers[0].credit += uint64(max(free, 0))
		return
	}
	free = e.feed(takers, free)
	level(takers, free)
	e.recall(takers)
}

// feed gives free slots to the sessions that want more than they have, those first that have waited longest.
// It returns what is left.
func (e *Engine) feed(takers []*session, free int) int {
	if free <= 0 {
		return free
	}
	hungry := slices.DeleteFunc(slices.Clone(takers), func(s *session) bool { return s.want() == 0 })
	slices.SortStableFunc(hungry, func(a, b *session) int {
		return cmp.Or(cmp.Compare(a.outstanding(), b.outstanding()), cmp.Compare(a.gaveAt, b.gaveAt))
	})
	for free > 0 && len(hungry) > 0 {
		share := max(free/len(hungry), 1)
		for _, s := range hungry {
			give := min(share, s.want(), free)
			if give == 0 {
				break
			}
			e.grants++
			s.gaveAt = e.grants
			s.credit += uint64(give)
			free -= give
		}
		hungry = slices.DeleteFunc(hungry, func(s *session) bool { return s.want() == 0 })
	}
	return free
}

// level raises the lowest to the level of the next, all of these to the next, and so on.
func level(takers []*session, free int) {
	takers = slices.Clone(takers)
	slices.SortStableFunc(takers, func(a, b *session) int { return cmp.Compare(a.outstanding(), b.outstanding()) })
	for n := 1; free > 0; n++ {
		share := (free + n - 1) / n
		if n < len(takers) {
			share = min(share, takers[n].outstanding()-takers[0].outstanding())
		}
		for _, s := range takers[:min(n, len(takers))] {
			give := min(share, free)
			s.credit += uint64(give)
			free -= give
		}
		n = min(n, len(takers)-1)
	}
}

// recall asks idle credit back: as much as others want, or, where nobody wants anything, what makes the
// shares even once one is below half of that. A node is asked once at a time; it gives back what it has not used.
func (e *Engine) recall(takers []*session) {
	need, total, least, hungry := 0, 0, e.cfg.Slots, false
	donors := make([]*session, 0, len(takers))
	for _, s := range takers {
		need += s.want()
		hungry = hungry || s.want() > 0
		total += s.outstanding()
		least = min(least, s.outstanding())
		if s.asked > s.answered {
			need -= int(s.asked - s.answered)
			least = e.cfg.Slots // what comes back is spread then
		} else if s.outstanding() > s.demand {
			donors = append(donors, s)
		}
	}
	slices.SortStableFunc(donors, func(a, b *session) int { return cmp.Compare(b.outstanding()-b.demand, a.outstanding()-a.demand) })
	share := total / len(takers)
	for _, s := range donors {
		ask := 0
		switch {
		case hungry:
			ask = min(need, s.outstanding()-s.demand)
			need -= max(ask, 0)
		case least <= share/2 && share > 0:
			ask = s.outstanding() - max(share, s.demand)
		}
		if ask > 0 {
			s.asked += uint64(ask)
		}
	}
}

// outstanding is how many more pushes the node may send as far as we have told it, or shall tell it.
func (s *session) outstanding() int {
	return int(s.credit - min(s.credit, s.received+s.returned))
}

// want is how many more pushes the node could send than it may.
func (s *session) want() int { return max(s.demand-s.outstanding(), 0) }
