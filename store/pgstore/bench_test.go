package pgstore

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headrace/headrace/internal/pgtest"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// tuned are the settings that docs/adr/0015 was measured with.
var tuned = []string{"shared_buffers=2GB", "max_wal_size=8GB", "min_wal_size=2GB", "wal_buffers=64MB", "wal_compression=lz4",
	"checkpoint_timeout=15min", "autovacuum_naptime=10s", "autovacuum_vacuum_cost_delay=1ms", "synchronous_commit=on"}

// BenchmarkCycle is the life of a task as the store sees it: each commit inserts a batch and finishes
// the one before. One operation is one task. HEADRACE_WAL=1 shows what the log holds, by record and relation.
func BenchmarkCycle(b *testing.B) {
	s, err := pgtest.New(append(tuned, strings.Fields(os.Getenv("HEADRACE_PGSET"))...)...)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	for _, batch := range []int{100, 1000} {
		for _, tenants := range []int{1, 10, 100, 1000} {
			b.Run(fmt.Sprintf("batch=%d/tenants=%d", batch, tenants), func(b *testing.B) { cycle(b, s, batch, tenants) })
		}
	}
}

func cycle(b *testing.B, server *pgtest.Server, batch, tenants int) {
	db := server.Database(b)
	s := open(b, server.DSN(db))
	if _, err := s.Acquire(b.Context(), 1, 0); err != nil {
		b.Fatal(err)
	}
	load := newLoad(tenants)
	load.commit(b, s, load.next(batch)) // makes the day and fills the caches
	server.Must(b, "postgres", "CHECKPOINT")
	done, wal := 0, 0.0
	walBefore, _ := s.DiskBytes()
	from := server.Must(b, db, "SELECT pg_current_wal_insert_lsn()")
	start, cpu, cpuServer := time.Now(), cpuTime(), server.CPU()
	b.ResetTimer()
	for done < b.N {
		done += len(load.running)
		load.commit(b, s, append(load.finish(), load.next(batch)...))
	}
	b.StopTimer()
	own, theirs := float64(cpuTime()-cpu)/1e3, float64((server.CPU()-cpuServer).Nanoseconds())/1e3
	b.ReportMetric(float64(done)/time.Since(start).Seconds(), "tasks/s")
	walAfter, _ := s.DiskBytes()
	wal = float64(walAfter - walBefore)
	if os.Getenv("HEADRACE_WAL") != "" && b.N > 1 {
		dump, err := server.WAL(db, from, server.Must(b, db, "SELECT pg_current_wal_flush_lsn()"))
		if err != nil {
			b.Fatal(err)
		}
		fmt.Fprintf(os.Stderr, "log of %d tasks, %d tenants: bytes, records, bytes a record\n%s", done, tenants, dump) // b.Log keeps ten lines
	}
	b.ReportMetric(own/float64(done), "client-us/task")
	b.ReportMetric(theirs/float64(done), "server-us/task")
	b.ReportMetric(wal/float64(done), "wal-B/task")
}

// load makes tasks of 200 bytes and ends them.
type load struct {
	names   []string
	text    []byte
	running []*store.Task
	seq     uint64
}

func newLoad(tenants int) *load {
	l := &load{names: make([]string, tenants), text: make([]byte, 1<<20)}
	for i := range l.names {
		l.names[i] = fmt.Sprintf("tenant-%04d", i)
	}
	for i := range l.text {
		l.text[i] = byte('a' + rand.IntN(26))
	}
	return l
}

func (l *load) next(n int) (changes []store.Change) {
	now := time.Now()
	l.running = nil
	for range n {
		l.seq++
		payload := l.text[int(l.seq*201)%(len(l.text)-200):][:200]
		t := &store.Task{
			ID: task.NewID(1, l.seq, rand.Uint64()), Tenant: l.names[l.seq%uint64(len(l.names))], Function: "resize", Band: task.Normal,
			RequestID: "0123456789abcdef", Payload: payload, PayloadSize: len(payload), Priority: 5,
			CreatedAt: now, DueAt: now, FirstDueAt: now, State: task.Queued, Attempt: 1,
		}
		l.running = append(l.running, t)
		changes = append(changes, store.Change{Op: store.Insert, Task: t})
	}
	return changes
}

var result = []byte(`{"ok":true}`)

func (l *load) finish() (changes []store.Change) {
	now := time.Now()
	for _, old := range l.running {
		t := *old
		t.Payload, t.State, t.FinishedAt, t.StartedAt = nil, task.Succeeded, now, now
		t.Result, t.LastToken, t.TriesTotal = result, task.Token{Epoch: 1, Push: l.seq}, 1
		t.Tries = []store.Try{{Attempt: 1, Token: t.LastToken, Executor: "host-1", ChosenAt: now, PushedAt: now, AckedAt: now, EndedAt: now}}
		changes = append(changes, store.Change{Op: store.Finish, Old: old, Task: &t})
	}
	return changes
}

func (l *load) commit(tb testing.TB, s store.Store, changes []store.Change) {
	tb.Helper()
	rs, err := s.Commit(tb.Context(), &store.Batch{At: time.Now(), Parts: []store.Part{{Partition: 1, Epoch: 1, Changes: changes, Seq: l.seq}}})
	if err != nil || rs[0].Err != nil {
		tb.Fatal(rs, err)
	}
}

// cpuTime is what the process has used, in nanoseconds.
func cpuTime() int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

// BenchmarkBacklog is what a new owner pays with many waiting rows, half of them done at random:
// HEADRACE_ROWS of them (1 million by default in the table of the ADR; 100,000 here).
func BenchmarkBacklog(b *testing.B) {
	rows := 100_000
	if n, err := strconv.Atoi(os.Getenv("HEADRACE_ROWS")); err == nil {
		rows = n
	}
	server, err := pgtest.New(append(tuned, strings.Fields(os.Getenv("HEADRACE_PGSET"))...)...)
	if err != nil {
		b.Fatal(err)
	}
	defer server.Close()
	s := open(b, server.DSN(server.Database(b)))
	if _, err := s.Acquire(b.Context(), 1, 0); err != nil {
		b.Fatal(err)
	}
	l := newLoad(1)
	var all []*store.Task
	start := time.Now()
	for len(all) < rows {
		l.commit(b, s, l.next(1000))
		all = append(all, l.running...)
	}
	b.Logf("%d rows inserted in %v", rows, time.Since(start))
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	start = time.Now()
	for i := 0; i+1000 <= rows/2; i += 1000 {
		l.running = all[i : i+1000]
		l.commit(b, s, l.finish())
	}
	b.Logf("half of them finished at random in %v", time.Since(start))
	flow := all[0].Flow()
	b.Run("Recover", func(b *testing.B) {
		for b.Loop() {
			if _, err := s.Recover(b.Context(), 1); err != nil {
				b.Fatal(err)
			}
			if fs, err := s.Flows(b.Context(), 1); err != nil || len(fs) != 1 {
				b.Fatal(fs, err)
			}
		}
	})
	b.Run("Refill", func(b *testing.B) {
		n := 0
		var at store.Key
		for b.Loop() {
			ts, more, err := s.Ready(b.Context(), 1, flow, at, 256, 1<<20, 64<<10)
			if err != nil || len(ts) == 0 {
				b.Fatal(len(ts), err)
			}
			n += len(ts)
			if at = ts[len(ts)-1].Key(); !more {
				at = store.Key{}
			}
		}
		b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(n), "us/row")
	})
	b.Run("GetLive", func(b *testing.B) { getAll(b, s, all[rows/2:]) })
	b.Run("GetFinished", func(b *testing.B) { getAll(b, s, all[:rows/2/1000*1000]) })
	b.Run("ListFunction", func(b *testing.B) {
		for b.Loop() {
			f := store.Filter{Tenant: flow.Tenant, Function: flow.Function, State: task.Succeeded}
			if ts, _, err := s.List(b.Context(), f, store.Cursor{}, 100); err != nil || len(ts) != 100 {
				b.Fatal(len(ts), err)
			}
		}
	})
	b.Run("CycleBeside", func(b *testing.B) {
		l.running = nil
		for n := 0; n < b.N; n += 1000 {
			l.commit(b, s, append(l.finish(), l.next(1000)...))
		}
	})
}

func getAll(b *testing.B, s *Store, ts []*store.Task) {
	i := 0
	for b.Loop() {
		if _, err := s.Get(b.Context(), ts[i%len(ts)].ID); err != nil {
			b.Fatal(err)
		}
		i++
	}
}

// BenchmarkPinned is the cycle on two servers in turns, half a second each, so that both see the same machine: on one, somebody's
// transaction keeps every dead row in place. The CPU a task, with a refill of 256 rows after each commit of 1,000, of the client and of all of the
// server's processes, autovacuum among them. HEADRACE_PINNED=10m is how long it lasts (`make bench-pinned`); else 20 turns.
func BenchmarkPinned(b *testing.B) {
	type side struct {
		server    *pgtest.Server
		s         *Store
		l         *load
		own       int64 // CPU of the client
		tasks     int
		last      time.Duration // of the server, at the end of the part before
		lastOwn   int64
		lastTasks int
		now       float64
	}
	var sides [2]*side // pinned, free
	for i := range sides {
		server, err := pgtest.New(append(tuned, strings.Fields(os.Getenv("HEADRACE_PGSET"))...)...)
		if err != nil {
			b.Fatal(err)
		}
		defer server.Close()
		d := &side{server: server, s: open(b, server.DSN(server.Database(b))), l: newLoad(10)}
		sides[i] = d
		if _, err := d.s.Acquire(b.Context(), 1, 0); err != nil {
			b.Fatal(err)
		}
		d.l.commit(b, d.s, d.l.next(1000))
		if i > 0 {
			d.last = server.CPU()
			continue
		}
		pin, err := d.s.pool.Begin(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		defer pin.Rollback(b.Context())
		if _, err := pin.Exec(b.Context(), "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"); err != nil {
			b.Fatal(err)
		}
		if _, err := pin.Exec(b.Context(), "SELECT count(*) FROM headrace.partitions"); err != nil {
			b.Fatal(err)
		}
		d.last = server.CPU()
	}
	limit, err := time.ParseDuration(os.Getenv("HEADRACE_PINNED"))
	if err != nil {
		limit = 10 * time.Second
	}
	b.ResetTimer()
	var sum [2]float64
	for part := range 5 {
		for began := time.Now(); time.Since(began) < limit/5; {
			for _, d := range sides {
				if _, err := d.s.Alarms(b.Context()); err != nil { // as a node does every two seconds
					b.Fatal(err)
				}
				at, turn := cpuTime(), time.Now()
				for time.Since(turn) < 500*time.Millisecond {
					f, k := d.l.running[0].Flow(), d.l.running[0].Key()
					d.l.commit(b, d.s, append(d.l.finish(), d.l.next(1000)...))
					if _, _, err := d.s.Ready(b.Context(), 1, f, k, 256, 1<<20, 1<<16); err != nil {
						b.Fatal(err)
					}
					d.tasks += 1000
				}
				d.own += cpuTime() - at
			}
		}
		for i, d := range sides {
			cpu := d.server.CPU()
			us := (float64(d.own-d.lastOwn)/1e3 + float64((cpu - d.last).Microseconds())) / float64(d.tasks-d.lastTasks)
			d.last, d.lastOwn, d.lastTasks, d.now = cpu, d.own, d.tasks, us
			sum[i] += us / 5
		}
		b.Logf("part %d: %.1f us of CPU a task pinned, %.1f free, ratio %.2f (%d and %d tasks so far)", part+1, sides[0].now, sides[1].now,
			sides[0].now/sides[1].now, sides[0].tasks, sides[1].tasks)
	}
	b.ReportMetric(sum[0], "pinned-us/task")
	b.ReportMetric(sum[1], "free-us/task")
	b.ReportMetric(sum[0]/sum[1], "pinned/free")
	b.ReportMetric(sides[0].now/sides[1].now, "at-last")
}
