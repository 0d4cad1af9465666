package engine

import (
	"cmp"
	"slices"
)

// keptMax is how many outcomes may wait to be committed before no more credit is given: with the running
// tries they fit a hello.
const keptMax = 90_000

// allot gives slots that are neither in use nor promised to the sessions, those first that have the
// least: the executor alone allots, and credits out + running <= slots (B036: a slot is a slot, the
// handlers of a cancelled try included). Credit once given is not taken back.
func (e *Engine) allot() {
	if e.draining || e.kept >= e.cfg.KeptBytes || e.ended >= keptMax {
		return
	}
	free := e.cfg.Slots - e.running
	takers := make([]*session, 0, 8)
	for _, s := range e.sessions {
		s.credit = max(s.credit, s.received) // a node that sent more than it may got refusals
		free -= s.outstanding()
		if !s.goingAway {
			takers = append(takers, s)
		}
	}
	if free <= 0 || len(takers) == 0 {
		return
	}
	if len(takers) == 1 {
		takers[0].credit += uint64(free)
		return
	}
	// Water-fill: raise the lowest to the level of the next, all of these to the next, and so on.
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

// outstanding is how many more pushes the node may send as far as we have told it, or shall tell it.
func (s *session) outstanding() int {
	return int(s.credit - min(s.credit, s.received))
}
