package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/headrace/headrace/internal/faketime"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/store/memstore"
)

// sick is a store that says what the test wants it to say of itself.
type sick struct {
	store.Store
	commit chan error

	mu  sync.Mutex
	now state
}

type state struct {
	err   error
	found []store.Alarm
	takes time.Duration
}

func (s *sick) become(now state) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = now
}

func (s *sick) Alarms(context.Context) ([]store.Alarm, error) {
	s.mu.Lock()
	now := s.now
	s.mu.Unlock()
	faketime.Pass(now.takes)
	return now.found, now.err
}

func (s *sick) Commit(context.Context, *store.Batch) ([]store.PartResult, error) {
	return nil, <-s.commit
}

// Each alarm of a database is shown while it lasts and logged twice: when it is raised and when it is over.
func TestAlarmsOfADatabase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.InfoLevel)
		a := newAlarms(time.Now, zap.New(core))
		s := &sick{Store: memstore.New(), commit: make(chan error)}
		w := &watchedStore{Store: s, now: time.Now}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); a.watch(ctx, "pg1", w) }()
		check := func(what string, want ...string) {
			t.Helper()
			faketime.Pass(20 * time.Second)
			synctest.Wait()
			var got []string
			for _, v := range a.list() {
				got = append(got, fmt.Sprintf("%s %s: %s", v.Kind, v.Subject, v.Message))
			}
			if strings.Join(got, "; ") != strings.Join(want, "; ") {
				t.Errorf("%s: %q, want %q", what, got, want)
			}
		}
		check("a healthy database")
		s.become(state{err: errors.New("it is away")})
		check("it is away", "store_down pg1: it is away")
		s.become(state{})
		check("it is back")
		pinned := []store.Alarm{{Kind: store.AlarmXmin, Message: "pid 7"}}
		s.become(state{found: pinned})
		check("somebody pins", "xmin_pinned pg1: pid 7")
		s.become(state{found: pinned, err: errors.New("away again")})
		check("what is not known stays", "store_down pg1: away again", "xmin_pinned pg1: pid 7")
		s.become(state{found: []store.Alarm{{Kind: store.AlarmXmin, Message: "pid 8"}}})
		check("another one pins", "xmin_pinned pg1: pid 8")
		s.become(state{takes: 1500 * time.Millisecond})
		check("slow to answer", "store_slow pg1: a look-up took 1.5s")
		s.become(state{})
		check("as fast as ever")
		go func() {
			if _, err := w.Commit(ctx, nil); !errors.Is(err, store.ErrFull) {
				t.Errorf("commit = %v", err)
			}
		}()
		faketime.Pass(10 * time.Second)
		if l := a.list(); len(l) != 1 || l[0].Kind != alarmStoreSlow {
			t.Errorf("a commit under way for 10 s: %v", l)
		}
		s.commit <- store.ErrFull
		check("a commit found the disk full", "disk pg1: "+store.ErrFull.Error())
		go func() { _, _ = w.Commit(ctx, nil) }() // it is there for its effect on the watch
		s.commit <- nil
		check("a commit found room")
		cancel()
		<-ended
		var lines []string
		for _, e := range logs.All() {
			lines = append(lines, e.Message+" "+e.ContextMap()["kind"].(string))
		}
		want := "alarm store_down, alarm is over store_down, alarm xmin_pinned, alarm store_down, alarm is over store_down, alarm is over xmin_pinned, " +
			"alarm store_slow, alarm is over store_slow, alarm store_slow, alarm is over store_slow, alarm disk, alarm is over disk"
		// The end of xmin_pinned and the start of store_slow are of one look.
		want = strings.Replace(want, "alarm is over xmin_pinned, alarm store_slow", "alarm store_slow, alarm is over xmin_pinned", 1)
		if got := strings.Join(lines, ", "); got != want {
			t.Errorf("logged\n%s, want\n%s", got, want)
		}
	})
}
