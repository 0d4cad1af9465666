package dispatcher

import (
	"path/filepath"
	"slices"
	"testing"

	"go.uber.org/zap"

	"github.com/headrace/headrace/task"
)

// What was in hand when a process ended is counted by the next; three times of one task, whatever died in between,
// condemn it, once.
func TestInHand(t *testing.T) {
	path := filepath.Join(t.TempDir(), inHandFile)
	next := func(inHand ...task.ID) *inHandRun {
		h, err := openInHand(path, zap.NewNop())
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range inHand {
			h.Set(id)
		}
		return &inHandRun{t, h}
	}
	bad, other := task.NewID(3, 7, 0), task.NewID(3, 8, 0)
	next(other, bad).expect()
	next(bad).expect()
	r := next(bad)
	r.Clear() // it was handled
	r.expect()
	next(other).expect()
	for i := range maxInHand - 3 { // others come and go
		next(task.NewID(1, uint64(i+1), 0)).expect()
	}
	next(bad).expect()
	next().expect(bad)
	next().expect()
	next(bad).expect()
	next().expect(bad)
}

type inHandRun struct {
	t *testing.T
	*inHand
}

// expect looks at who is condemned, and ends the process.
func (r *inHandRun) expect(want ...task.ID) {
	r.t.Helper()
	if got := r.condemned(3); !slices.Equal(got, want) {
		r.t.Errorf("condemned %v, want %v", got, want)
	}
	if got := r.condemned(3); len(got) > 0 {
		r.t.Errorf("condemned twice: %v", got)
	}
	if err := r.close(); err != nil {
		r.t.Error(err)
	}
}
