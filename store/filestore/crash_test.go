package filestore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

const childEnv = "HEADRACE_FILESTORE_CHILD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		fmt.Fprintln(os.Stderr, child(dir))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// small makes many tables out of little data.
func small(dir string) Config { return Config{Dir: dir, MemTableBytes: 1 << 20, CacheBytes: 1 << 20} }

// child commits until it is killed, and prints the highest number that is on disk.
func child(dir string) error {
	s, err := Open(small(dir))
	if err != nil {
		return err
	}
	ctx := context.Background()
	epoch, err := s.Epoch(ctx, 1)
	if err != nil {
		return err
	}
	if epoch, err = s.Acquire(ctx, 1, epoch); err != nil {
		return err
	}
	r, err := s.Recover(ctx, 1)
	if err != nil {
		return err
	}
	seq := r.Partition.Seq
	for {
		part := store.Part{Partition: 1, Epoch: epoch}
		for range 1 + rand.IntN(20) {
			seq++
			part.Changes = append(part.Changes, store.Change{Op: store.Insert, Task: crashTask(seq)})
			if seq%3 == 0 {
				old := crashTask(seq)
				part.Changes = append(part.Changes, store.Change{Op: store.Finish, Old: old, Task: crashEnd(old)})
			}
		}
		part.Seq = seq
		if rs, err := s.Commit(ctx, &store.Batch{At: time.Now(), Parts: []store.Part{part}}); err != nil || rs[0].Err != nil {
			return fmt.Errorf("%v, %w", rs, err)
		}
		fmt.Println(seq)
	}
}

// crashTask is what everybody knows to be the task of a number.
func crashTask(seq uint64) *store.Task {
	payload := []byte(strings.Repeat(fmt.Sprint(seq, "-"), 1+int(seq%97)))
	at := time.Unix(1e9+int64(seq), 0).UTC()
	return &store.Task{
		ID: task.NewID(1, seq, seq), Tenant: fmt.Sprint("t", seq%5), Function: "f", Payload: payload, PayloadSize: len(payload),
		CreatedAt: at, DueAt: at, FirstDueAt: at, State: task.Queued, Attempt: 1, Band: task.Normal,
	}
}

func crashEnd(old *store.Task) *store.Task {
	t := *old
	t.State, t.FinishedAt, t.Result = task.Failed, old.DueAt.Add(time.Second), []byte("result")
	return &t
}

// runAndKill runs a child until it has answered acks more commits, kills it, and returns the last answer.
func runAndKill(t *testing.T, dir string, acks int) (last uint64) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	read := func() bool {
		if !lines.Scan() {
			return false
		}
		n, err := strconv.ParseUint(lines.Text(), 10, 64)
		if err == nil { // the last line may be cut
			last = n
		}
		return true
	}
	for range acks {
		if !read() {
			t.Fatal("the child ended")
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for read() { // what it had answered before it died
	}
	_ = cmd.Wait()
	return last
}

// verify opens the directory and fails unless every task up to last is there, and the counters agree.
func verify(t *testing.T, dir string, last uint64) string {
	t.Helper()
	s, err := Open(small(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	r, err := s.Recover(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if r.Partition.Seq < last {
		t.Fatalf("the highest number is %d, %d was answered", r.Partition.Seq, last)
	}
	var ready int64
	for seq := uint64(1); seq <= r.Partition.Seq; seq++ {
		want := crashTask(seq)
		if seq%3 == 0 {
			want = crashEnd(want)
		} else {
			ready++
		}
		got, err := s.Get(t.Context(), want.ID)
		if err != nil {
			t.Fatalf("task %d of %d: %v", seq, last, err)
		}
		if got.State != want.State || string(got.Payload) != string(want.Payload) || string(got.Result) != string(want.Result) {
			t.Fatalf("task %d came back as %v", seq, got.State)
		}
	}
	if r.Partition.Ready != ready {
		t.Fatalf("%d ready by the counter, %d by counting", r.Partition.Ready, ready)
	}
	listed := 0
	for n := range 5 {
		rows, _, err := s.List(t.Context(), store.Filter{Tenant: fmt.Sprint("t", n), Live: true}, store.Cursor{}, 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		listed += len(rows)
	}
	if int64(listed) != ready {
		t.Fatalf("%d live tasks are listed, %d are there", listed, ready)
	}
	return s.Dropped()
}

// newest returns the newest file of a kind.
func newest(t *testing.T, dir, kind string) (path string) {
	t.Helper()
	var at time.Time
	err := filepath.WalkDir(dir, func(p string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		if ok, _ := filepath.Match(kind, e.Name()); !ok {
			return nil
		}
		info, err := e.Info()
		if err == nil && info.Size() > 0 && info.ModTime().After(at) {
			path, at = p, info.ModTime()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func cut(t *testing.T, path string, n int64) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, max(info.Size()-n, 0)); err != nil {
		t.Fatal(err)
	}
}

func scribble(t *testing.T, path string, n int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		t.Fatal(err)
	}
	junk := make([]byte, min(n, size))
	for i := range junk {
		junk[i] = byte(rand.Uint32() | 1)
	}
	if _, err := f.WriteAt(junk, size-int64(len(junk))); err != nil {
		t.Fatal(err)
	}
}

// A process is killed again and again while it commits, and the end of its newest file is damaged each
// time: what was answered is there, and what was left out is said.
func TestKillAndDamageOfTheNewestFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	rounds := 8
	if testing.Short() {
		rounds = 3
	}
	for i := range rounds {
		last := runAndKill(t, dir, 40+rand.IntN(60))
		path := newest(t, dir, "*")
		n := int64(1 + rand.IntN(4096))
		what := fmt.Sprintf("round %d: %s of %d bytes of %s", i, []string{"nothing", "cut", "scribble"}[i%3], n, filepath.Base(path))
		switch i % 3 {
		case 1:
			cut(t, path, n)
		case 2:
			scribble(t, path, n)
		}
		dropped := verify(t, dir, last)
		t.Log(what, "→", dropped)
		if i%3 != 0 && !strings.Contains(dropped, filepath.Base(path)) {
			t.Errorf("%s: the store says %q", what, dropped)
		}
	}
}

// The end of the newest file of each kind can be damaged.
func TestDamageOfEachKindOfFile(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"*.log", "MANIFEST-*", "OPTIONS-*", "*.sst", "marker.*", "LOCKED-BY", "BALLAST"} {
		for name, damage := range map[string]func(*testing.T, string, int64){"cut": cut, "scribble": scribble} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				last := runAndKill(t, dir, 400)
				for _, n := range []int64{1, 4096, 32 << 10} {
					path := newest(t, dir, kind)
					if path == "" && strings.HasPrefix(kind, "marker") {
						t.Skip("markers are empty: there is nothing to damage")
					}
					if path == "" {
						t.Fatal("there is no such file")
					}
					damage(t, path, n)
					t.Log(n, verify(t, dir, last))
				}
			})
		}
	}
}

// A process that ends while it writes a table leaves a part of it, to which nothing refers: cut or not, it is left out and said.
func TestUnfinishedTableIsSaid(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	last := runAndKill(t, dir, 400)
	verify(t, dir, last)
	whole := newest(t, dir, "*.sst")
	b, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	part := filepath.Join(filepath.Dir(whole), "900000.sst")
	if err := os.WriteFile(part, b[:(len(b)-padSize)/2], 0o644); err != nil {
		t.Fatal(err)
	}
	if dropped := verify(t, dir, last); !strings.Contains(dropped, "900000.sst was never finished") {
		t.Errorf("the store says %q", dropped)
	}
	if dropped := verify(t, dir, last); strings.Contains(dropped, "900000.sst") {
		t.Errorf("the part is still there: the store says %q", dropped)
	}
	// A table that is a part of the store must not be taken for one that was never finished.
	if err := os.Truncate(whole, int64(len(b)-padSize-1)); err != nil {
		t.Fatal(err)
	}
	if s, err := Open(small(dir)); err == nil {
		s.Close()
		t.Fatalf("opened without the end of %s; dropped: %s", whole, s.Dropped())
	}
}

// Damage in front of the end took what was answered: the store refuses to open and says where.
func TestDamageOfWhatWasAnsweredIsAnError(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	runAndKill(t, dir, 50)
	path := newest(t, dir, "*.log")
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte("scribble"), 500); err != nil {
		t.Fatal(err)
	}
	s, err := Open(small(dir))
	if err == nil {
		s.Close()
		t.Fatalf("opened; dropped: %s", s.Dropped())
	}
	t.Log(err)
}

// A directory has one user at a time; the second is told which process it is.
func TestSecondOpenIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, err := Open(Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	_, err = Open(Config{Dir: dir})
	if !errors.Is(err, store.ErrLocked) || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), fmt.Sprint("process ", os.Getpid())) {
		t.Errorf("second open = %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s, err = Open(Config{Dir: dir}); err != nil {
		t.Fatal(err)
	}
	s.Close()
	if _, err := s.Get(t.Context(), task.ID{}); !errors.Is(err, errClosed) {
		t.Errorf("get on a closed store = %v", err)
	}
}
