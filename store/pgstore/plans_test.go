package pgstore

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// forgetRows leaves the statistics as a vacuum does that finds dead rows only, which somebody's transaction keeps: to the planner,
// a scan of any index from end to end costs what a probe does.
func forgetRows(t *testing.T, db string) {
	t.Helper()
	server.Must(t, db, "UPDATE pg_class SET reltuples = 0, relpages = greatest(relpages, 1) WHERE relnamespace = 'headrace'::regnamespace")
}

// With 30,000 dead rows that may not be removed, and statistics that know of none, everything that an owner does reads a few index
// entries a task.
func TestPlansDoNotHangOnStatistics(t *testing.T) {
	t.Parallel()
	db := server.Database(t)
	s := open(t, server.DSN(db))
	ctx := t.Context()
	if _, err := s.Acquire(ctx, 1, 0); err != nil {
		t.Fatal(err)
	}
	holder := open(t, server.DSN(db))
	pin, err := holder.pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer pin.Rollback(ctx)
	if _, err := pin.Exec(ctx, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"); err != nil {
		t.Fatal(err)
	}
	if _, err := pin.Exec(ctx, "SELECT count(*) FROM headrace.partitions"); err != nil {
		t.Fatal(err)
	}
	l := newLoad(1)
	round := func(n int) []store.Change {
		next := l.next(n)
		for _, ch := range next {
			ch.Task.ClientID = fmt.Sprint("order-", ch.Task.ID.Seq())
			ch.Task.Labels = map[string]string{"k": fmt.Sprint(ch.Task.ID.Seq() % 10)}
		}
		return next
	}
	for range 30 {
		l.commit(t, s, round(1000))
		l.commit(t, s, l.finish())
	}
	l.running = nil
	s.Close() // a backend flushes its statistics when it ends
	server.Must(t, db, "VACUUM ANALYZE headrace.hot")
	if got := server.Must(t, db, "SELECT reltuples FROM pg_class WHERE oid = 'headrace.hot'::regclass"); got != "0" {
		t.Fatalf("a vacuum found %s rows", got)
	}
	forgetRows(t, db)
	entries := func() int {
		t.Helper()
		n, err := strconv.Atoi(server.Must(t, db, "SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE schemaname = 'headrace' AND relname !~ '^(counts|flows)'"))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := entries()
	s = open(t, server.DSN(db))
	const n = 100
	l.commit(t, s, round(n))
	var recorded, lost []store.Change
	for _, old := range l.running {
		r := *old
		r.Payload, r.Record = nil, &store.Record{Token: task.Token{Epoch: 1, Push: 1}, Executor: "host-1", StartedAt: time.Now()}
		recorded = append(recorded, store.Change{Op: store.Update, Old: old, Task: &r, KeepPayload: true})
		f := r
		f.Record, f.State, f.FinishedAt = nil, task.Failed, time.Now() // its payload moves along
		lost = append(lost, store.Change{Op: store.Finish, Old: &r, Task: &f})
	}
	l.commit(t, s, recorded)
	first := l.running[0]
	if r, err := s.Recover(ctx, 1); err != nil || len(r.Recorded) != n {
		t.Fatal(r, err)
	}
	if ts, _, err := s.Ready(ctx, 1, first.Flow(), store.Key{Sort: first.Key().Sort, Seq: first.ID.Seq() - 1}, 10, 1<<20, 1<<16); err != nil || len(ts) != 10 {
		t.Fatal(len(ts), err)
	}
	if got, err := s.Get(ctx, first.ID); err != nil || got.Record == nil {
		t.Fatal(got, err)
	}
	if got, err := s.bare(ctx, []task.ID{first.ID, l.running[1].ID}); err != nil || len(got) != 2 {
		t.Fatal(got, err)
	}
	l.commit(t, s, lost)
	if got, err := s.Get(ctx, first.ID); err != nil || string(got.Payload) != string(first.Payload) {
		t.Fatal(got, err)
	}
	s.Close()
	// An insert that looks for its client id, an update, a finish: some ten entries a task. A scan of any index is 30,000 and more.
	if read := entries() - before; read > 20*n {
		t.Errorf("%d index entries were read for %d tasks", read, n)
	} else {
		t.Logf("%d index entries for %d tasks", read, n)
	}
}
