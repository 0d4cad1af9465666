package pgstore

import (
	"errors"
	"testing"
	"time"

	"github.com/headrace/headrace/store"
)

// From 85 % of its size limit on a database takes no new tasks; the ends of those that are there always.
func TestSizeLimit(t *testing.T) {
	t.Parallel()
	db := server.Database(t)
	s := open(t, server.DSN(db))
	if _, err := s.Acquire(t.Context(), 1, 0); err != nil {
		t.Fatal(err)
	}
	l := newLoad(1)
	l.commit(t, s, l.next(100))
	s.cfg.SizeLimit = 1 << 20 // an empty database takes more
	if as, err := s.Alarms(t.Context()); err != nil || len(as) != 1 || as[0].Kind != store.AlarmDisk {
		t.Fatalf("alarms = %v, %v", as, err)
	}
	ends := l.finish()
	more := l.next(1)
	if _, err := s.Commit(t.Context(), &store.Batch{At: time.Now(), Parts: []store.Part{{Partition: 1, Epoch: 1, Changes: more, Seq: l.seq}}}); !errors.Is(err, store.ErrFull) {
		t.Errorf("insert: %v", err)
	}
	l.commit(t, s, ends)
	s.cfg.SizeLimit = 1 << 40
	if as, err := s.Alarms(t.Context()); err != nil || len(as) != 0 {
		t.Errorf("with room: %v, %v", as, err)
	}
	l.commit(t, s, more)
}
