package executor

import (
	"sync"

	"github.com/headrace/headrace/executor/engine"
	"github.com/headrace/headrace/task"
)

// pool runs calls on goroutines that it keeps. There is no goroutine for each call: one that finds more
// work goes on with it, so that short handlers cost no switch. Whoever takes a call wakes another
// goroutine if there are more, but only one is being woken at a time: as many get up as are needed,
// quickly if handlers wait, hardly any if they return at once.
type pool struct {
	ended func(*call, engine.Result)

	mu     sync.Mutex // guards following
	cond   sync.Cond
	queue  []*call
	from   int  // queue[:from] were taken
	idle   int  // goroutines that wait for a signal
	waking bool // one of them was signalled and has not come yet
	closed bool
	wg     sync.WaitGroup
}

// idleMax is how many goroutines wait for work; further ones end.
const idleMax = 256

func newPool(ended func(*call, engine.Result)) *pool {
	p := &pool{ended: ended}
	p.cond.L = &p.mu
	return p
}

// start queues calls. It does not wait; slots bound the queue.
func (p *pool) start(calls []*call) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = append(p.queue, calls...)
	p.wakeOne()
}

// wakeOne gets one more goroutine up if there is work for it. With the lock held.
func (p *pool) wakeOne() {
	if p.waking || p.from == len(p.queue) {
		return
	}
	p.waking = true
	if p.idle > 0 {
		p.cond.Signal()
		return
	}
	p.wg.Go(p.work)
}

// work runs calls until there are none and enough others wait.
func (p *pool) work() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waking = false // this is who was woken
	for {
		for p.from == len(p.queue) {
			if p.closed || p.idle >= idleMax {
				return
			}
			p.idle++
			p.cond.Wait()
			p.idle--
			p.waking = false
		}
		c := p.queue[p.from]
		p.queue[p.from] = nil
		if p.from++; p.from == len(p.queue) {
			p.queue, p.from = p.queue[:0], 0
		}
		p.wakeOne()
		p.mu.Unlock()
		p.run(c)
		p.mu.Lock()
	}
}

// run runs one call. A handler that ends its goroutine (runtime.Goexit, t.FailNow) takes this one with
// it; its try has failed all the same.
func (p *pool) run(c *call) {
	returned := false
	defer func() {
		if !returned {
			c.returned()
			p.ended(c, engine.Result{Class: task.Retryable, Message: "the handler ended its goroutine (runtime.Goexit)"})
			p.mu.Lock() // work's deferred unlock runs next
		}
	}()
	r := c.run()
	returned = true
	c.returned()
	p.ended(c, r)
}

// close lets the goroutines end once the queue is empty. wait waits for them.
func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.cond.Broadcast()
}
