package ownership

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/store"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// script plays commands for partition 1, one word each, and returns what each asks for.
func script(t *testing.T, text string) {
	t.Helper()
	tb, now := New(), start
	for line := range strings.Lines(text) {
		command, want, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch command {
		case "":
			continue
		case "assigned":
			tb.Assigned(1)
		case "unassigned":
			tb.Unassigned(1)
		case "unassigned-cut":
			tb.Unassigned(1)
			tb.GiveUp(1)
		case "cut":
			tb.GiveUp(1)
		case "won":
			tb.Won(1)
		case "key-lost":
			tb.KeyLost(1)
		case "acquired":
			tb.Ended(now, 1, core.Acquired{Epoch: 7}, nil)
		case "failed":
			tb.Ended(now, 1, core.Acquired{}, errors.New("no"))
		case "fenced":
			tb.Lost(now, 1, false)
		case "crashed":
			tb.Lost(now, 1, true)
		case "released":
			tb.Released(1)
		case "drain":
			tb.Drain()
		case "minute":
			now = now.Add(calmAfter + time.Second)
		default:
			t.Fatalf("unknown command %q", command)
		}
		fx := tb.Take()
		var got []string
		for _, s := range fx.Acquire {
			got = append(got, "acquire", s.Pause.String())
		}
		for kind, ids := range map[string][]uint32{"cancel": fx.Cancel, "drop": fx.Drop, "release": fx.Release, "give-back": fx.GiveBack} {
			for range ids {
				got = append(got, kind)
			}
		}
		for _, a := range fx.Acquired {
			got = append([]string{"serve", fmt.Sprint(a.Epoch)}, got...)
		}
		if tb.Idle() {
			got = append(got, "idle")
		}
		if g := strings.Join(got, " "); g != strings.TrimSpace(want) {
			t.Errorf("%s: %s; want %s\nin:%s", command, g, want, text)
		}
	}
}

func TestTable(t *testing.T) {
	// An ordinary life: won, served, taken away, key back, key gone.
	script(t, `
		assigned: idle
		won: acquire 0s
		acquired: serve 7
		unassigned: release
		released: give-back
		key-lost: idle`)
	// Fenced once: at once again. Again and again, or by a panic: after a pause, until it was calm for a minute.
	script(t, `
		assigned: idle
		won: acquire 0s
		acquired: serve 7
		fenced: acquire 0s
		acquired: serve 7
		fenced: acquire 100ms
		failed: acquire 400ms
		acquired: serve 7
		minute:
		fenced: acquire 0s
		acquired: serve 7
		crashed: acquire 100ms`)
	// The key goes while an acquisition is under way and comes back before that has ended: one at a time.
	script(t, `
		assigned: idle
		won: acquire 0s
		key-lost: cancel
		won:
		failed: acquire 100ms`)
	// The loop says that it has dropped the partition only after the key was won again.
	script(t, `
		assigned: idle
		won: acquire 0s
		acquired: serve 7
		key-lost: drop
		won:
		fenced: acquire 0s`)
	// The key goes, and then the assignment, as when a lease ends: nothing is given back, and the next Won counts.
	script(t, `
		assigned: idle
		won: acquire 0s
		acquired: serve 7
		key-lost: drop
		unassigned:
		fenced: idle
		assigned: idle
		won: acquire 0s`)
	// Taken away while it is acquired: handed over at once. If it can't be acquired, the key goes back: whom it is
	// assigned to now may reach a database that this node does not.
	script(t, `
		assigned: idle
		won: acquire 0s
		unassigned:
		acquired: serve 7 release
		fenced: give-back`)
	script(t, `
		assigned: idle
		won: acquire 0s
		failed: acquire 100ms
		unassigned:
		failed: give-back`)
	// Its database is out of reach: what is wanted elsewhere is dropped, or not acquired any more, and the key goes back.
	script(t, `
		assigned: idle
		won: acquire 0s
		acquired: serve 7
		cut:
		unassigned-cut: drop
		fenced: give-back
		cut:
		key-lost: idle`)
	script(t, `
		assigned: idle
		won: acquire 0s
		unassigned-cut: cancel
		failed: give-back`)
	// A drain ends with nothing, whatever was under way; a key that comes late goes back.
	script(t, `
		assigned: idle
		won: acquire 0s
		drain: cancel
		failed: give-back
		key-lost: idle
		won: give-back
		key-lost: idle`)
}

// shop is doors that write down what was asked for. The key is held for so many looks.
type shop struct {
	asked []string
	looks int
}

func (s *shop) ask(what string) { s.asked = append(s.asked, what) }
func (s *shop) Look() error {
	s.ask("look")
	if s.looks--; s.looks < 0 {
		return errors.New("not ours")
	}
	return nil
}
func (s *shop) Epoch() (store.Epoch, error) { s.ask("epoch"); return 6, nil }
func (s *shop) Raise(from store.Epoch) (store.Epoch, error) {
	s.ask("raise")
	return from + 1, nil
}
func (s *shop) Now() time.Time                     { return start }
func (s *shop) Recover() (*store.Recovered, error) { s.ask("recover"); return &store.Recovered{}, nil }
func (s *shop) Flows() ([]store.FlowStat, error)   { s.ask("flows"); return nil, nil }

// The order is R10's, and a key that is gone at either look ends it before anything is loaded.
func TestAcquireOrder(t *testing.T) {
	for looks, want := range []string{"look", "look epoch raise look", "look epoch raise look recover flows"} {
		s := &shop{looks: looks}
		a, err := Acquire(s)
		if got := strings.Join(s.asked, " "); got != want || (err == nil) != (looks == 2) {
			t.Errorf("%d looks: %s, %v", looks, got, err)
		}
		if err == nil && (a.Epoch != 7 || !a.RaisedAt.Equal(start)) {
			t.Errorf("acquired %+v", a)
		}
	}
}
