package core

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// How a script prints what the core asks for.

func (s *script) send(m Send) {
	var x *scriptExecutor
	for _, y := range s.executors {
		if y.open == m.Session {
			x = y
		}
	}
	if x == nil {
		return
	}
	for _, e := range m.Message.Welcome.GetEpochs() {
		x.epochs[e.Partition] = e.Epoch
	}
	if a := m.Message.BeatAnswer; a != nil {
		x.answered = nil
		for _, p := range a.Partitions {
			x.answered = append(x.answered, p.Partition)
		}
	}
	for _, p := range m.Message.Pushes {
		if s.pushed != nil {
			s.pushed(p)
		}
		for _, rule := range s.pauses {
			if band := s.bands[task.ID(p.TaskId)]; p.Tenant == "a" && rule.Covers(p.Function, band) && !rule.Over(s.now) {
				s.t.Errorf("%s: pushed %s, which is %s", s.clock(), nameOf(task.ID(p.TaskId)), rule.Why(p.Tenant))
			}
		}
		id := task.ID(p.TaskId)
		x.tokens[id] = task.Token{Epoch: p.Token.Epoch, Push: p.Token.Push}
		extra := ""
		if p.Attempt > 1 {
			extra = fmt.Sprintf(" attempt %d", p.Attempt)
		}
		if p.Fetch {
			extra += " fetch"
		}
		if p.Slots > 0 {
			extra += fmt.Sprintf(" %d slots", p.Slots)
		}
		if p.TimeoutMicros > 0 {
			extra += fmt.Sprintf(" timeout %v", time.Duration(p.TimeoutMicros)*time.Microsecond)
		}
		s.printf("%s push %s %s to %s%s", s.clock(), s.full(p.Tenant, id), tokenName(p.Token), x.name, extra)
	}
	for _, k := range m.Message.Committed {
		stale := ""
		if k.Stale {
			stale = " stale"
		}
		s.printf("%s told: %s %s committed%s", x.name, nameOf(task.ID(k.TaskId)), tokenName(k.Token), stale)
	}
	for _, k := range m.Message.Cancels {
		s.printf("%s told: cancel %s %s %s", x.name, nameOf(task.ID(k.TaskId)), tokenName(k.Token), strings.ToLower(strings.TrimPrefix(k.Cause.String(), "CANCEL_CAUSE_")))
	}
	for _, k := range m.Message.Recorded {
		s.printf("%s told: %s %s recorded", x.name, nameOf(task.ID(k.TaskId)), tokenName(k.Token))
	}
	for _, k := range m.Message.Claims {
		word := "void"
		if k.Adopted {
			word = "adopted"
		}
		s.printf("%s told: claim of %s %s %s", x.name, nameOf(task.ID(k.TaskId)), tokenName(k.Token), word)
	}
	if m.Message.GoingAway {
		s.printf("%s told: going away", x.name)
	}
}

// full names a task with its tenant where that is not a.
func (s *script) full(tenant string, id task.ID) string {
	if tenant != "a" {
		return tenant + ":" + nameOf(id)
	}
	return nameOf(id)
}

func (s *script) clock() string {
	return strconv.FormatFloat(s.now.Sub(began).Seconds(), 'f', -1, 64) + "s"
}

func (s *script) submitted(a SubmitAnswer) {
	if a.Err != nil {
		s.printf("submit refused: %v", a.Err)
		return
	}
	var names []string
	for _, it := range a.Items {
		n := nameOf(it.ID)
		if it.Dedup {
			n += " (was there)"
		}
		if it.Err != nil {
			n = it.Err.Error()
			if e := (*ExistsError)(nil); errors.As(it.Err, &e) {
				n = "taken by " + nameOf(e.ID)
			}
		}
		names = append(names, n)
	}
	if len(names) > 6 {
		names = append(names[:3], "…", names[len(names)-1])
	}
	s.printf("submitted %s", strings.Join(names, " "))
}

func (s *script) batchText(b *store.Batch) string {
	var parts []string
	for i := range b.Parts {
		p := &b.Parts[i]
		var words []string
		inserts := 0
		flush := func() {
			if inserts > 0 {
				words = append(words, fmt.Sprintf("%d new", inserts))
			}
			inserts = 0
		}
		for _, ch := range p.Changes {
			switch ch.Op {
			case store.Insert:
				inserts++
				continue
			case store.PutFunc:
				continue
			}
			flush()
			words = append(words, s.changeText(&ch))
		}
		flush()
		if p.Floor != 0 {
			words = append(words, fmt.Sprintf("floor %d", p.Floor))
		}
		if p.Release {
			words = append(words, "release")
		}
		if p.Partition != 1 {
			words = append([]string{fmt.Sprintf("partition %d:", p.Partition)}, words...)
		}
		parts = append(parts, strings.Join(words, ", "))
	}
	return strings.Join(parts, "; ")
}

func (s *script) changeText(ch *store.Change) string {
	return s.rowText(ch.Task)
}

func (s *script) rowText(t *store.Task) string {
	text := nameOf(t.ID) + " " + t.State.String()
	if t.State == task.Retrying {
		text += " in " + t.DueAt.Sub(s.now).String()
	}
	if t.Attempt > 1 {
		text += fmt.Sprintf(" attempt %d", t.Attempt)
	}
	for _, n := range []struct {
		name string
		n    int
	}{{"losses", t.Losses}, {"undelivered", t.Undelivered}, {"throttles", t.Throttles}, {"snoozes", t.Snoozes}} {
		if n.n > 0 {
			text += fmt.Sprintf(" %s %d", n.name, n.n)
		}
	}
	if t.Suspect {
		text += " suspect"
	}
	if r := t.Record; r != nil {
		text += fmt.Sprintf(" record %d/%d", r.Token.Epoch, r.Token.Push)
		if r.Announced {
			text += " announced"
		}
	}
	if t.Cancel != nil && !t.State.Terminal() {
		text += " cancel requested"
	}
	if t.State.Terminal() && t.ErrClass != task.ClassNone && t.State != task.Succeeded {
		text += fmt.Sprintf(" (%v: %s)", t.ErrClass, t.ErrMessage)
	}
	return text
}

func explanationText(e Explanation, ok bool) string {
	if !ok {
		return "not the owner"
	}
	text := fmt.Sprintf("%s: %s", e.Why, e.Text)
	if e.Queued {
		text += fmt.Sprintf("\n  %d before it", e.Ahead)
		if e.AheadMax != e.Ahead {
			text += fmt.Sprintf(", or up to %d", e.AheadMax)
		}
	}
	if e.ETAOK {
		return text + fmt.Sprintf("\n  starts in %v to %v", e.Soonest.Round(time.Millisecond), e.Latest.Round(time.Millisecond))
	}
	return text + "\n  starts nobody knows when"
}
