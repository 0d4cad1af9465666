package core

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// The node remembers what it answered lately, so that a retry of a submit that races with the first
// finds it without the store. Older ones are in the store, which a submit marked as a retry asks.
const (
	maxRequests   = 1 << 16
	maxRequestIDs = 1 << 18
)

type requestKey struct {
	partition uint32
	tenant    string
	id        string
}

// request is one submit's request id, while it is looked up or committed, and for a while after.
type request struct {
	keys    []requestKey
	items   []SubmitItem // once done
	done    bool
	waiting []ReplyID
	looks   int         // look-ups in the store that have not returned
	barred  bool        // another node asked for it and it was not here: only a retry may bring it now
	failed  bool        // one of them did not work
	sub     *submission // while it is looked up
}

// requests finds requests by any partition that may hold them.
type requests struct {
	byKey map[requestKey]*request
	aged  fifo[*request] // done, oldest first
	ids   int
}

func keysOf(s *Submit) []requestKey {
	keys := []requestKey{{s.Partition, s.Tenant, s.RequestID}}
	for _, p := range s.Candidates {
		if p != s.Partition {
			keys = append(keys, requestKey{p, s.Tenant, s.RequestID})
		}
	}
	return keys
}

// attach answers a submit whose request is known, or lets it wait for the one that is on its way.
func (rs *requests) attach(c *Core, s *Submit) bool {
	r := rs.byKey[requestKey{s.Partition, s.Tenant, s.RequestID}]
	for i := 0; r == nil && i < len(s.Candidates); i++ {
		r = rs.byKey[requestKey{s.Candidates[i], s.Tenant, s.RequestID}]
	}
	switch {
	case r == nil || r.barred && s.Retry:
		return false
	case r.done && s.Retry && len(r.items) < len(s.Tasks):
		// The door let in a part of the first call, and all of this one: what is stored is looked up, the rest inserted.
		rs.forget(r)
		return false
	case r.barred:
		c.refuseSubmit(s.Reply, ErrUnknownOutcome)
	case r.done:
		fx := c.effects()
		fx.Submitted = append(fx.Submitted, SubmitAnswer{Reply: s.Reply, Items: r.items})
	default:
		r.waiting = append(r.waiting, s.Reply)
	}
	return true
}

// begin remembers a request. A retry looks first whether it was stored, here or in another candidate:
// each of them is asked, for nobody knows which one the first call reached.
func (rs *requests) begin(c *Core, s *Submit, sub *submission) {
	r := &request{sub: sub}
	sub.request = r
	if !s.Retry {
		r.keys = []requestKey{{s.Partition, s.Tenant, s.RequestID}}
		rs.byKey[r.keys[0]] = r
		r.sub = nil
		c.queueSubmit(sub)
		return
	}
	r.keys = keysOf(s)
	for _, k := range r.keys {
		rs.byKey[k] = r
		// Epoch 0: a candidate that another node owns. The shell knows where it is by its number.
		db, epoch := sub.part.db.index, store.Epoch(0)
		if p := c.parts[k.partition]; p != nil {
			db, epoch = p.db.index, p.epoch
		}
		r.looks++
		c.ask(&Load{Kind: LoadRequest, Database: db, Partition: k.partition, Epoch: epoch, Tenant: s.Tenant, RequestID: s.RequestID, context: r})
	}
}

// Look answers what became of a request here (see the type).
func (c *Core) Look(now time.Time, l Look) {
	c.enter(now)
	p := c.parts[l.Partition]
	if p == nil || p.releasing {
		c.refuseSubmit(l.Reply, ErrNotOwner)
		return
	}
	c.inHand(p.id, task.ID{})
	rs := &c.requests
	key := requestKey{l.Partition, l.Tenant, l.RequestID}
	r := rs.byKey[key]
	switch {
	case r == nil:
		r = &request{keys: []requestKey{key}, barred: true}
		rs.byKey[key] = r
		rs.remember(r)
	case r.done:
		fx := c.effects()
		fx.Submitted = append(fx.Submitted, SubmitAnswer{Reply: l.Reply, Items: r.items})
		return
	case !r.barred:
		r.waiting = append(r.waiting, l.Reply)
		return
	}
	// Only this partition's owner writes, and it takes no first call from now on: what the store says holds.
	// Each asker gets a look of its own: the partition may have been away in between.
	c.ask(&Load{Kind: LoadRequest, Database: p.db.index, Partition: p.id, Epoch: p.epoch, Tenant: l.Tenant, RequestID: l.RequestID, context: lookup{l.Reply}})
}

// lookup is the context of a Look's read.
type lookup struct{ reply ReplyID }

// found answers a Look from the store.
func (c *Core) found(l lookup, a LoadAnswer) {
	answer := SubmitAnswer{Reply: l.reply}
	switch {
	case a.Err == nil && a.Request != nil:
		answer.Items = make([]SubmitItem, len(a.Request.IDs))
		for i, id := range a.Request.IDs {
			answer.Items[i] = SubmitItem{ID: id, Dedup: i < len(a.Request.Dedup) && a.Request.Dedup[i]}
		}
	case a.Err != nil && !errors.Is(a.Err, store.ErrNotFound):
		answer.Err = ErrUnknownOutcome
	}
	fx := c.effects()
	fx.Submitted = append(fx.Submitted, answer)
}

// looked takes the answer of a look-up.
func (rs *requests) looked(c *Core, r *request, a LoadAnswer) {
	r.looks--
	sub := r.sub
	if sub == nil {
		return
	}
	switch {
	case a.Err == nil && a.Request != nil:
		for i, id := range a.Request.IDs {
			// A client's own id may have turned out to belong to another task after this was written: such an
			// item is inserted again, and the store says who holds the id.
			if i < len(sub.items) && !id.IsZero() && sub.tasks[i].ClientID == "" {
				sub.items[i].ID = id
				sub.items[i].Dedup = i < len(a.Request.Dedup) && a.Request.Dedup[i]
			}
		}
	case a.Err != nil && !errors.Is(a.Err, store.ErrNotFound):
		r.failed = true
	}
	if r.looks > 0 {
		return
	}
	r.sub = nil
	switch {
	case r.failed:
		c.answerSubmit(sub, ErrUnknownOutcome) // perhaps the first call stored it
	case sub.part.dead || sub.part.releasing:
		c.answerSubmit(sub, ErrNotOwner)
	default:
		c.queueSubmit(sub)
	}
}

// done answers all that wait for a request and remembers the answer, unless it failed.
func (rs *requests) done(c *Core, r *request, items []SubmitItem, err error) {
	for _, reply := range r.waiting {
		fx := c.effects()
		a := SubmitAnswer{Reply: reply, Err: err}
		if err == nil {
			a.Items = items
		}
		fx.Submitted = append(fx.Submitted, a)
	}
	r.waiting = nil
	if err != nil {
		rs.forget(r)
		return
	}
	r.done, r.items = true, items
	rs.ids += len(items)
	rs.remember(r)
}

// remember keeps a request for as long as there is room.
func (rs *requests) remember(r *request) {
	rs.aged.push(r)
	for rs.aged.len() > maxRequests || rs.ids > maxRequestIDs && rs.aged.len() > 1 {
		old := rs.aged.pop()
		rs.ids -= len(old.items)
		rs.forget(old)
	}
}

func (rs *requests) forget(r *request) {
	for _, k := range r.keys {
		if rs.byKey[k] == r {
			delete(rs.byKey, k)
		}
	}
}

// drop ends the look-ups of a partition that is lost. What was committed is still true.
func (rs *requests) drop(c *Core, p *partition) {
	var looking []*request
	for _, r := range rs.byKey {
		if r.sub != nil && r.sub.part == p && !slices.Contains(looking, r) {
			looking = append(looking, r)
		}
	}
	slices.SortFunc(looking, func(a, b *request) int { return cmp.Compare(a.sub.reply, b.sub.reply) })
	for _, r := range looking {
		sub := r.sub
		r.sub = nil
		c.answerSubmit(sub, ErrNotOwner)
	}
}
