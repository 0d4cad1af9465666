package filestore

import (
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// BenchmarkCycle is the life of a task as the store sees it: each commit inserts a batch and finishes
// the one before. One operation is one task.
func BenchmarkCycle(b *testing.B) {
	for _, batch := range []int{100, 1000} {
		for _, tenants := range []int{1, 1000} {
			b.Run(fmt.Sprintf("batch=%d/tenants=%d", batch, tenants), func(b *testing.B) { cycle(b, batch, tenants) })
		}
	}
}

func cycle(b *testing.B, batch, tenants int) {
	s, err := Open(Config{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Acquire(b.Context(), 1, 0); err != nil {
		b.Fatal(err)
	}
	names := make([]string, tenants)
	for i := range names {
		names[i] = fmt.Sprintf("tenant-%04d", i)
	}
	text := make([]byte, 1<<20)
	for i := range text {
		text[i] = byte('a' + rand.IntN(26))
	}
	result := []byte(`{"ok":true}`)
	var running []*store.Task
	var seq uint64
	done := 0
	start, cpu := time.Now(), cpuTime()
	b.ResetTimer()
	for done < b.N {
		now := time.Now()
		changes := make([]store.Change, 0, 2*batch)
		for _, old := range running {
			t := *old
			t.Payload, t.State, t.FinishedAt, t.StartedAt = nil, task.Succeeded, now, now
			t.Result, t.LastToken, t.TriesTotal = result, task.Token{Epoch: 1, Push: seq}, 1
			t.Tries = []store.Try{{Attempt: 1, Token: t.LastToken, Executor: "host-1", ChosenAt: now, PushedAt: now, AckedAt: now, EndedAt: now}}
			changes = append(changes, store.Change{Op: store.Finish, Old: old, Task: &t})
		}
		done += len(running)
		running = running[:0:0]
		for range batch {
			seq++
			payload := text[int(seq*201)%(len(text)-200):][:200]
			t := &store.Task{
				ID: task.NewID(1, seq, rand.Uint64()), Tenant: names[seq%uint64(tenants)], Function: "resize", Band: task.Normal,
				RequestID: "0123456789abcdef", Payload: payload, PayloadSize: len(payload), Priority: 5,
				CreatedAt: now, DueAt: now, FirstDueAt: now, State: task.Queued, Attempt: 1,
			}
			running = append(running, t)
			changes = append(changes, store.Change{Op: store.Insert, Task: t})
		}
		rs, err := s.Commit(b.Context(), &store.Batch{At: now, Parts: []store.Part{{Partition: 1, Epoch: 1, Changes: changes, Seq: seq}}})
		if err != nil || rs[0].Err != nil {
			b.Fatal(rs, err)
		}
	}
	b.StopTimer()
	written, _ := s.DiskBytes()
	b.ReportMetric(float64(done)/time.Since(start).Seconds(), "tasks/s")
	b.ReportMetric(float64(cpuTime()-cpu)/float64(done)/1e3, "cpu-us/task")
	b.ReportMetric(float64(written)/float64(done), "disk-B/task")
}

// cpuTime is what the process has used, in nanoseconds.
func cpuTime() int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

// BenchmarkRefill pages through a flow of waiting tasks. One operation is one task.
func BenchmarkRefill(b *testing.B) {
	s, err := Open(Config{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Acquire(b.Context(), 1, 0); err != nil {
		b.Fatal(err)
	}
	const total = 200_000
	var flow store.Flow
	for seq := uint64(1); seq <= total; {
		var changes []store.Change
		for range 1000 {
			t := crashTask(seq)
			t.Tenant = "acme"
			flow = t.Flow()
			changes = append(changes, store.Change{Op: store.Insert, Task: t})
			seq++
		}
		if _, err := s.Commit(b.Context(), &store.Batch{At: time.Now(), Parts: []store.Part{{Partition: 1, Epoch: 1, Changes: changes, Seq: seq - 1}}}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	b.ResetTimer()
	for n := 0; n < b.N; {
		var at store.Key
		for more := true; more && n < b.N; {
			var rows []*store.Task
			if rows, more, err = s.Ready(b.Context(), 1, flow, at, 256, 1<<20, 64<<10); err != nil {
				b.Fatal(err)
			}
			n += len(rows)
			at = rows[len(rows)-1].Key()
		}
	}
}
