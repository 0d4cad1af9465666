package engine

import (
	"slices"
	"time"

	"github.com/headrace/headrace/internal/mutant"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
)

// partition is what is known of a partition's ownership.
type partition struct {
	number uint32
	epoch  uint64   // newest known
	newest uint64   // highest number of a task that ran here; pushes come about in order, so mostly the next one is above
	owner  *session // that named this epoch; may be closed; nil: none
	// answeredAt is when the newest beat was sent that an owner answered for this partition. An answer of
	// an older owner stays good: it looked into the store before the epoch was raised, so the beat was
	// sent before the new owner began to count.
	answeredAt time.Time
}

// live returns the session that outcomes of this partition go to; nil: they wait.
func (p *partition) live() *session {
	if p.owner == nil || p.owner.closed {
		return nil
	}
	return p.owner
}

func (e *Engine) partition(n uint32) *partition {
	p := e.parts[n]
	if p == nil {
		p = &partition{number: n}
		e.parts[n] = p
	}
	return p
}

// command reports whether a command of that epoch is to be obeyed: it is not older than the newest
// known, which it raises (R5).
func (p *partition) command(s *session, epoch uint64) bool {
	if epoch < p.epoch || epoch == 0 {
		return epoch > 0 && mutant.On("epoch-unchecked")
	}
	if p.owner != s {
		s.adopts = true
	}
	p.epoch, p.owner = epoch, s
	return true
}

// epochs lists the known epochs, in the order of partitions.
func (e *Engine) epochs() []*headracev1.PartitionEpoch {
	out := make([]*headracev1.PartitionEpoch, 0, len(e.parts))
	for n, p := range e.parts {
		if p.epoch > 0 {
			out = append(out, &headracev1.PartitionEpoch{Partition: n, Epoch: p.epoch})
		}
	}
	slices.SortFunc(out, func(a, b *headracev1.PartitionEpoch) int { return int(int64(a.Partition) - int64(b.Partition)) })
	return out
}

// beatAnswered takes the owner's answer to a beat.
func (e *Engine) beatAnswered(now time.Time, s *session, a *headracev1.BeatAnswer) {
	sentAt, ok := s.sentAt(a.Number)
	if !ok {
		return
	}
	if mutant.On("orphan-from-receipt") {
		sentAt = now
	}
	if mutant.On("beat-any-node") {
		for _, p := range e.parts {
			p.answeredAt = sentAt
		}
	}
	for _, pe := range a.Partitions {
		if p := e.partition(pe.Partition); p.command(s, pe.Epoch) && sentAt.After(p.answeredAt) {
			p.answeredAt = sentAt
		}
	}
}
