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
	free := e.cfg.Slots - e.used
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
	free, saves := e.feed(takers, free)
	if !saves {
		level(takers, free)
	}
	e.recall(takers)
}

// feed gives free slots to the sessions that want more than they have, those first that have waited longest.
// It returns what is left. One whose next task costs more than there is free is waited for (saves): slots that come free
// are kept for it, and nodes that can't use what they have give it back (recall). Else each of two nodes could hold half
// of what either needs.
func (e *Engine) feed(takers []*session, free int) (left int, saves bool) {
	hungry := slices.DeleteFunc(slices.Clone(takers), func(s *session) bool { return s.want() == 0 })
	if stuck(hungry) != nil {
		return e.feedPieces(hungry, free)
	}
	if free <= 0 {
		return free, false
	}
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
			e.grant(s, give)
			free -= give
		}
		hungry = slices.DeleteFunc(hungry, func(s *session) bool { return s.want() == 0 })
	}
	return free, false
}

// feedPieces is feed where somebody can use credit only in pieces.
func (e *Engine) feedPieces(hungry []*session, free int) (left int, saves bool) {
	slices.SortStableFunc(hungry, func(a, b *session) int { return cmp.Compare(a.gaveAt, b.gaveAt) })
	for i, s := range hungry {
		give := min(max(free/(len(hungry)-i), 1), s.want(), free)
		if s.stuck() {
			need := s.unit - s.outstanding()
			if need > free {
				return free, true
			}
			give = max(give, need)
		}
		if give > 0 {
			e.grant(s, give)
			free -= give
		}
	}
	return free, false
}

func (e *Engine) grant(s *session, slots int) {
	e.grants++
	s.gaveAt = e.grants
	s.credit += uint64(slots)
}

// stuck returns the session that has waited longest among those that can't use what they have.
func stuck(hungry []*session) *session {
	var first *session
	for _, s := range hungry {
		if s.stuck() && (first == nil || s.gaveAt < first.gaveAt) {
			first = s
		}
	}
	return first
}

// stuck reports whether a session has too little credit for what it wants it for.
func (s *session) stuck() bool { return s.unit > 1 && s.unit > s.outstanding() && s.want() > 0 }

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
	first := stuck(takers)
	idle := func(s *session) int {
		if s.stuck() && s != first {
			return s.outstanding()
		}
		return s.outstanding() - s.demand
	}
	for _, s := range takers {
		need += s.want()
		hungry = hungry || s.want() > 0
		total += s.outstanding()
		least = min(least, s.outstanding())
		if s.asked > s.answered {
			need -= int(s.asked - s.answered)
			least = e.cfg.Slots // what comes back is spread then
		} else if idle(s) > 0 {
			donors = append(donors, s)
		}
	}
	slices.SortStableFunc(donors, func(a, b *session) int { return cmp.Compare(idle(b), idle(a)) })
	share := total / len(takers)
	for _, s := range donors {
		ask := 0
		switch {
		case hungry:
			ask = min(need, idle(s))
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
