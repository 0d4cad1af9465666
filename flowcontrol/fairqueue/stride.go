package fairqueue

import "math/bits"

// Bands is how many bands a Stride shares turns among.
const Bands = 3

// steps are what a turn costs each band: 16 turns of the first weigh as much as 4 and 1 of the others.
var steps = [Bands]int64{1, 4, 16}

// Stride gives turns to bands 16 : 4 : 1. The zero value is ready. What an idle band leaves is shared
// by the others in proportion.
type Stride struct {
	pass [Bands]int64
	now  int64 // pass of the band that was served last
	last uint8 // the mask of the last Pick: a band that was not in it is new
}

// Pick returns the band whose turn it is among those in the mask (bit b stands for band b), and
// counts the turn. Ties go to the lower band number. The mask must not be empty.
func (s *Stride) Pick(mask uint8) int {
	b := s.Next(mask)
	s.Took(b)
	return b
}

// Next is Pick without counting the turn: it is the band's until Took says that it was taken.
func (s *Stride) Next(mask uint8) int {
	best := -1
	for m := mask; m != 0; m &= m - 1 {
		b := bits.TrailingZeros8(m)
		if s.last&(1<<b) == 0 {
			s.pass[b] = max(s.pass[b], s.now) // no credit for idle time
		}
		if best < 0 || s.pass[b] < s.pass[best] {
			best = b
		}
	}
	s.last = mask
	return best
}

// Took counts a turn of a band.
func (s *Stride) Took(b int) {
	s.now = s.pass[b]
	s.pass[b] += steps[b]
}
