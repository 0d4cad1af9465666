package pgstore

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// What goes into packs comes out, whatever the messages have in common, and packs of like tasks are small.
func TestPacksKeepTasks(t *testing.T) {
	l := newLoad(1)
	l.next(2000)
	var p pack
	p.reset(packKey{})
	var want []*store.Task
	size, tasks := 0, 0
	for _, ch := range l.finish() {
		u := *ch.Task
		// Times as they are where tasks run: a few milliseconds, all different.
		at := u.CreatedAt.Add(time.Duration(rand.IntN(1e7)))
		u.StartedAt, u.Tries[0].ChosenAt, u.Tries[0].PushedAt = at, at, at.Add(80*time.Microsecond)
		u.Tries[0].AckedAt = at.Add(time.Duration(rand.IntN(1e6)))
		u.Tries[0].EndedAt = at.Add(time.Duration(rand.IntN(1e7)))
		u.FinishedAt, u.Tries[0].CommittedAt = u.Tries[0].EndedAt, u.Tries[0].EndedAt
		u.LastToken.Push, u.Tries[0].Token.Push = u.ID.Seq(), u.ID.Seq()
		if rand.IntN(10) == 0 { // one that is not like the others, in each of several ways
			u.ClientID = fmt.Sprint("order-", rand.Uint64()>>rand.IntN(64))
			u.Result = bytes.Repeat([]byte{byte(rand.Uint32())}, rand.IntN(300))
			u.ErrMessage = "it failed"
		}
		m := store.EncodeEnded(nil, &u)
		if p.full(len(m)) {
			size += len(p.b)
			tasks += p.n
			check(t, p.b, want)
			p.reset(packKey{})
			want = nil
		}
		p.add(&u, m)
		want = append(want, &u)
	}
	check(t, p.b, want)
	t.Logf("%d bytes a task", size/tasks)
	if size/tasks > 100 {
		t.Errorf("packs have %d bytes a task", size/tasks)
	}
}

func check(t *testing.T, b []byte, want []*store.Task) {
	t.Helper()
	n := 0
	err := unpack(b, func(got *store.Task) error {
		if g, w := store.EncodeEnded(nil, got), store.EncodeEnded(nil, want[n]); !bytes.Equal(g, w) {
			t.Errorf("task %d of a pack: %+v, want %+v", n, got, want[n])
		}
		n++
		return nil
	})
	if err != nil || n != len(want) {
		t.Fatalf("%d tasks of %d, %v", n, len(want), err)
	}
}

// A damaged pack is an error, never a panic; what is not damaged comes out as it went in.
func FuzzPack(f *testing.F) {
	f.Add([]byte("abcdefghijklmnop"), []byte("abcdefgh!!!!!!!!!!!ijklmnop"), []byte{3, 1, 'a', 2, 0})
	f.Fuzz(func(t *testing.T, prev, cur, damaged []byte) {
		if len(cur) > 0 {
			b := appendDifference(nil, prev, cur)
			got, rest, err := applyDifference(prev, b, len(cur))
			if err != nil || !bytes.Equal(got, cur) || len(rest) != 0 {
				t.Fatalf("%x from %x by %x: %x, %x left, %v", cur, prev, b, got, rest, err)
			}
		}
		_ = unpack(damaged, func(*store.Task) error { return nil }) // an error is fine
	})
}

// Lists have each finished task once and in order, however packs overlap: many of one microsecond, some alone, some that
// ended long after they were submitted.
func TestListsOfPacks(t *testing.T) {
	t.Parallel()
	s := open(t, server.DSN(server.Database(t)))
	if _, err := s.Acquire(t.Context(), 1, 0); err != nil {
		t.Fatal(err)
	}
	l := newLoad(1)
	base := time.UnixMicro(time.Now().UnixMicro())
	var all []*store.Task
	for batch := range 12 {
		for _, ch := range l.next(100) {
			at := base.Add(time.Duration(batch) * 50 * time.Millisecond)
			switch u := ch.Task; {
			case batch%3 == 0: // all of one microsecond
				u.CreatedAt = at
			case batch%3 == 1:
				u.CreatedAt = at.Add(time.Duration(rand.IntN(300)) * time.Millisecond)
			default: // those of the batch before
				u.CreatedAt = all[len(all)-1].CreatedAt
			}
			ch.Task.DueAt, ch.Task.FirstDueAt = ch.Task.CreatedAt, ch.Task.CreatedAt
			all = append(all, ch.Task)
		}
		l.commit(t, s, inserts(l.running))
	}
	left := slices.Clone(all)
	rand.Shuffle(len(left), func(i, j int) { left[i], left[j] = left[j], left[i] })
	for len(left) > 0 {
		n := min(1+rand.IntN(250), len(left))
		l.running, left = left[:n], left[n:]
		l.commit(t, s, l.finish())
	}
	slices.SortFunc(all, newer)
	for _, limit := range []int{1, 7, 100, 5000} {
		var got []task.ID
		after := store.Cursor{}
		for more := true; more; {
			var ts []*store.Task
			var err error
			f := store.Filter{Tenant: l.names[0], State: task.Succeeded}
			if ts, more, err = s.List(t.Context(), f, after, limit); err != nil {
				t.Fatal(err)
			}
			for _, u := range ts {
				got = append(got, u.ID)
				after = store.Cursor{CreatedAt: u.CreatedAt, ID: u.ID}
			}
			if limit == 1 && len(got) == 150 {
				break
			}
		}
		want := all
		if limit == 1 {
			want = all[:150]
		}
		if !slices.EqualFunc(got, want, func(id task.ID, u *store.Task) bool { return id == u.ID }) {
			t.Errorf("pages of %d: %d tasks of %d, or another order", limit, len(got), len(want))
		}
	}
	for _, u := range all[:50] {
		if got, err := s.Get(t.Context(), u.ID); err != nil || got.State != task.Succeeded || !got.CreatedAt.Equal(u.CreatedAt) {
			t.Errorf("get: %+v, %v", got, err)
		}
	}
}

// A batch that ends as it was submitted makes packs that differ in nothing but their tasks: lists have all of them.
func TestListOfLikePacks(t *testing.T) {
	t.Parallel()
	s := open(t, server.DSN(server.Database(t)))
	if _, err := s.Acquire(t.Context(), 1, 0); err != nil {
		t.Fatal(err)
	}
	l := newLoad(1)
	changes := l.next(2000)
	at := time.UnixMicro(time.Now().UnixMicro())
	for _, ch := range changes {
		ch.Task.CreatedAt, ch.Task.DueAt, ch.Task.FirstDueAt = at, at, at
	}
	l.commit(t, s, changes)
	l.commit(t, s, l.finish())
	for _, limit := range []int{100, 1000, 5000} {
		seen := map[task.ID]bool{}
		after := store.Cursor{}
		for more := true; more; {
			var ts []*store.Task
			var err error
			if ts, more, err = s.List(t.Context(), store.Filter{Tenant: l.names[0]}, after, limit); err != nil {
				t.Fatal(err)
			}
			for _, u := range ts {
				seen[u.ID], after = true, store.Cursor{CreatedAt: u.CreatedAt, ID: u.ID}
			}
		}
		if len(seen) != 2000 {
			t.Errorf("pages of %d: %d tasks of 2,000", limit, len(seen))
		}
	}
}

func inserts(ts []*store.Task) (changes []store.Change) {
	for _, t := range ts {
		changes = append(changes, store.Change{Op: store.Insert, Task: t})
	}
	return changes
}

// A database that was restored from an older backup lacks what the store remembers to have written: the next owner's tasks
// are found and taken up all the same.
func TestAcquiringForgetsWhatWasThere(t *testing.T) {
	t.Parallel()
	s := open(t, server.DSN(server.Database(t)))
	epoch, err := s.Acquire(t.Context(), 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	l := newLoad(1)
	l.commit(t, s, l.next(1))
	l.commit(t, s, l.finish())
	for _, table := range []string{"blocks", "names"} { // what the backup has not
		if _, err := s.pool.Exec(t.Context(), "DELETE FROM headrace."+table); err != nil {
			t.Fatal(err)
		}
	}
	if epoch, err = s.Acquire(t.Context(), 1, epoch); err != nil {
		t.Fatal(err)
	}
	changes := l.next(1)
	put := func(changes []store.Change) {
		t.Helper()
		rs, err := s.Commit(t.Context(), &store.Batch{At: time.Now(), Parts: []store.Part{{Partition: 1, Epoch: epoch, Seq: 1000, Changes: changes}}})
		if err != nil || rs[0].Err != nil {
			t.Fatal(err, rs)
		}
	}
	put(changes)
	if flows, err := s.Flows(t.Context(), 1); err != nil || len(flows) != 1 {
		t.Errorf("flows: %v, %v; want the one that waits", flows, err)
	}
	put(l.finish())
	if _, err := s.Get(t.Context(), changes[0].Task.ID); err != nil {
		t.Errorf("the task that ended after the restore: %v", err)
	}
}
