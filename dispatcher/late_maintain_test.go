package dispatcher

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/headrace/headrace/internal/faketime"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/store/memstore"
)

type maintained struct {
	store.Store
	calls int
	keep  time.Duration
}

func (m *maintained) Maintain(_ context.Context, _ time.Time, keep time.Duration) error {
	m.calls++
	m.keep = keep
	return errors.New("not now") // tried again all the same
}

// A database that wants it is looked after from its opening on, every five minutes, until it is closed.
func TestDatabasesAreLookedAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &maintained{Store: memstore.New()}
		l := newLateStore("a", func(context.Context) (store.Store, error) { return m, nil }, zap.NewNop())
		l.start(t.Context())
		faketime.Pass(11 * time.Minute)
		synctest.Wait()
		if m.calls != 3 || m.keep != 30*24*time.Hour {
			t.Errorf("%d calls in 11 minutes, keeping %v; want 3 and 30 days", m.calls, m.keep)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		faketime.Pass(time.Hour)
		if m.calls != 3 {
			t.Errorf("%d calls, some after the close", m.calls)
		}
	})
}
