package pgstore

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// Many nodes start on an empty database at once, and some die half-way: each migration is applied once.
func TestManyNodesMigrateAtOnce(t *testing.T) {
	t.Parallel()
	ms, err := migrations()
	if err != nil {
		t.Fatal(err)
	}
	for round := range 3 {
		db := server.Database(t)
		var wg sync.WaitGroup
		for range 12 {
			wg.Go(func() {
				within(t, 60*time.Second, func() error {
					s, err := Open(t.Context(), Config{DSN: server.DSN(db), Connections: 2})
					if err != nil && round == 0 {
						t.Errorf("open: %v", err)
					}
					if err == nil {
						s.Close()
					}
					return err
				})
			})
		}
		for range 5 * round {
			server.Must(t, "postgres", "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = '"+db+"'")
		}
		wg.Wait()
		if got := server.Must(t, db, "SELECT count(*), max(version) FROM headrace.migrations"); got != fmt.Sprintf("%d|%d", len(ms), len(ms)) {
			t.Errorf("migrations: %s, want %d", got, len(ms))
		}
		if got := server.Must(t, db, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"); got != "0" {
			t.Errorf("%s advisory locks are left", got)
		}
	}
}

// A database that a newer version has migrated is left alone.
func TestNewerSchemaIsRefused(t *testing.T) {
	t.Parallel()
	db := server.Database(t)
	open(t, server.DSN(db)).Close()
	server.Must(t, db, "INSERT INTO headrace.migrations (version, name) VALUES (9999, 'from the future')")
	if s, err := Open(t.Context(), Config{DSN: server.DSN(db)}); !errors.Is(err, ErrNewerSchema) {
		t.Fatalf("open = %v, %v; want a newer schema", s, err)
	}
}

// Every query parses, and the hot ones use the index that their comment names: with statistics and
// without, with no sort and no scan.
func TestQueriesUseTheirIndexes(t *testing.T) {
	t.Parallel()
	db := server.Database(t)
	s := open(t, server.DSN(db))
	ctx := t.Context()
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for name, sql := range queries {
		if _, err := conn.Conn().Prepare(ctx, "test_"+name, sql); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(queries) < 15 {
		t.Errorf("only %d queries were found", len(queries))
	}
	if _, err := s.Acquire(ctx, 1, 0); err != nil {
		t.Fatal(err)
	}
	l := newLoad(3)
	l.commit(t, s, l.next(3000))
	l.commit(t, s, append(l.finish(), l.next(3000)...))
	f := store.Flow{Tenant: l.names[0], Function: "resize", Band: task.Normal}
	last := l.running[0].ID
	list := []int64{listBase(f.Tenant, f.Function) | int64(task.Queued)}
	tests := []struct {
		name    string
		args    []any
		indexes string
		never   string
	}{
		{"Page", []any{readyPlace(1, f), int64(0), int64(0), int64(1) << 62, int64(257), int64(1 << 20), int64(1 << 16), plainPlace(readyPlace(1, f))}, "hot_place", "Sort  ("},
		{"Marked", []any{int64(1)}, "hot_mark", "Sort"},
		{"LabelHot", []any{int64(1), int64(1) << 62, last, int64(100)}, "hot_labels_pkey", "Sort"},
		{"LabelHistory", []any{int64(1), int64(1) << 62, last, int64(100)}, "label_created_id_idx", "Sort  ("},
		{"Packs", []any{[]int16{0}, []int32{day(time.Now())}, []int64{blockOf(last)}, []int16{1}, []int64{1}}, "_block_sole_idx", "Sort"},
		{"BareHot", []any{[]task.ID{last}}, "hot_pkey", ""},
		{"BareHistory", []any{[]int64{1}, []int64{0}, []int64{blockOf(last)}, []int16{1}, []int64{1}}, "_block_sole_idx", "Sort"},
		{"Names", []any{"acme", ""}, "names_pkey", "Sort"},
		{"GetHot", []any{last}, "hot_pkey", "Append"},
		{"GetHistory", []any{int16(0), day(time.Now()), blockOf(last), soleOf(last), int64(1)}, "_block_sole_idx", "Append"},
		{"Blocks", []any{int64(1), int64(0)}, "blocks_pkey", ""},
		{"ByClientID", []any{"acme", []byte("x")}, "directory_pkey", ""},
		{"ListHot", []any{list, int64(1) << 62, last, int64(100), []int64{1}, plainAge, int64(1) << 62, []int64{1}}, "hot_list", ""},
		{"ListHot", []any{list, int64(1) << 62, last, int64(100), []int64{1}, plainAge, int64(1) << 62, []int64{1}}, "hot_place", ""},
		{"ListHistory", []any{list, int64(1) << 62, int64(1) << 62, int64(1) << 62, int64(100), int64(100), int16(0)}, "list_created_block_sole_idx", ""},
		{"Request", []any{[]byte("x"), int64(0), int64(1), int64(1), "acme"}, "requests_0_id_at_idx", ""},
		{"Partitions", []any{int64(1)}, "counts_pkey", "Sort"},
	}
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(ctx)
	if _, err := tx.Exec(ctx, queries["Plan"]); err != nil {
		t.Fatal(err)
	}
	for _, analysed := range []string{"never", "full", "without a live row"} {
		switch analysed {
		case "full":
			server.Must(t, db, "ANALYZE")
		case "without a live row":
			forgetRows(t, db)
		}
		for _, tt := range tests {
			rows, err := tx.Query(ctx, "EXPLAIN "+queries[tt.name], tt.args...)
			if err != nil {
				t.Fatal(tt.name, err)
			}
			var plan strings.Builder
			for rows.Next() {
				var line string
				if err := rows.Scan(&line); err != nil {
					t.Fatal(err)
				}
				plan.WriteString(line + "\n")
			}
			p := plan.String()
			big := strings.Contains(p, "Seq Scan on hot") || strings.Contains(p, "Seq Scan on history")
			if strings.Contains(p, "Bitmap") {
				t.Errorf("%s: a bitmap reads all before the first row:\n%s", tt.name, p)
			}
			if rows.Err() != nil || !strings.Contains(p, tt.indexes) || big || tt.never != "" && strings.Contains(p, tt.never) {
				t.Errorf("%s (analysed: %s) must use %s and no %q: %v\n%s", tt.name, analysed, tt.indexes, tt.never, rows.Err(), p)
			}
		}
	}
}

// What commit_v1 runs inside scans no table, from the first commit on an empty database to a large one.
func TestCommitScansNothing(t *testing.T) {
	t.Parallel()
	db := server.Database(t)
	s := open(t, server.DSN(db))
	if _, err := s.Acquire(t.Context(), 1, 0); err != nil {
		t.Fatal(err)
	}
	l := newLoad(19)
	l.commit(t, s, l.next(10))
	l.commit(t, s, l.finish()) // makes the day: building an index counts as a scan
	l.running = nil
	s.Close() // a backend flushes its statistics when it ends
	const count = "SELECT coalesce(sum(seq_scan), 0) FROM pg_stat_user_tables WHERE schemaname = 'headrace' AND relname ~ '^(hot|history|counts|flows|directory|blocks)'"
	before := server.Must(t, db, count)
	s = open(t, server.DSN(db))
	for i := range 300 { // past a fold
		next := l.next(20)
		for j, ch := range next {
			ch.Task.ClientID = fmt.Sprint("c", i, "-", j%19) // two alike in each batch
			ch.Task.Labels = map[string]string{"k": "v"}
		}
		rs, err := s.Commit(t.Context(), &store.Batch{At: time.Now(), Parts: []store.Part{{Partition: 1, Epoch: 1, Changes: next, Seq: l.seq}}})
		if err != nil || rs[0].Err != nil || len(rs[0].Existing) != 1 {
			t.Fatal(rs, err)
		}
		l.running = l.running[:18] // the 19th stays, the 20th was refused
		l.commit(t, s, l.finish())
		l.running = nil
	}
	// The flows are right, of which most was folded.
	flows, err := s.Flows(t.Context(), 1)
	ready, bytes := int64(0), int64(0)
	for _, f := range flows {
		ready += f.Ready
		bytes += f.Bytes
	}
	if p, err2 := s.Partitions(t.Context()); err != nil || err2 != nil || ready != 300 || bytes != 300*200 || p[0].Ready != 300 || p[0].Bytes != bytes {
		t.Errorf("%d ready, %d bytes in %d flows; %+v; %v, %v", ready, bytes, len(flows), p, err, err2)
	}
	s.Close()
	if after := server.Must(t, db, count); after != before {
		t.Errorf("%s sequential scans, then %s", before, after)
	}
	if got := server.Must(t, db, "SELECT count(*) < 260, max(n) > 600, max(folded) > 500 FROM headrace.counts"); got != "t|t|t" {
		t.Errorf("counts are not folded: %s", got)
	}
}

// One commit may have more rows than a statement may have parameters (B092), and is all or nothing.
func TestOneCommitOfManyRows(t *testing.T) {
	t.Parallel()
	s := open(t, server.DSN(server.Database(t)))
	if _, err := s.Acquire(t.Context(), 1, 0); err != nil {
		t.Fatal(err)
	}
	const rows = 66_000
	l := newLoad(1)
	l.commit(t, s, l.next(rows))
	if ps, err := s.Partitions(t.Context()); err != nil || ps[0].Ready != rows || ps[0].Bytes != rows*200 {
		t.Fatalf("partitions = %+v, %v", ps, err)
	}
	last := l.running[rows-1]
	done := *last
	done.State = task.Succeeded
	if _, err := commitOne(t.Context(), s, 1, 1, store.Change{Op: store.Finish, Old: last, Task: &done}); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Get(t.Context(), last.ID); err != nil || got.State != task.Succeeded {
		t.Errorf("get of a finished task of a high number: %+v, %v", got, err)
	}
	first := *l.running[0]
	missing := first
	missing.ID = task.NewID(1, rows+1, 1)
	end := func(old *store.Task) store.Change {
		done := *old
		done.State = task.Succeeded
		return store.Change{Op: store.Finish, Old: old, Task: &done}
	}
	if _, err := commitOne(t.Context(), s, 1, 1, end(&first), end(&missing)); code(err) != "XX001" {
		t.Fatalf("finishing what is not there = %v, want a refusal", err)
	}
	if got, err := s.Get(t.Context(), first.ID); err != nil || got.State != task.Queued {
		t.Errorf("the other one: %+v, %v", got, err)
	}
}

// The life of tasks through a pooler in transaction mode that has three connections and knows no
// prepared statements.
func TestPooler(t *testing.T) {
	t.Parallel()
	db := server.Database(t)
	dsn := pooler(t, db)
	var wg sync.WaitGroup
	for range 6 { // they migrate through it, too
		wg.Go(func() {
			s, err := Open(t.Context(), Config{DSN: dsn})
			if err != nil {
				t.Error(err)
				return
			}
			s.Close()
		})
	}
	wg.Wait()
	for id := range uint32(4) {
		wg.Go(func() {
			s, err := Open(t.Context(), Config{DSN: dsn})
			if err != nil {
				t.Error(err)
				return
			}
			defer s.Close()
			epoch, err := s.Acquire(t.Context(), id, 0)
			if err != nil {
				t.Error(err)
				return
			}
			for seq := uint64(1); seq <= 60; seq++ {
				a := aTask(id, seq, fmt.Sprint("order-", seq))
				r, err := commitOne(t.Context(), s, id, epoch, insertOf(a)...)
				if err != nil {
					t.Error(err)
					return
				}
				if h := r.Existing[0]; h != nil && h.ClientID != a.ClientID {
					t.Errorf("holder of %s: %+v", a.ClientID, h)
				}
				if _, _, err := s.Ready(t.Context(), id, a.Flow(), store.Key{}, 10, 1<<20, 1<<16); err != nil {
					t.Error(err)
				}
				if _, err := s.Recover(t.Context(), id); err != nil {
					t.Error(err)
				}
				if r.Existing[0] == nil {
					done := *a
					done.State, done.FinishedAt = task.Succeeded, time.Now()
					if _, err := commitOne(t.Context(), s, id, epoch, store.Change{Op: store.Finish, Old: a, Task: &done}); err != nil {
						t.Error(err)
					}
					if _, err := s.Get(t.Context(), a.ID); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	if got := server.Must(t, db, "SELECT count(*), count(DISTINCT client) FROM headrace.directory"); got != "60|60" {
		t.Errorf("directory: %s", got)
	}
	if got := server.Must(t, db, "SELECT count(*) FROM headrace.hot"); got != "0" {
		t.Errorf("%s rows are left", got)
	}
}

// pooler starts a PgBouncer in front of the shared server and returns the connection string.
func pooler(t *testing.T, db string) string {
	t.Helper()
	bin := "/usr/sbin/pgbouncer"
	if _, err := os.Stat(bin); err != nil {
		t.Fatalf("%v: run `make test-deps`", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	dir, err := os.MkdirTemp("", "headrace-bouncer-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	ini := fmt.Sprintf("[databases]\n* = host=127.0.0.1 port=%d\n[pgbouncer]\nlisten_addr=127.0.0.1\nlisten_port=%d\nunix_socket_dir=\nauth_type=any\n"+
		"pool_mode=transaction\ndefault_pool_size=3\nmax_client_conn=200\nadmin_users=postgres\n[users]\n", server.Port, port)
	ini = strings.Replace(ini, "* = host=127.0.0.1", "* = user=postgres host=127.0.0.1", 1)
	name := filepath.Join(dir, "bouncer.ini")
	if err := os.WriteFile(name, []byte(ini), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	args := []string{name}
	if os.Geteuid() == 0 {
		args = append([]string{"-u", "postgres"}, args...)
	}
	cmd := exec.Command(bin, args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // we killed it
	})
	within(t, 10*time.Second, func() error {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			c.Close()
		}
		return err
	})
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/%s?sslmode=disable", port, db)
}

// Somebody's long transaction keeps dead rows in place; a refill behind its cursor and the counters of a
// commit touch as few pages as without it.
func TestPinnedXminDoesNotSlowRefills(t *testing.T) {
	t.Parallel()
	db := server.Database(t)
	s := open(t, server.DSN(db))
	if _, err := s.Acquire(t.Context(), 1, 0); err != nil {
		t.Fatal(err)
	}
	l := newLoad(1)
	l.commit(t, s, l.next(100))
	f := l.running[0].Flow()
	pin, err := s.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer pin.Rollback(t.Context())
	if _, err := pin.Exec(t.Context(), "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"); err != nil {
		t.Fatal(err)
	}
	if _, err := pin.Exec(t.Context(), "SELECT count(*) FROM headrace.partitions"); err != nil {
		t.Fatal(err)
	}
	if _, err := pin.Exec(t.Context(), "SET application_name = 'the one that pins'"); err != nil {
		t.Fatal(err)
	}
	if o, err := s.OldestSnapshot(t.Context()); err != nil || uint32(o.PID) != pin.Conn().PgConn().PID() || o.User != "postgres" || o.State != "idle in transaction" {
		t.Errorf("oldest snapshot = %+v, %v", o, err)
	}
	if as, err := s.Alarms(t.Context()); err != nil || len(as) != 0 {
		t.Errorf("alarms of a transaction that is young: %v, %v", as, err)
	}
	s.cfg.PinnedAfter = time.Nanosecond
	as, err := s.Alarms(t.Context())
	if err != nil || len(as) != 1 || as[0].Kind != store.AlarmXmin {
		t.Fatalf("alarms = %v, %v", as, err)
	}
	for _, want := range []string{fmt.Sprintf("pid %d ", pin.Conn().PgConn().PID()), `user "postgres"`, `application "the one that pins"`, `state "idle in transaction"`, fmt.Sprintf("database %q", db)} {
		if !strings.Contains(as[0].Message, want) {
			t.Errorf("the alarm %q does not say %s", as[0].Message, want)
		}
	}
	pages := func(query string, args ...any) int {
		t.Helper()
		rows, err := s.pool.Query(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF) "+queries[query], args...)
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		n := -1
		for rows.Next() {
			var line string
			if err := rows.Scan(&line); err != nil {
				t.Fatal(err)
			}
			if _, text, ok := strings.Cut(line, "Buffers: shared hit="); ok && n < 0 {
				fmt.Sscan(text, &n)
			}
		}
		return n
	}
	// A refill of ten rows from where the owner's cursor stands, and the newest counters.
	refill := func() int {
		k := l.running[0].Key()
		return pages("Page", readyPlace(1, f), k.Sort, int64(k.Seq), int64(1)<<62, int64(10), int64(1<<20), int64(1<<16), plainPlace(readyPlace(1, f)))
	}
	counters := func() int { return pages("Partitions", int64(1)) }
	refillBefore, countersBefore := refill(), counters()
	for range 400 { // past a fold
		l.commit(t, s, append(l.finish(), l.next(100)...))
	}
	server.Must(t, db, "VACUUM headrace.hot")
	if dead := server.Must(t, db, "SELECT count(*) FROM headrace.hot"); dead != "100" {
		t.Fatalf("%s live rows", dead)
	}
	refillAfter, countersAfter := refill(), counters()
	t.Logf("pages of a refill: %d, then %d; of the counters: %d, then %d", refillBefore, refillAfter, countersBefore, countersAfter)
	if refillAfter > refillBefore+30 || countersAfter > countersBefore+10 {
		t.Errorf("pages of a refill: %d, then %d; of the counters: %d, then %d", refillBefore, refillAfter, countersBefore, countersAfter)
	}
}

// Days are dropped whole with the client ids of their tasks; what is younger stays.
func TestMaintainDropsOldDays(t *testing.T) {
	t.Parallel()
	db := server.Database(t)
	s := open(t, server.DSN(db))
	ctx := t.Context()
	epoch, err := s.Acquire(ctx, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 3, 1, 23, 59, 0, 0, time.UTC)
	var ids []task.ID
	for i, at := range []time.Time{now.AddDate(0, 0, -40), now.AddDate(0, 0, -29), now} {
		a := aTask(1, uint64(i+1), fmt.Sprint("order-", i))
		done := *a
		done.State, done.FinishedAt, a.Labels, done.Labels = task.Succeeded, at, map[string]string{"k": "v"}, map[string]string{"k": "v"}
		rs, err := s.Commit(ctx, &store.Batch{At: at, Parts: []store.Part{{Partition: 1, Epoch: epoch, Changes: []store.Change{
			{Op: store.Insert, Task: a}, {Op: store.Finish, Old: a, Task: &done}}, Requests: []store.Request{{ID: fmt.Sprint("request-", i), Tenant: "acme"}}}}})
		if err != nil || rs[0].Err != nil {
			t.Fatal(rs, err)
		}
		ids = append(ids, a.ID)
	}
	for range 2 { // the second finds nothing to do
		if err := s.Maintain(ctx, now, 30*24*time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	for i, id := range ids {
		_, err := s.Get(ctx, id)
		_, byClient := s.ByClientID(ctx, "acme", fmt.Sprint("order-", i))
		if gone := i == 0; errors.Is(err, store.ErrNotFound) != gone || errors.Is(byClient, store.ErrNotFound) != gone {
			t.Errorf("task %d: %v, its client id: %v", i, err, byClient)
		}
	}
	if _, err := s.Request(ctx, 1, "acme", "request-2", now); err != nil {
		t.Errorf("the last request: %v", err)
	}
	if rows, _, err := s.List(ctx, store.Filter{Tenant: "acme", Label: "k=v"}, store.Cursor{}, 10); err != nil || len(rows) != 2 {
		t.Errorf("list = %d rows, %v", len(rows), err)
	}
	// The days that come are there before the first commit needs them.
	if got := server.Must(t, db, fmt.Sprintf("SELECT to_regclass('headrace.history_0_%d') IS NOT NULL", day(now.Add(24*time.Hour)))); got != "t" {
		t.Error("tomorrow is not there")
	}
}
