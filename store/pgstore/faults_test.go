package pgstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/headrace/headrace/internal/pgtest"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// newServer starts a server that the test may break.
func newServer(t *testing.T, settings ...string) *pgtest.Server {
	t.Helper()
	s, err := pgtest.New(append([]string{"max_connections=100"}, settings...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// within calls f until it returns nil, and fails after a while.
func within(t *testing.T, limit time.Duration, f func() error) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(limit); ; <-tick.C {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("after %v: %v", limit, err)
		}
	}
}

// aTask is a queued task with a client id.
func aTask(partition uint32, seq uint64, client string) *store.Task {
	now := time.Now().UTC().Truncate(time.Microsecond)
	return &store.Task{ID: task.NewID(partition, seq, seq), Tenant: "acme", Function: "f", ClientID: client, Payload: []byte("p"), PayloadSize: 1,
		Band: task.Normal, Priority: 5, CreatedAt: now, DueAt: now, FirstDueAt: now, State: task.Queued, Attempt: 1}
}

func insertOf(ts ...*store.Task) (changes []store.Change) {
	for _, t := range ts {
		changes = append(changes, store.Change{Op: store.Insert, Task: t})
	}
	return changes
}

// commitOne commits changes to one partition.
func commitOne(ctx context.Context, s *Store, partition uint32, epoch store.Epoch, changes ...store.Change) (store.PartResult, error) {
	rs, err := s.Commit(ctx, &store.Batch{At: time.Now(), Parts: []store.Part{{Partition: partition, Epoch: epoch, Changes: changes}}})
	if err != nil {
		return store.PartResult{}, err
	}
	return rs[0], rs[0].Err
}

// hold sends a commit without the end of its message, as an owner that stops amid it would: the
// server has run it, and its locks are held.
func hold(t *testing.T, dsn string, partition uint32, epoch store.Epoch, ts ...*store.Task) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	var w writer
	w.init()
	w.live = []*store.Part{{Partition: partition, Epoch: epoch, Changes: insertOf(ts...)}}
	if err := w.load(time.Now()); err != nil {
		t.Fatal(err)
	}
	c := &w.columns
	p := conn.PgConn().StartPipeline(t.Context())
	p.SendQueryParams(commitSQL, c.params(day(time.Now())), c.oids, c.binary, []int16{1})
	p.SendFlushRequest()
	if err := p.Flush(); err != nil {
		t.Fatal(err)
	}
	r, err := p.GetResults()
	if err != nil {
		t.Fatalf("the held commit: %v (%v)", err, r)
	}
	return conn
}

// An owner that stops amid a commit does not block its successor, and what it had sent is not stored.
func TestAcquireEndsAHeldCommit(t *testing.T) {
	t.Parallel()
	dsn := server.DSN(server.Database(t))
	s := open(t, dsn)
	if _, err := s.Acquire(t.Context(), 1, 0); err != nil {
		t.Fatal(err)
	}
	held := aTask(1, 1, "order-1")
	hold(t, dsn, 1, 1, held)
	start := time.Now()
	epoch, err := s.Acquire(t.Context(), 1, 1)
	if err != nil || epoch != 2 {
		t.Fatalf("acquire = %d, %v", epoch, err)
	}
	if took := time.Since(start); took < 400*time.Millisecond || took > 5*time.Second {
		t.Errorf("acquire took %v: the lock was not held, or not given up in time", took)
	}
	if _, err := s.Get(t.Context(), held.ID); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("the held task: %v", err)
	}
	// Nor does its client id (B005): the next who asks gets it.
	again := aTask(1, 2, "order-1")
	if r, err := commitOne(t.Context(), s, 1, epoch, insertOf(again)...); err != nil || len(r.Existing) != 0 {
		t.Fatalf("commit = %v, %v", r, err)
	}
	if _, err := commitOne(t.Context(), s, 1, 1, insertOf(held)...); !errors.Is(err, store.ErrFenced) {
		t.Errorf("commit of the old owner = %v, want fenced", err)
	}
}

// ledger commits one task after another, and knows which were answered.
type ledger struct {
	s        *Store
	epoch    store.Epoch
	seq      uint64
	answered []task.ID
	unknown  []task.ID // one each batch of two
	failures map[string]int
}

// step commits a batch of two tasks; after a failure it acquires again, as R11 says.
func (l *ledger) step(ctx context.Context) error {
	l.seq += 2
	a, b := aTask(1, l.seq-1, ""), aTask(1, l.seq, "")
	_, err := commitOne(ctx, l.s, 1, l.epoch, insertOf(a, b)...)
	switch {
	case err == nil:
		l.answered = append(l.answered, a.ID, b.ID)
		return nil
	case errors.Is(err, store.ErrUnknown):
		l.unknown = append(l.unknown, a.ID)
		l.failures["unknown"]++
	case errors.Is(err, ErrUnavailable):
		l.failures["unavailable"]++
	case errors.Is(err, store.ErrFenced):
		l.failures["fenced"]++ // the server has started anew
	default:
		return err
	}
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		at, err := l.s.Epoch(ctx, 1)
		if err == nil {
			if l.epoch, err = l.s.Acquire(ctx, 1, at); err == nil {
				return nil
			}
		}
		if !errors.Is(err, ErrUnavailable) && !errors.Is(err, store.ErrUnknown) && code(err) != "" {
			return err
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	return fmt.Errorf("no acquire in time after %w", err)
}

// check fails unless all that was answered is there, and batches of unknown outcome are there whole or not at all.
func (l *ledger) check(t *testing.T) {
	t.Helper()
	there := func(id task.ID) bool {
		_, err := l.s.Get(t.Context(), id)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			t.Fatal(err)
		}
		return err == nil
	}
	stored := int64(0)
	for _, id := range l.answered {
		if !there(id) {
			t.Errorf("task %d was answered and is lost", id.Seq())
		}
		stored++
	}
	for _, id := range l.unknown {
		other := task.NewID(1, id.Seq()+1, id.Seq()+1)
		if a, b := there(id), there(other); a != b {
			t.Errorf("half of the batch of task %d is there: %v, %v", id.Seq(), a, b)
		} else if a {
			stored += 2
		}
	}
	r, err := l.s.Recover(t.Context(), 1)
	if err != nil || r.Partition.Ready != stored {
		t.Errorf("%d rows are counted (%v), %d are there", r.Partition.Ready, err, stored)
	}
	t.Logf("%d answered, failures %v", len(l.answered), l.failures)
}

// Backends that are killed amid load lose nothing that was answered.
func TestKilledBackends(t *testing.T) {
	t.Parallel()
	db := server.Database(t)
	s := open(t, server.DSN(db))
	l := &ledger{s: s, failures: map[string]int{}}
	var err error
	if l.epoch, err = s.Acquire(t.Context(), 1, 0); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(stop)
		for range 15 {
			_, err := server.SQL("postgres", "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = '"+db+"'")
			if err != nil {
				t.Error(err)
			}
		}
	})
	for running := true; running; {
		select {
		case <-stop:
			running = false
		default:
		}
		if err := l.step(t.Context()); err != nil {
			t.Error(err)
			break
		}
	}
	wg.Wait()
	if len(l.failures) == 0 {
		t.Error("no commit met a killed backend")
	}
	l.check(t)
}

// A server that is killed and comes back goes on with what it answered; the store needs no restart.
func TestServerRestart(t *testing.T) {
	t.Parallel()
	srv := newServer(t)
	s := open(t, srv.DSN(srv.Database(t)))
	l := &ledger{s: s, failures: map[string]int{}}
	var err error
	if l.epoch, err = s.Acquire(t.Context(), 1, 0); err != nil {
		t.Fatal(err)
	}
	restarted := make(chan error, 1)
	for i := 0; ; i++ {
		if i == 50 {
			go func() {
				srv.Kill()
				restarted <- srv.Start()
			}()
		}
		if err := l.step(t.Context()); err != nil {
			t.Fatal(err)
		}
		if i > 50 {
			select {
			case err := <-restarted:
				if err != nil {
					t.Fatal(err)
				}
				within(t, 10*time.Second, func() error { return l.step(t.Context()) })
				l.check(t)
				if len(l.failures) == 0 {
					t.Error("no commit met the restart")
				}
				return
			default:
			}
		}
	}
}

// A standby is never taken for the primary, neither by a store that was open when it became one nor at
// the start; after its promotion both work.
func TestStandbyIsNotThePrimary(t *testing.T) {
	t.Parallel()
	srv := newServer(t)
	dsn := srv.DSN(srv.Database(t))
	s := open(t, dsn)
	if _, err := s.Acquire(t.Context(), 1, 0); err != nil {
		t.Fatal(err)
	}
	srv.Stop()
	signal := filepath.Join(srv.Dir, "data", "standby.signal")
	if err := os.WriteFile(signal, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if out, err := exec.Command("chown", "postgres", signal).CombinedOutput(); err != nil {
			t.Fatal(err, string(out))
		}
	}
	if err := srv.Start(); err != nil {
		t.Fatal(err)
	}
	if got := srv.Must(t, "postgres", "SELECT pg_is_in_recovery()"); got != "t" {
		t.Fatalf("in recovery: %s", got)
	}
	if _, err := Open(t.Context(), Config{DSN: dsn}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("open = %v, want unavailable", err)
	}
	// A connection that a pooler made for us, and that is read-only by now.
	standby, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer standby.Close(t.Context())
	var epoch int64
	var recovering bool
	if err := standby.QueryRow(t.Context(), queries["Epoch"], 1).Scan(&epoch, &recovering); err != nil || !recovering {
		t.Errorf("the epoch's query does not tell a standby: %d, %v, %v", epoch, recovering, err)
	}
	_, err = standby.Exec(t.Context(), queries["Acquire"], 1, 1, 0)
	if err := classifyCommit(err); !errors.Is(err, ErrUnavailable) || errors.Is(err, store.ErrUnknown) {
		t.Errorf("acquire on a standby = %v, want unavailable", err)
	}
	// The same through a store whose connections nobody has looked at.
	pool, err := pgxpool.New(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	lax := &Store{cfg: s.cfg, pool: pool}
	if _, err := lax.Epoch(t.Context(), 1); !errors.Is(err, ErrUnavailable) {
		t.Errorf("epoch from a standby = %v, want unavailable", err)
	}
	if _, err := lax.Partitions(t.Context()); !errors.Is(err, ErrUnavailable) {
		t.Errorf("partitions from a standby = %v, want unavailable", err)
	}
	for name, call := range map[string]func() error{
		"epoch":      func() error { _, err := s.Epoch(t.Context(), 1); return err },
		"partitions": func() error { _, err := s.Partitions(t.Context()); return err },
		"acquire":    func() error { _, err := s.Acquire(t.Context(), 1, 1); return err },
		"commit":     func() error { _, err := commitOne(t.Context(), s, 1, 1, insertOf(aTask(1, 1, ""))...); return err },
	} {
		if err := call(); !errors.Is(err, ErrUnavailable) && !errors.Is(err, store.ErrUnknown) {
			t.Errorf("%s = %v, want unavailable", name, err)
		}
	}
	srv.Must(t, "postgres", "SELECT pg_promote()")
	// It may lack what the primary had answered: owners read it under a higher epoch before they write.
	within(t, 20*time.Second, func() error {
		if _, err := commitOne(t.Context(), s, 1, 1, insertOf(aTask(1, 2, ""))...); !errors.Is(err, store.ErrFenced) {
			return fmt.Errorf("a commit of before = %v, want fenced", err)
		}
		return nil
	})
	again, err := s.Acquire(t.Context(), 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := commitOne(t.Context(), s, 1, again, insertOf(aTask(1, 2, ""))...); err != nil {
		t.Error(err)
	}
}

// A commit that the server gives up is refused, not unknown, and leaves nothing.
func TestStatementTimeout(t *testing.T) {
	t.Parallel()
	db := server.Database(t)
	server.Must(t, "postgres", "ALTER DATABASE "+db+" SET statement_timeout = '300ms'")
	dsn := server.DSN(db)
	s := open(t, dsn)
	if _, err := s.Acquire(t.Context(), 1, 0); err != nil {
		t.Fatal(err)
	}
	holder := hold(t, dsn, 1, 1)
	a := aTask(1, 1, "")
	_, err := commitOne(t.Context(), s, 1, 1, insertOf(a)...)
	if code(err) != "57014" || errors.Is(err, store.ErrUnknown) {
		t.Fatalf("commit = %v, want a refusal", err)
	}
	holder.Close(t.Context())
	within(t, 5*time.Second, func() error { _, err := commitOne(t.Context(), s, 1, 1, insertOf(a)...); return err })
}

// A commit that finds the disk full says so and stored nothing; with room it works again.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("a small disk is mounted by root only")
	}
	srv := newServer(t)
	small := filepath.Join(srv.Dir, "small")
	sh := func(args ...string) {
		t.Helper()
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatal(args, err, string(out))
		}
	}
	sh("mkdir", small)
	sh("mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", small)
	t.Cleanup(func() { srv.Stop(); sh("umount", small) })
	sh("chown", "postgres", small)
	srv.Must(t, "postgres", "CREATE TABLESPACE small LOCATION '"+small+"'")
	srv.Must(t, "postgres", "CREATE DATABASE full_one TABLESPACE small")
	s := open(t, srv.DSN("full_one"))
	if _, err := s.Acquire(t.Context(), 1, 0); err != nil {
		t.Fatal(err)
	}
	l := newLoad(1)
	var err error
	var stored int64
	for range 1000 {
		if _, err = commitOne(t.Context(), s, 1, 1, l.next(500)...); err != nil {
			break
		}
		stored += 500
	}
	if !errors.Is(err, store.ErrFull) || errors.Is(err, store.ErrUnknown) {
		t.Fatalf("after %d rows: %v, want full", stored, err)
	}
	if ps, err := s.Partitions(t.Context()); err != nil || ps[0].Ready != stored {
		t.Errorf("partitions = %+v, %v; want %d rows", ps, err, stored)
	}
	sh("mount", "-o", "remount,size=80m", small)
	if _, err := commitOne(t.Context(), s, 1, 1, l.next(500)...); err != nil {
		t.Errorf("with room: %v", err)
	}
}

// What the server refused is not stored; what it did not answer may be.
func TestCommitErrors(t *testing.T) {
	t.Parallel()
	refusal := func(severity, code string) error {
		return fmt.Errorf("commit: %w", &pgconn.PgError{Severity: severity, SeverityUnlocalized: severity, Code: code})
	}
	for _, tt := range []struct {
		err                        error
		unknown, unavailable, full bool
	}{
		{err: io.ErrUnexpectedEOF, unknown: true},
		{err: context.DeadlineExceeded, unknown: true},
		{err: refusal("FATAL", "57P01"), unknown: true}, // it may have come after the commit
		{err: refusal("PANIC", "53100"), unknown: true},
		{err: refusal("ERROR", "57014")},
		{err: refusal("ERROR", "XX001")},
		{err: refusal("ERROR", "25006"), unavailable: true},
		{err: refusal("ERROR", "53100"), full: true},
		{err: notSent(context.DeadlineExceeded), unavailable: true},
	} {
		err := classifyCommit(tt.err)
		if errors.Is(err, store.ErrUnknown) != tt.unknown || errors.Is(err, ErrUnavailable) != tt.unavailable || errors.Is(err, store.ErrFull) != tt.full {
			t.Errorf("%v became %v", tt.err, err)
		}
	}
}

// A database that was restored from an older backup while its owner lives refuses what the owner writes next, though
// the epoch is the same: what it has in memory is not what is there. A plain restart does so, too.
func TestRestoredServerFences(t *testing.T) {
	t.Parallel()
	srv := newServer(t)
	s := open(t, srv.DSN(srv.Database(t)))
	epoch, err := s.Acquire(t.Context(), 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	data, backup := filepath.Join(srv.Dir, "data"), filepath.Join(srv.Dir, "backup")
	files := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", name, err, out)
		}
	}
	start := func() {
		t.Helper()
		if err := srv.Start(); err != nil {
			t.Fatal(err)
		}
	}
	kept, lost, late := aTask(1, 1, "kept"), aTask(1, 2, "lost"), aTask(1, 3, "late")
	if _, err := commitOne(t.Context(), s, 1, epoch, insertOf(kept)...); err != nil {
		t.Fatal(err)
	}
	srv.Stop()
	files("cp", "-a", data, backup)
	start()
	fenced := func() {
		t.Helper()
		within(t, 20*time.Second, func() error {
			_, err := commitOne(t.Context(), s, 1, epoch, insertOf(late)...)
			if errors.Is(err, store.ErrFenced) {
				return nil
			}
			return fmt.Errorf("the commit of before = %v, want fenced", err)
		})
		if epoch, err = s.Acquire(t.Context(), 1, epoch); err != nil {
			t.Fatal(err)
		}
	}
	fenced()
	if _, err := commitOne(t.Context(), s, 1, epoch, insertOf(lost)...); err != nil {
		t.Fatal(err)
	}
	srv.Stop()
	files("rm", "-rf", data)
	files("mv", backup, data)
	start()
	within(t, 20*time.Second, func() (err error) { epoch, err = s.Epoch(t.Context(), 1); return err })
	if epoch != 1 {
		t.Fatalf("epoch %d after the restore, want 1", epoch)
	}
	fenced()
	if _, err := commitOne(t.Context(), s, 1, epoch, insertOf(late)...); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[task.ID]bool{kept.ID: true, lost.ID: false, late.ID: true} {
		if _, err := s.Get(t.Context(), id); (err == nil) != want {
			t.Errorf("task %d: %v, want it there: %v", id.Seq(), err, want)
		}
	}
}

// A client id that a stuck commit of somebody else is taking leaves the batch (B102): the rest is stored within a second, nobody
// queues behind the lock, and the id is free or taken as the other one ends.
func TestKeyThatWaitsLeavesTheBatch(t *testing.T) {
	t.Parallel()
	for _, ends := range []string{"COMMIT", "ROLLBACK"} {
		db := server.Database(t)
		s := open(t, server.DSN(db))
		epoch, err := s.Acquire(t.Context(), 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		taken := aTask(1, 1, "order-taken")
		if _, err := commitOne(t.Context(), s, 1, epoch, insertOf(taken)...); err != nil {
			t.Fatal(err)
		}
		other := task.NewID(2, 1, 77)
		stuck, err := s.pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		exec := func(sql string, args ...any) {
			t.Helper()
			if _, err := stuck.Exec(t.Context(), sql, args...); err != nil {
				t.Fatal(err)
			}
		}
		exec("BEGIN")
		for _, key := range []string{"order-b", "order-d"} {
			exec("INSERT INTO headrace.directory (tenant, client, id) VALUES ($1, $2, $3)", taken.Tenant, []byte(key), other)
		}
		var tasks []*store.Task
		for i, key := range []string{"order-a", "order-b", "order-c", "order-d", "order-taken", ""} {
			tasks = append(tasks, aTask(1, uint64(i+2), key))
		}
		began := time.Now()
		r, err := commitOne(t.Context(), s, 1, epoch, insertOf(tasks...)...)
		if err != nil {
			t.Fatal(err)
		}
		// It waits 0.1 s and twice 0.01 s, where the lock's own limit is 2 s and five tries.
		if took := time.Since(began); took > 1900*time.Millisecond {
			t.Errorf("a commit with two stuck keys took %v", took)
		}
		if len(r.Busy) != 2 || !r.Busy[1] || !r.Busy[3] || len(r.Existing) != 1 || r.Existing[4] == nil || r.Existing[4].ID != taken.ID {
			t.Errorf("%s: busy %v, existing %v", ends, r.Busy, r.Existing)
		}
		for i, u := range tasks {
			_, err := s.Get(t.Context(), u.ID)
			if stored := i == 0 || i == 2 || i == 5; stored != (err == nil) {
				t.Errorf("task %d: %v", i, err)
			}
		}
		if ps, err := s.Partitions(t.Context()); err != nil || ps[0].Ready != 4 {
			t.Errorf("%+v, %v", ps, err)
		}
		exec(ends)
		stuck.Release()
		r, err = commitOne(t.Context(), s, 1, epoch, insertOf(tasks[1])...)
		if err != nil || len(r.Busy) != 0 || (r.Existing[0] != nil) != (ends == "COMMIT") {
			t.Errorf("after the other's %s: %+v, %v", ends, r, err)
		}
		if ends == "COMMIT" && r.Existing[0] != nil && r.Existing[0].ID != other {
			t.Errorf("the holder is %v", r.Existing[0].ID)
		}
	}
}
