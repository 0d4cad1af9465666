package sim

import (
	"errors"

	"github.com/headrace/headrace/dispatcher/core"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// submitted judges an answer to a submitter: what is acknowledged is stored (P1).
func (o *oracle) submitted(n *node, a core.SubmitAnswer) {
	if a.Err != nil {
		o.w.log(n.name, "answer", "submit %d: %v", a.Reply, a.Err)
		return
	}
	for _, it := range a.Items {
		var exists *core.ExistsError
		switch {
		case it.Err == nil:
			if _, err := o.w.store.Get(background, it.ID); err != nil {
				o.w.fail("P1: %s is acknowledged by %s and not stored", short(it.ID), n.name)
			}
		case !errors.As(it.Err, &exists):
			o.w.fail("submit item: %v", it.Err)
		}
	}
}

// known judges what a submitter gets: its own tasks, and the same ones each time (P3).
func (o *oracle) known(r *request, a core.SubmitAnswer) {
	if len(a.Items) != len(r.specs) {
		o.w.fail("P3: request %s has %d items, the answer %d", r.id, len(r.specs), len(a.Items))
		return
	}
	for i, it := range a.Items {
		s := r.specs[i]
		if r.answered && (r.items[i].ID != it.ID && it.Err == nil && r.items[i].Err == nil) {
			o.w.fail("P3: request %s is answered with %s and with %s", r.id, short(r.items[i].ID), short(it.ID))
		}
		if it.Err != nil {
			if s.clientID == "" {
				o.w.fail("P3: request %s item %d: %v", r.id, i, it.Err)
			}
			continue
		}
		t := o.tasks[it.ID]
		if t.spec != s && (s.clientID == "" || t.spec.clientID != s.clientID || t.row.Function != s.function.name || !equal(t.spec.payload, s.payload)) {
			o.w.fail("P3: request %s item %d is answered with %s, which is another task", r.id, i, short(it.ID))
		}
	}
}

func (o *oracle) cancelAsked(id task.ID) { o.tasks[id].cancelAsked = true }

// cancelled judges the answer to a cancel: what it says is on disk.
func (o *oracle) cancelled(n *node, a core.CancelAnswer) {
	if a.Err != nil {
		if errors.Is(a.Err, store.ErrNotFound) {
			o.w.fail("P1: a cancel of an acknowledged task finds nothing")
		}
		return
	}
	t := o.tasks[a.Task.ID]
	o.w.log(n.name, "answer", "cancel %s: %v", short(a.Task.ID), a.Outcome)
	switch a.Outcome {
	case headracev1.CancelOutcome_CANCEL_OUTCOME_CANCELLED:
		t.cancelAnswered = true
		if t.row.State != task.Cancelled {
			o.w.fail("cancel of %s is answered %v and it is %v", short(a.Task.ID), a.Outcome, t.row.State)
		}
	case headracev1.CancelOutcome_CANCEL_OUTCOME_REQUESTED:
		t.cancelAnswered = true
		if !t.row.State.Terminal() && t.row.Cancel == nil {
			o.w.fail("cancel of %s is answered %v and not stored", short(a.Task.ID), a.Outcome)
		}
	case headracev1.CancelOutcome_CANCEL_OUTCOME_ALREADY_FINISHED:
		if !t.row.State.Terminal() {
			o.w.fail("cancel of %s is answered %v and it is %v", short(a.Task.ID), a.Outcome, t.row.State)
		}
	default:
		o.w.fail("cancel of %s is answered %v", short(a.Task.ID), a.Outcome)
	}
}

// event judges what a watcher sees: an end is on disk.
func (o *oracle) event(n *node, e core.Event) {
	wt := n.watches[e.Watch]
	if wt == nil || e.Task == nil {
		return
	}
	if e.Task.ID != wt.id {
		o.w.fail("the watch of %s shows %s", short(wt.id), short(e.Task.ID))
	}
	if t := o.tasks[e.Task.ID]; e.Task.State.Terminal() {
		wt.done = true
		if t.row.State != e.Task.State {
			o.w.fail("the watch of %s shows %v, stored is %v", short(wt.id), e.Task.State, t.row.State)
		}
	}
}

// trustMost is how long after it lost its lease a node may go on answering by the lease alone, by its own clock.
const trustMost = leaseTTL

// oldAnswer judges an old owner's answer to a beat: of one that was sent before the raise it may come late, of a
// later one only while the node trusts its lease (R8).
func (o *oracle) oldAnswer(st *stream, number uint64, p *headracev1.PartitionEpoch) {
	if number == 0 || int(number) > len(st.beatsSentAt) {
		return
	}
	for _, ra := range o.raises[p.Partition] {
		if late := st.beatsSentAt[number-1] - ra.at; ra.epoch > p.Epoch && late > trustMost {
			o.w.fail("R8: %s answers under epoch %d of partition %d a beat that was sent %v after the raise of epoch %d",
				st.n.name, p.Epoch, p.Partition, late, ra.epoch)
		}
	}
}
