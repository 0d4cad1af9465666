package filestore

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// One owner commits, others acquire other partitions, everybody reads: no call fails, every read sees
// whole commits, and Close waits for those that run.
func TestReadersAndWritersTogether(t *testing.T) {
	t.Parallel()
	s, err := Open(small(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	if _, err := s.Acquire(ctx, 1, 0); err != nil {
		t.Fatal(err)
	}
	var last atomic.Uint64
	var wg sync.WaitGroup
	total := uint64(3000)
	if testing.Short() {
		total = 600
	}
	wg.Go(func() {
		for seq := uint64(1); seq <= total; seq += 2 {
			// Two tasks of one flow: one comes, the one before goes. A reader never sees three.
			a, b := crashTask(seq), crashTask(seq+1)
			a.Tenant, b.Tenant, a.ClientID = "acme", "acme", fmt.Sprint(seq)
			cs := []store.Change{{Op: store.Insert, Task: a}, {Op: store.Insert, Task: b}}
			if seq > 1 {
				for n := seq - 2; n < seq; n++ {
					old := crashTask(n)
					old.Tenant = "acme"
					cs = append(cs, store.Change{Op: store.Finish, Old: old, Task: crashEnd(old)})
				}
			}
			rs, err := s.Commit(ctx, &store.Batch{At: time.Now(), Parts: []store.Part{{Partition: 1, Epoch: 1, Changes: cs, Seq: seq + 1}}})
			if err != nil || rs[0].Err != nil {
				t.Error(rs, err)
				break
			}
			last.Store(seq + 1)
		}
		last.Store(total)
	})
	wg.Go(func() {
		for id := uint32(2); last.Load() < total; id++ {
			if _, err := s.Acquire(ctx, id, 0); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 3 {
		wg.Go(func() {
			flow := store.Flow{Tenant: "acme", Function: "f", Band: task.Normal}
			for seq := last.Load(); seq < total; seq = last.Load() {
				rows, _, err := s.Ready(ctx, 1, flow, store.Key{}, 10, 1<<20, 1<<20)
				if err != nil || len(rows) != 2 && seq > 0 {
					t.Errorf("%d ready rows, %v", len(rows), err)
					return
				}
				live, _, err := s.List(ctx, store.Filter{Tenant: "acme", Live: true}, store.Cursor{}, 10)
				if err != nil || len(live) != 2 && seq > 0 {
					t.Errorf("%d live rows, %v", len(live), err)
					return
				}
				if seq > 0 {
					if _, err := s.Get(ctx, task.NewID(1, seq, seq)); err != nil {
						t.Error(err)
						return
					}
				}
				if _, err := s.Flows(ctx, 1); err != nil {
					t.Error(err)
				}
				s.DiskBytes()
			}
		})
	}
	wg.Wait()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Commit(ctx, &store.Batch{Parts: []store.Part{{Partition: 1, Epoch: 1, Floor: 9}}}); !errors.Is(err, errClosed) {
		t.Errorf("commit on a closed store = %v", err)
	}
}
