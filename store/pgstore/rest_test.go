package pgstore

import (
	"testing"
	"time"
)

// Autovacuum rests while one old snapshot stays the oldest, gets a round when that changes, and works when there is none.
func TestAutovacuumRestsUnderOneSnapshot(t *testing.T) {
	t.Parallel()
	db := server.Database(t)
	s, other := open(t, server.DSN(db)), open(t, server.DSN(db))
	now := time.Unix(1e9, 0)
	a := Snapshot{PID: 1, Since: now.Add(-time.Hour), Age: time.Hour}
	b := Snapshot{PID: 2, Since: now.Add(-time.Minute), Age: time.Hour}
	young := Snapshot{PID: 3, Since: now, Age: time.Second}
	tests := []struct {
		name  string
		s     *Store
		o     Snapshot
		after time.Duration // the look before
		rests bool
	}{
		{"nobody", s, Snapshot{}, 0, false},
		{"first seen", s, a, time.Second, false},
		{"a vacuum may not have run yet", s, a, restAfter - time.Second, false},
		{"a vacuum has run", s, a, 2 * time.Second, true},
		{"a node that starts now leaves it so", other, a, time.Second, true},
		{"another is the oldest", s, b, time.Second, false},
		{"it stays", s, b, restAfter, true},
		{"the second node sees the change late", other, b, 0, true},
		{"the first has died; a young one is left", other, young, time.Second, false},
		{"nothing to do", other, young, time.Second, false},
		{"it grew old", other, Snapshot{PID: 3, Since: young.Since, Age: restAfter}, restAfter, true},
		{"it ended", other, Snapshot{}, time.Second, false},
	}
	for _, tt := range tests {
		now = now.Add(tt.after)
		if err := tt.s.letRest(t.Context(), tt.o, now); err != nil {
			t.Fatal(tt.name, err)
		}
		const resting = "SELECT count(*) FROM pg_class WHERE oid IN ('headrace.hot'::regclass, 'headrace.hot_labels'::regclass) AND 'autovacuum_enabled=false' = ANY (reloptions)"
		if got := server.Must(t, db, resting); got != map[bool]string{true: "2", false: "0"}[tt.rests] {
			t.Errorf("%s: autovacuum rests on %s tables", tt.name, got)
		}
	}
	// One that let it rest and died: who is left says again that it works.
	server.Must(t, db, "SELECT headrace.rest_v1(true)")
	if err := other.letRest(t.Context(), young, now.Add(restAfter)); err != nil {
		t.Fatal(err)
	}
	if got := server.Must(t, db, "SELECT count(*) FROM pg_class WHERE 'autovacuum_enabled=false' = ANY (reloptions)"); got != "0" {
		t.Errorf("autovacuum still rests on %s tables", got)
	}
}
