package loop

import (
	"errors"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/internal/failpoint"
)

// errClosed is the reason of a session that the core ended.
var errClosed = errors.New("closed by the node: its session is replaced or over")

// takeEffects does what the core asks for. To do it may call the core (a lost partition ends its watches), so
// it looks once more where that happened; work that is left for other reasons is what Next tells.
func (l *Loop) takeEffects() {
	for range 3 {
		var fx *core.Effects
		l.enter("take", func(c *core.Core) { fx = c.Take() })
		if fx == nil {
			return
		}
		entered := l.entered
		l.apply(fx)
		if l.entered == entered {
			return
		}
	}
}

// apply hands effects on. Commits go first: the disk is what takes longest.
func (l *Loop) apply(fx *core.Effects) {
	for _, c := range fx.Commits {
		l.workers[c.Database].commits.put(work[*core.Commit]{l.gen, c})
	}
	failpoint.Hit("loop.effects.amid") // commits are on their way, pushes are not
	for _, s := range fx.Send {
		out := l.sessions[s.Session]
		if out == nil {
			continue
		}
		l.meter.pushes += uint64(len(s.Message.Pushes))
		if !out.Put(s.Message) {
			l.closeSession(s.Session, ErrSlow)
		}
	}
	for _, s := range fx.Close {
		l.closeSession(s, errClosed)
	}
	for _, a := range fx.Submitted {
		if ch := l.submits[a.Reply]; ch != nil {
			delete(l.submits, a.Reply)
			ch <- a
		}
	}
	for _, a := range fx.Cancelled {
		if ch := l.cancels[a.Reply]; ch != nil {
			delete(l.cancels, a.Reply)
			ch <- a
		}
	}
	for _, a := range fx.Paused {
		if ch := l.pausing[a.Reply]; ch != nil {
			delete(l.pausing, a.Reply)
			ch <- a
		}
	}
	for _, ev := range fx.Events {
		l.notify(ev)
	}
	for _, r := range fx.Loads {
		if r.Kind == core.LoadRequest && r.Epoch == 0 {
			l.others.put(work[*core.Load]{l.gen, r})
			continue
		}
		l.workers[r.Database].loads.put(work[*core.Load]{l.gen, r})
	}
	for _, r := range fx.EpochReads {
		l.workers[r.Database].checks.put(work[*core.EpochRead]{l.gen, r})
	}
	if len(fx.Roster) > 0 && l.cfg.Roster != nil {
		l.cfg.Roster(l.gen, fx.Roster)
	}
	for _, p := range fx.Lost {
		l.lost(p)
	}
	for _, p := range fx.Released {
		delete(l.owned, p)
		l.snapshotDirty()
		if l.cfg.Released != nil {
			l.cfg.Released(p)
		}
	}
}
