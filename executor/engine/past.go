package engine

import (
	"time"

	"github.com/headrace/headrace/task"
)

// past is what is remembered of tries that are done, so that a late copy of a push starts nothing: their tokens. There
// are as many as end within ShelfLife, 100,000 on a busy executor, so nothing in here has a pointer: the garbage
// collector has no look at it, and who walks the tries that are held does not walk these.
type past struct {
	tokens map[task.ID]task.Token
	line   []pastTry // oldest first
	from   int       // line[:from] are forgotten already
	began  time.Time // pastTry.late counts from here
}

// pastTry says when a try is to be forgotten.
type pastTry struct {
	id    task.ID
	token task.Token
	late  time.Duration
}

// add remembers a try until a copy of its push would be refused as stale.
func (p *past) add(t *Try) {
	if p.began.IsZero() {
		p.began = t.beatAt
	}
	p.tokens[t.ID] = t.Token
	p.line = append(p.line, pastTry{t.ID, t.Token, t.beatAt.Sub(p.began) + ShelfLife})
}

// forget drops tries of which no copy can start any more.
func (p *past) forget(now time.Time) {
	if p.from == len(p.line) {
		return
	}
	age := now.Sub(p.began)
	for p.from < len(p.line) && age > p.line[p.from].late {
		t := &p.line[p.from]
		if p.tokens[t.id] == t.token { // else there was a newer try since
			delete(p.tokens, t.id)
		}
		p.from++
	}
	if p.from > len(p.line)/2 {
		n := copy(p.line, p.line[p.from:])
		p.line, p.from = p.line[:n], 0
	}
}
