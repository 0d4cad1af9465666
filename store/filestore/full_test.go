package filestore

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// mountSmall mounts a disk of some bytes, or skips the test.
func mountSmall(t *testing.T, size string) string {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("no small disk: mount: %v (it needs root)", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil { // the engine may still be deleting a file
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}

// A disk fills up: inserts are refused first, outcomes go on for longer, nothing that was answered is
// lost, and when there is room again, everything goes on without a restart.
func TestFullDisk(t *testing.T) {
	disk := mountSmall(t, "24m")
	cfg := small(filepath.Join(disk, "store"))
	cfg.MinFreeBytes = 6 << 20
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { s.Close() }()
	if _, err := s.Acquire(t.Context(), 1, 0); err != nil {
		t.Fatal(err)
	}
	commit := func(cs ...store.Change) error {
		rs, err := s.Commit(t.Context(), &store.Batch{At: time.Now(), Parts: []store.Part{{Partition: 1, Epoch: 1, Changes: cs}}})
		if err == nil {
			err = rs[0].Err
		}
		return err
	}
	noise := make([]byte, 64<<10)
	for i := range noise {
		noise[i] = byte(i * i >> 3)
	}
	newTask := func(seq uint64) *store.Task {
		a := crashTask(seq)
		a.Payload = append([]byte{byte(seq), byte(seq >> 8)}, noise...)
		a.PayloadSize = len(a.Payload)
		return a
	}
	fill := func(from uint64) (answered []*store.Task) {
		for seq := from; ; seq++ {
			a := newTask(seq)
			switch err := commit(store.Change{Op: store.Insert, Task: a}); {
			case errors.Is(err, store.ErrFull):
				return answered
			case err != nil:
				t.Fatalf("insert %d = %v, want full", seq, err)
			case seq > from+10_000:
				t.Fatal("the disk does not fill")
			}
			answered = append(answered, a)
		}
	}
	answered := fill(1)
	if len(answered) < 20 {
		t.Fatalf("full after %d tasks", len(answered))
	}
	// Outcomes still go through; a few of them make no room by themselves.
	for _, a := range answered[:10] {
		end := *a
		end.State, end.Payload = task.Failed, nil
		if err := commit(store.Change{Op: store.Finish, Old: a, Task: &end}); err != nil {
			t.Fatalf("outcome on a full disk = %v", err)
		}
	}
	// Somebody else takes the rest, down to the last byte.
	hog := filepath.Join(disk, "hog")
	f, err := os.Create(hog)
	if err != nil {
		t.Fatal(err)
	}
	var werr error
	for werr == nil {
		_, werr = f.Write(noise)
	}
	f.Close()
	if err := commit(store.Change{Op: store.Insert, Task: newTask(90_000)}); !errors.Is(err, store.ErrFull) {
		t.Fatalf("insert on a disk without a free byte = %v", err)
	}
	check := func() {
		t.Helper()
		for i, a := range answered {
			got, err := s.Get(t.Context(), a.ID)
			if err != nil || string(got.Payload) != string(a.Payload) || (got.State == task.Failed) != (i < 10) {
				t.Fatalf("task %d of %d = %v, %v", i, len(answered), got, err)
			}
		}
	}
	check()
	// Room again.
	if err := os.Remove(hog); err != nil {
		t.Fatal(err)
	}
	for _, a := range answered[10:] {
		end := *a
		end.State, end.Payload = task.Succeeded, nil
		if err := commit(store.Change{Op: store.Finish, Old: a, Task: &end}); err != nil {
			t.Fatalf("outcome after room was made = %v", err)
		}
	}
	answered = answered[:10]
	check()
	// And after a restart.
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s, err = Open(cfg); err != nil {
		t.Fatal(err)
	}
	check()
	if _, err := s.Acquire(t.Context(), 1, 1); err != nil {
		t.Fatal(err)
	}
}
