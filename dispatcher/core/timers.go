package core

import "time"

// alarm is something that wants to be called at a time.
type alarm interface{ alarm(c *Core) }

// timer is one place in the node's timers. The zero value is not set.
type timer struct {
	at    int64 // nanoseconds since 1970
	index int   // in the heap, from 1; 0: not set
	owner alarm
}

// timers is a binary heap by time; ties go by when they were set last.
type timers struct{ heap []*timer }

// set moves t to the given time; the zero time unsets it.
func (h *timers) set(t *timer, at time.Time) {
	if at.IsZero() {
		h.unset(t)
		return
	}
	t.at = at.UnixNano()
	if t.index == 0 {
		h.heap = append(h.heap, t)
		t.index = len(h.heap)
	}
	h.fix(t.index)
}

func (h *timers) unset(t *timer) {
	i := t.index
	if i == 0 {
		return
	}
	last := len(h.heap)
	if i != last {
		h.heap[i-1] = h.heap[last-1]
		h.heap[i-1].index = i
	}
	h.heap[last-1] = nil
	h.heap = h.heap[:last-1]
	t.index = 0
	if i != last {
		h.fix(i)
	}
}

// due takes the earliest timer out if its time has come.
func (h *timers) due(now int64) *timer {
	if len(h.heap) == 0 || h.heap[0].at > now {
		return nil
	}
	t := h.heap[0]
	h.unset(t)
	return t
}

func (h *timers) fix(i int) {
	t := h.heap[i-1]
	for i > 1 && t.at < h.heap[i/2-1].at {
		h.heap[i-1] = h.heap[i/2-1]
		h.heap[i-1].index = i
		i /= 2
	}
	for {
		child := 2 * i
		if child > len(h.heap) {
			break
		}
		if child < len(h.heap) && h.heap[child].at < h.heap[child-1].at {
			child++
		}
		if h.heap[child-1].at >= t.at {
			break
		}
		h.heap[i-1] = h.heap[child-1]
		h.heap[i-1].index = i
		i = child
	}
	h.heap[i-1] = t
	t.index = i
}
