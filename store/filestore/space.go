package filestore

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/headrace/headrace/store"
)

// How far below MinFreeBytes outcomes may still go, as a part of it: the rest stays for the engine,
// which needs room to write its tables and to compact, that is to get free again.
const reserveShare = 2

// Bounds of that, and of the ballast, on a large disk.
const (
	mostReserve = 64 << 20
	mostBallast = 16 << 20
)

// spaceEvery bounds how old the last look at the free space may be.
const spaceEvery = 100 * time.Millisecond

// space watches the free space of the disk, and holds some of it back in a file, the ballast: if the
// engine meets a full disk all the same, where that would be fatal, the ballast goes and it tries again.
type space struct {
	dir     string
	min     int64 // below it inserts are refused
	log     *zap.Logger
	free    int64     // Store.writeMu guards this and the next two
	seenAt  time.Time // when free was read
	written int64     // since then

	mu      sync.Mutex // guards following
	ballast bool       // the file is there
}

// mostFree bounds what is kept free by default: 15 % of a large disk is more than the engine ever needs, and the disk of a
// developer's machine is often that full.
const mostFree = 1 << 30

// defaultMinFree is 15 % of the disk, so that submits stop at 85 % of it, and 1 GiB of a large one.
func defaultMinFree(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("look at the size of the disk of %s: %w", dir, err)
	}
	return min(mostFree, int64(st.Blocks)*int64(st.Bsize)*15/100), nil
}

func (sp *space) ballastSize() int64 { return min(sp.min/8, mostBallast) }

func (sp *space) ballastPath() string { return filepath.Join(sp.dir, "BALLAST") }

// check returns store.ErrFull if a batch of about size bytes must not be written.
func (sp *space) check(size int64, inserts bool) error {
	sp.written += 2 * size // log and table
	if time.Since(sp.seenAt) > spaceEvery || sp.free-sp.written < sp.min {
		if err := sp.look(); err != nil {
			return err
		}
		sp.written = 2 * size
	}
	left, need := sp.free-sp.written, sp.min
	if !inserts {
		need = min(need/reserveShare, mostReserve)
	}
	if left < need {
		return fmt.Errorf("%w: %d MiB free in %s, %d MiB are kept", store.ErrFull, sp.free>>20, sp.dir, need>>20)
	}
	return nil
}

// look reads the free space, and lays the ballast down again where there is enough.
func (sp *space) look() error {
	var st unix.Statfs_t
	if err := unix.Statfs(sp.dir, &st); err != nil {
		return fmt.Errorf("look at the free space of %s: %w", sp.dir, err)
	}
	sp.free, sp.seenAt = int64(st.Bavail)*int64(st.Bsize), time.Now()
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if sp.ballast || sp.free < sp.min+sp.ballastSize() {
		return nil
	}
	f, err := os.OpenFile(sp.ballastPath(), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := extend(int(f.Fd()), 0, sp.ballastSize()); err != nil {
		return nil // somebody was faster; next time
	}
	sp.ballast = true
	sp.free -= sp.ballastSize()
	return nil
}

// onFull throws the ballast off. The engine calls it, from any goroutine, and tries again after it.
func (sp *space) onFull() {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	sp.log.Error("the disk is full", zap.String("dir", sp.dir), zap.Bool("ballast", sp.ballast))
	if err := os.Remove(sp.ballastPath()); err == nil || os.IsNotExist(err) {
		sp.ballast = false
	}
}

// weigh estimates how many bytes a batch writes, and says whether it has inserts.
func weigh(b *store.Batch) (size int64, inserts bool) {
	for i := range b.Parts {
		for j := range b.Parts[i].Changes {
			c := &b.Parts[i].Changes[j]
			size += 1 << 10
			if c.Task != nil {
				size += int64(len(c.Task.Payload) + len(c.Task.Result))
			}
			inserts = inserts || c.Op == store.Insert
		}
	}
	return size, inserts
}

// Alarms implements store.Watched: there is so little room that inserts are refused.
func (s *Store) Alarms(context.Context) ([]store.Alarm, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(s.space.dir, &st); err != nil {
		return nil, fmt.Errorf("look at the free space of %s: %w", s.space.dir, err)
	}
	if free := int64(st.Bavail) * int64(st.Bsize); free < s.space.min {
		return []store.Alarm{{Kind: store.AlarmDisk, Message: fmt.Sprintf("%d MiB are free on the disk of the data directory: below %d MiB submits are refused",
			free>>20, s.space.min>>20)}}, nil
	}
	return nil, nil
}
