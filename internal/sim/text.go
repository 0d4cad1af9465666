package sim

import (
	"fmt"
	"maps"
	"path"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/headrace/headrace/dispatcher/core"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/shard"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// short names a task in the trace: partition.number.
func short(id task.ID) string { return fmt.Sprintf("%d.%d", id.Partition(), id.Seq()) }

func shortBytes(b []byte) string {
	id, err := task.IDFromBytes(b)
	if err != nil {
		return "?"
	}
	return short(id)
}

func tokenOf(t *headracev1.Token) task.Token {
	return task.Token{Epoch: t.GetEpoch(), Push: t.GetPush()}
}

func tokenText(t task.Token) string { return fmt.Sprintf("%d/%d", t.Epoch, t.Push) }

func tokenPB(t *headracev1.Token) string { return tokenText(tokenOf(t)) }

// requestText says what an executor's message holds.
func requestText(m *headracev1.SessionRequest) string {
	var b strings.Builder
	if h := m.Hello; h != nil {
		fmt.Fprintf(&b, "hello(slots %d", h.Slots)
		for _, e := range h.Epochs {
			fmt.Fprintf(&b, " p%d=%d", e.Partition, e.Epoch)
		}
		for _, c := range h.Claims {
			fmt.Fprintf(&b, " claim %s %s", shortBytes(c.TaskId), tokenPB(c.Token))
			if c.Outcome != nil {
				fmt.Fprintf(&b, "=%q", class(c.Outcome.ErrorClass))
			}
		}
		b.WriteString(") ")
	}
	for _, a := range m.Acks {
		fmt.Fprintf(&b, "ack %s %s", shortBytes(a.TaskId), tokenPB(a.Token))
		if a.Refusal != 0 {
			fmt.Fprintf(&b, " refused: %v %d", a.Refusal, a.Epoch)
		}
		b.WriteString("; ")
	}
	for _, o := range m.Outcomes {
		fmt.Fprintf(&b, "outcome %s %s %q; ", shortBytes(o.TaskId), tokenPB(o.Token), class(o.ErrorClass))
	}
	if m.Beat != nil {
		fmt.Fprintf(&b, "beat %d; ", m.Beat.Number)
	}
	if m.Recall > 0 {
		fmt.Fprintf(&b, "recall %d; ", m.Recall)
	}
	if m.Credit > 0 {
		fmt.Fprintf(&b, "credit %d; ", m.Credit)
	}
	if m.Draining {
		b.WriteString("draining; ")
	}
	return strings.TrimSuffix(b.String(), "; ")
}

// responseText says what a node's message holds.
func responseText(m *headracev1.SessionResponse) string {
	var b strings.Builder
	if wl := m.Welcome; wl != nil {
		b.WriteString("welcome(")
		for _, e := range wl.Epochs {
			fmt.Fprintf(&b, " p%d=%d", e.Partition, e.Epoch)
		}
		b.WriteString(" ) ")
	}
	for _, p := range m.Pushes {
		fmt.Fprintf(&b, "push %s %s beat %d; ", shortBytes(p.TaskId), tokenPB(p.Token), p.Beat)
	}
	for _, c := range m.Committed {
		fmt.Fprintf(&b, "committed %s %s", shortBytes(c.TaskId), tokenPB(c.Token))
		if c.Stale {
			b.WriteString(" stale")
		}
		b.WriteString("; ")
	}
	for _, c := range m.Cancels {
		fmt.Fprintf(&b, "cancel %s %s %v epoch %d; ", shortBytes(c.TaskId), tokenPB(c.Token), c.Cause, c.Epoch)
	}
	for _, r := range m.Recorded {
		fmt.Fprintf(&b, "recorded %s %s; ", shortBytes(r.TaskId), tokenPB(r.Token))
	}
	for _, c := range m.Claims {
		fmt.Fprintf(&b, "claim %s %s adopted=%v epoch %d; ", shortBytes(c.TaskId), tokenPB(c.Token), c.Adopted, c.Epoch)
	}
	if a := m.BeatAnswer; a != nil {
		fmt.Fprintf(&b, "answer %d", a.Number)
		for _, e := range a.Partitions {
			fmt.Fprintf(&b, " p%d=%d", e.Partition, e.Epoch)
		}
		b.WriteString("; ")
	}
	if m.Demand != nil {
		fmt.Fprintf(&b, "demand %d; ", *m.Demand)
	}
	if m.Recalled > 0 {
		fmt.Fprintf(&b, "returned %d of %d; ", m.Returned, m.Recalled)
	}
	if m.GoingAway {
		b.WriteString("going away; ")
	}
	return strings.TrimSuffix(b.String(), "; ")
}

func class(c headracev1.ErrorClass) task.Class { return task.Class(c) }

// batchText says what a commit writes.
func batchText(bt *store.Batch) string {
	var b strings.Builder
	for i := range bt.Parts {
		p := &bt.Parts[i]
		fmt.Fprintf(&b, "[p%d epoch %d", p.Partition, p.Epoch)
		if p.Floor > 0 {
			fmt.Fprintf(&b, " floor %d", p.Floor)
		}
		if p.Release {
			b.WriteString(" release")
		}
		for _, c := range p.Changes {
			switch c.Op {
			case store.PutFunc:
				fmt.Fprintf(&b, "; function %s/%s", c.Func.Tenant, c.Func.Name)
			case store.Insert:
				fmt.Fprintf(&b, "; insert %s %v", short(c.Task.ID), c.Task.State)
			default:
				fmt.Fprintf(&b, "; %s %v decided %s", short(c.Task.ID), c.Task.State, tokenText(c.Task.LastToken))
				if c.Task.Attempt != c.Old.Attempt {
					fmt.Fprintf(&b, " attempt %d", c.Task.Attempt)
				}
				if c.Task.Losses != c.Old.Losses {
					fmt.Fprintf(&b, " losses %d", c.Task.Losses)
				}
				if r := c.Task.Record; r != nil {
					fmt.Fprintf(&b, " record %s announced=%v", tokenText(r.Token), r.Announced)
				}
				if c.Task.Cancel != nil {
					b.WriteString(" cancel")
				}
			}
		}
		b.WriteString("] ")
	}
	return strings.TrimSuffix(b.String(), " ")
}

// loadText says what a read found.
func loadText(l *core.Load, a core.LoadAnswer) string {
	var b strings.Builder
	switch l.Kind {
	case core.LoadReady:
		fmt.Fprintf(&b, "p%d %s/%s/%v after %d.%d", l.Partition, l.Flow.Tenant, l.Flow.Function, l.Flow.Band, l.After.Sort, l.After.Seq)
	case core.LoadDue:
		fmt.Fprintf(&b, "p%d due after %d.%d until %.3f", l.Partition, l.After.Sort, l.After.Seq, l.Until.Sub(epoch).Seconds())
	case core.LoadGet:
		b.WriteString("get " + short(l.ID))
	case core.LoadRequest:
		fmt.Fprintf(&b, "p%d request %s", l.Partition, l.RequestID)
	}
	for _, t := range a.Rows {
		fmt.Fprintf(&b, " %s", short(t.ID))
	}
	if a.Request != nil {
		for _, id := range a.Request.IDs {
			fmt.Fprintf(&b, " %s", short(id))
		}
	}
	if a.More {
		b.WriteString(" and more")
	}
	if a.Err != nil {
		fmt.Fprintf(&b, " %v", a.Err)
	}
	return b.String()
}

// shortStack returns the places of a panic that belong to this module, without addresses: a seed has one story.
func shortStack() string {
	var b strings.Builder
	lines := strings.Split(string(debug.Stack()), "\n")
	for i := 0; i+1 < len(lines); i++ {
		if function, _, ok := strings.Cut(lines[i], "(0x"); ok && strings.Contains(function, "headrace/") {
			file, _, _ := strings.Cut(strings.TrimSpace(lines[i+1]), " ")
			fmt.Fprintf(&b, "  %s %s\n", path.Base(function), path.Base(file))
		}
	}
	return b.String()
}

func sprint(format string, args ...any) string { return fmt.Sprintf(format, args...) }

// assignedText says which node each partition is assigned to.
func assignedText(to map[uint32]shard.NodeID) string {
	var b strings.Builder
	for _, p := range slices.Sorted(maps.Keys(to)) {
		fmt.Fprintf(&b, "p%d=%s ", p, to[p])
	}
	return strings.TrimSuffix(b.String(), " ")
}
