package sim

import "time"

// event is one thing that happens at its time. Events of the same time happen in the order in which
// they were scheduled.
type event struct {
	at  time.Duration // since the start of the world
	seq uint64
	run func()
}

// queue is a binary heap of events by (at, seq).
type queue struct {
	events []event
	seq    uint64
}

func (q *queue) less(i, j int) bool {
	a, b := &q.events[i], &q.events[j]
	return a.at < b.at || a.at == b.at && a.seq < b.seq
}

func (q *queue) push(at time.Duration, run func()) {
	q.seq++
	q.events = append(q.events, event{at, q.seq, run})
	for i := len(q.events) - 1; i > 0; {
		up := (i - 1) / 2
		if !q.less(i, up) {
			break
		}
		q.events[i], q.events[up] = q.events[up], q.events[i]
		i = up
	}
}

// pop removes the next event. The queue must not be empty.
func (q *queue) pop() event {
	first := q.events[0]
	last := len(q.events) - 1
	q.events[0] = q.events[last]
	q.events[last] = event{}
	q.events = q.events[:last]
	for i := 0; ; {
		next := 2*i + 1
		if next >= last {
			break
		}
		if next+1 < last && q.less(next+1, next) {
			next++
		}
		if !q.less(next, i) {
			break
		}
		q.events[i], q.events[next] = q.events[next], q.events[i]
		i = next
	}
	return first
}
