package core

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Watch tells what becomes of a task: once now, then at each change. An event without a Task says that
// this node can't tell (any more): it does not own the partition, or there is no such task.
func (c *Core) Watch(now time.Time, w WatchID, id task.ID) {
	c.enter(now)
	p := c.parts[id.Partition()]
	if p == nil {
		c.storedEvent(w, nil)
		return
	}
	c.watches[id] = append(c.watches[id], w)
	c.watched[w] = id
	if it := c.item(id); it != nil {
		c.event(w, it)
		return
	}
	g := c.get(p, id)
	g.watches = append(g.watches, w)
}

// Unwatch ends a watch.
func (c *Core) Unwatch(w WatchID) {
	id, ok := c.watched[w]
	if !ok {
		return
	}
	delete(c.watched, w)
	ws := slices.DeleteFunc(c.watches[id], func(o WatchID) bool { return o == w })
	if len(ws) == 0 {
		delete(c.watches, id)
	} else {
		c.watches[id] = ws
	}
}

// notify tells a task's watches that it has changed.
func (c *Core) notify(it *item) {
	if len(c.watches) == 0 {
		return
	}
	for _, w := range slices.Clone(c.watches[it.t.ID]) {
		c.event(w, it)
	}
}

// event tells one watch how a task in memory is.
func (c *Core) event(w WatchID, it *item) {
	if _, ok := c.watched[w]; !ok {
		return
	}
	fx := c.effects()
	e := Event{Watch: w, Task: it.disk}
	if it.disk.State.Terminal() {
		c.Unwatch(w)
	} else {
		e.View = c.view(it)
	}
	fx.Events = append(fx.Events, e)
}

// storedEvent tells one watch how a task in the store is; nil: this node can't tell.
func (c *Core) storedEvent(w WatchID, t *store.Task) {
	fx := c.effects()
	e := Event{Watch: w, Task: t}
	if t == nil || t.State.Terminal() {
		c.Unwatch(w)
	} else {
		if _, ok := c.watched[w]; !ok {
			return
		}
		e.View.WaitReason = cmp.Or(c.pausedBy(t.Tenant, t.Function, t.Band), c.limitedBy(t.Tenant, t.Function), waitsForTurn)
	}
	fx.Events = append(fx.Events, e)
}

// dropWatches ends the watches of a partition that is lost.
func (c *Core) dropWatches(p *partition) {
	var ws []WatchID
	for id, list := range c.watches {
		if id.Partition() == p.id {
			ws = append(ws, list...)
		}
	}
	slices.Sort(ws)
	for _, w := range ws {
		c.storedEvent(w, nil)
	}
}

// View returns a task in memory as it is on disk, with its running part.
func (c *Core) View(id task.ID) (*store.Task, View, bool) {
	p := c.parts[id.Partition()]
	if p == nil {
		return nil, View{}, false
	}
	it := p.items[id.Seq()]
	if it == nil || it.t.ID != id {
		return nil, View{}, false
	}
	return it.disk, c.view(it), true
}

func (c *Core) view(it *item) View {
	v := View{MaxAttempts: c.maxAttempts(it, it.t)}
	y := it.try
	if y == nil || !y.pushed {
		v.WaitReason = c.waitReason(it)
		return v
	}
	v.Running = !y.ackedAt.IsZero()
	v.Token, v.Executor = y.token, y.executor.name
	v.ChosenAt, v.PushedAt, v.AckedAt = y.chosenAt, y.pushedAt, y.ackedAt
	v.Progress = y.progress
	v.LogLines = slices.Clone(y.logs)
	switch {
	case !y.claimed:
		v.WaitReason = fmt.Sprintf("after a takeover: waits until %s for the executor that ran it", c.lostAt(it).UTC().Format(time.RFC3339))
	case y.session == nil:
		v.WaitReason = fmt.Sprintf("in flight: its executor is out of reach, waits for it until %s", c.lostAt(it).UTC().Format(time.RFC3339))
	case !v.Running:
		v.WaitReason = "in flight: pushed, the executor has not confirmed the start"
	}
	return v
}

// Running returns the ids of a tenant's tasks that run, newest first; an empty function is any.
func (c *Core) Running(tenant, function string, most int) []task.ID {
	var ids []task.ID
	t := c.tenants[tenant]
	if t == nil {
		return nil
	}
	for it := t.flying.last; it != nil && len(ids) < most; it = it.flying.prev {
		if !it.try.ackedAt.IsZero() && (function == "" || it.t.Function == function) {
			ids = append(ids, it.t.ID)
		}
	}
	return ids
}

// progressed takes what a handler says of its work. A checkpoint stays in memory until the try ends,
// and is what the next one gets.
func (c *Core) progressed(s *session, r *headracev1.ProgressReport) {
	it := c.find(r.TaskId)
	if it == nil || it.try == nil || it.try.token != tokenOf(r.Token) || it.try.executor != s.executor {
		return
	}
	y := it.try
	message := r.Message
	if len(message) > 255 {
		message = message[:255]
	}
	y.progress = &headracev1.Progress{Fraction: min(max(r.Fraction, 0), 1), Message: task.CutError(message), UpdateTime: timestamppb.New(c.now)}
	if r.Checkpoint != nil && len(r.Checkpoint) <= task.MaxCheckpoint {
		y.checkpoint = r.Checkpoint
	}
	c.notify(it)
}

// maxLogBytes bounds the log lines of all tries in flight of a node.
const maxLogBytes = 64 << 20

// logged keeps the newest lines of a try.
func (c *Core) logged(s *session, r *headracev1.LogReport) {
	it := c.find(r.TaskId)
	if it == nil || it.try == nil || it.try.token != tokenOf(r.Token) || it.try.executor != s.executor {
		return
	}
	y := it.try
	for _, e := range r.Entries {
		line := &headracev1.LogLine{Attempt: uint32(y.attempt), LogTime: timestamppb.New(time.UnixMicro(e.UnixMicros)), Level: e.Level, Message: task.CutError(e.Message)}
		size := logSize(line)
		for len(y.logs) > 0 && (y.logBytes+size > task.MaxLogBytes || c.logBytes+size > maxLogBytes) {
			old := logSize(y.logs[0])
			y.logs, y.logsCut = y.logs[1:], true
			y.logBytes -= old
			c.logBytes -= old
		}
		if c.logBytes+size > maxLogBytes || size > task.MaxLogBytes {
			y.logsCut = true
			continue
		}
		y.logs = append(y.logs, line)
		y.logBytes += size
		c.logBytes += size
	}
	c.notify(it)
}

func logSize(l *headracev1.LogLine) int { return len(LogText(l)) }

// LogText is a log line as a Try keeps it: time, level, message.
func LogText(l *headracev1.LogLine) string {
	return l.LogTime.AsTime().UTC().Format("2006-01-02T15:04:05.000000Z07:00") + " " + cmp.Or(l.Level, "info") + " " + l.Message
}
