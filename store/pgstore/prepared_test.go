package pgstore

import (
	"fmt"
	"testing"
)

// Where the commit's statement is gone from under its name, or the name is taken, as behind a pooler, the commit goes without one.
func TestCommitWithoutItsName(t *testing.T) {
	t.Parallel()
	for _, sql := range []string{"DEALLOCATE ALL", "PREPARE " + commitName + " AS SELECT 1"} {
		s := open(t, server.DSN(server.Database(t)))
		epoch, err := s.Acquire(t.Context(), 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		spoil := func() {
			for _, c := range s.pool.AcquireAllIdle(t.Context()) {
				if _, err := c.Conn().PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
					t.Error(err)
				}
				c.Release()
			}
		}
		taken := sql != "DEALLOCATE ALL"
		if taken {
			spoil() // before it is prepared
		}
		for seq := uint64(1); seq <= 4; seq++ {
			if seq == 3 && !taken {
				spoil()
			}
			a := aTask(1, seq, fmt.Sprint("order-", seq))
			if _, err := commitOne(t.Context(), s, 1, epoch, insertOf(a)...); err != nil {
				t.Fatalf("%s: commit %d: %v", sql, seq, err)
			}
			if _, err := s.Get(t.Context(), a.ID); err != nil {
				t.Errorf("%s: %v", sql, err)
			}
			if want := taken || seq >= 3; s.nameless != want {
				t.Errorf("%s: after commit %d nameless = %v, want %v", sql, seq, s.nameless, want)
			}
		}
	}
}
