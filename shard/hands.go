package shard

import "slices"

// Bounds of Hands.
const (
	MaxHands = 1024 // tasks that are remembered
	trials   = 32   // groups that the suspects are tried in
	aloneMax = 2    // deaths with nothing else in trial until a task is condemned
)

// Hands are the tasks that a quarantined partition's owner handles: noted before it does, and read by the next
// owner if it dies of one. So the circle gets smaller with each death: those in hand become suspects, suspects are
// tried group by group, and the only one of its group twice is condemned. A node that somebody else killed leaves
// suspects too; they are tried, and cleared.
type Hands struct {
	Node      NodeID   `json:"node"`                // who notes
	InHand    []string `json:"in_hand,omitempty"`   // since it opened the partition, oldest first; at most MaxHands
	Trial     []string `json:"trial,omitempty"`     // the suspects among them that came last, while they may kill it
	Suspects  []string `json:"suspects,omitempty"`  // not tried yet
	Alone     int      `json:"alone,omitempty"`     // deaths with Suspects[0] as the only one in trial
	Condemned []string `json:"condemned,omitempty"` // dead letters, as soon as they are seen
}

// Open is what the node begins with. Notes of its own it goes on with: it is alive.
func (h Hands) Open(node NodeID) Hands {
	next := Hands{Node: node, Suspects: h.Suspects, Condemned: h.Condemned}
	switch {
	case h.Node == node:
		next.Suspects = append(slices.Clone(h.Trial), h.Suspects...)
		next.Alone = h.Alone
	case len(h.Trial) == 1:
		next.Suspects, next.Alone = h.Trial, h.Alone+1
		if next.Alone >= aloneMax {
			next.Condemned = append(slices.Clone(h.Condemned), h.Trial[0])
			next.Condemned = next.Condemned[max(0, len(next.Condemned)-MaxHands):]
			next.Suspects, next.Alone = nil, 0
		}
	case len(h.Trial) > 1:
		next.Suspects = h.Trial
	case len(h.InHand) > 0:
		next.Suspects = append(slices.Clone(h.Suspects), h.InHand...)
		next.Suspects = next.Suspects[max(0, len(next.Suspects)-MaxHands):]
	default:
		next.Alone = h.Alone
	}
	return next
}

// Group is how many suspects are tried at once, of those that the partition was opened with.
func (h Hands) Group() int { return max(1, (len(h.Suspects)+trials-1)/trials) }

// Take notes tasks that are about to be handled, in their order, and returns how many of them may be: all up to the
// first suspect, or a group of suspects. One at least.
func (h *Hands) Take(ids []string, group int) int {
	suspect := func(id string) bool { return slices.Contains(h.Suspects, id) }
	n := 0
	if len(ids) > 0 && suspect(ids[0]) {
		for n < len(ids) && n < group && suspect(ids[n]) {
			n++
		}
		h.Trial = slices.Clone(ids[:n])
		h.Suspects = slices.DeleteFunc(slices.Clone(h.Suspects), func(id string) bool { return slices.Contains(h.Trial, id) })
	} else {
		for n < len(ids) && !suspect(ids[n]) {
			n++
		}
	}
	h.InHand = append(slices.Clone(h.InHand), ids[:n]...)
	h.InHand = h.InHand[max(0, len(h.InHand)-MaxHands):]
	return n
}

// Begin notes tasks that are handled at once, with the opening: the suspects among them are all in trial.
func (h *Hands) Begin(ids []string) {
	h.Trial = nil
	h.Suspects = slices.DeleteFunc(slices.Clone(h.Suspects), func(id string) bool {
		is := slices.Contains(ids, id)
		if is {
			h.Trial = append(h.Trial, id)
		}
		return is
	})
	h.InHand = ids[max(0, len(ids)-MaxHands):]
}

// Clear ends a trial: nobody died.
func (h *Hands) Clear() {
	if len(h.Trial) > 0 {
		h.Trial, h.Alone = nil, 0
	}
}
