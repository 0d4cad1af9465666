package pgstore

import (
	"fmt"
	"testing"
	"time"

	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// BenchmarkGetFinished reads finished tasks of a block of numbers that is in as many packs as it can be, 128 of 8 tasks, in 16 of
// 64, and in rows of their own. Numbers that are equal modulo 64 share a bit of the mask, so that of 128 packs at most 16 are read.
func BenchmarkGetFinished(b *testing.B) {
	for _, each := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("each=%d", each), func(b *testing.B) { getFinished(b, each) })
	}
}

func getFinished(b *testing.B, each int) {
	s, err := Open(b.Context(), Config{DSN: server.DSN(server.Database(b))})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	epoch, err := s.Acquire(b.Context(), 1, 0)
	if err != nil {
		b.Fatal(err)
	}
	at := time.Now().UTC().Truncate(time.Second)
	tasks := make([]*store.Task, 1024)
	var ins []store.Change
	for i := range tasks {
		tasks[i] = aTask(1, uint64(1024+i), "")
		tasks[i].CreatedAt, tasks[i].DueAt, tasks[i].FirstDueAt = at, at, at
		ins = append(ins, insertOf(tasks[i])...)
	}
	if _, err := s.Commit(b.Context(), &store.Batch{At: at, Parts: []store.Part{{Partition: 1, Epoch: epoch, Seq: 2048, Changes: ins}}}); err != nil {
		b.Fatal(err)
	}
	for i := range 1024 / each {
		var cs []store.Change
		for j := range each {
			n := 1024 / each // far apart, as tasks that end at random
			old := tasks[(i+j*131)%n+j*n]
			done := *old
			done.State, done.FinishedAt = task.Succeeded, at
			cs = append(cs, store.Change{Op: store.Finish, Old: old, Task: &done})
		}
		if _, err := s.Commit(b.Context(), &store.Batch{At: at, Parts: []store.Part{{Partition: 1, Epoch: epoch, Seq: 2048, Changes: cs}}}); err != nil {
			b.Fatal(err)
		}
	}
	var packs int
	if err := s.pool.QueryRow(b.Context(), "SELECT count(*) FROM headrace.history").Scan(&packs); err != nil {
		b.Fatal(err)
	}
	i := 0
	for b.Loop() {
		t := tasks[i*37%1024]
		i++
		if got, err := s.Get(b.Context(), t.ID); err != nil || got.State != task.Succeeded {
			b.Fatal(got, err)
		}
	}
	b.ReportMetric(float64(packs), "packs")
}
