package filestore

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/headrace/headrace/store"
)

// How far below MinFreeBytes outcomes may still go, as a part of it: a quarter stays for the engine,
// which needs room to write its logs and to compact, that is to get free again.
const reserveShare = 4

// spaceEvery bounds how old the last look at the free space may be.
const spaceEvery = 100 * time.Millisecond

// space watches the free space of the disk. Store.writeMu guards it.
type space struct {
	dir     string
	min     int64 // below it inserts are refused
	free    int64
	seenAt  time.Time
	written int64 // since seenAt
}

// check returns store.ErrFull if a batch of about size bytes must not be written.
func (sp *space) check(size int64, inserts bool) error {
	sp.written += 2 * size // log and table
	if time.Since(sp.seenAt) > spaceEvery || sp.free-sp.written < sp.min {
		var st unix.Statfs_t
		if err := unix.Statfs(sp.dir, &st); err != nil {
			return fmt.Errorf("look at the free space of %s: %w", sp.dir, err)
		}
		sp.free = int64(st.Bavail) * int64(st.Bsize)
		sp.seenAt, sp.written = time.Now(), 2*size
	}
	left, need := sp.free-sp.written, sp.min
	if !inserts {
		need /= reserveShare
	}
	if left < need {
		return fmt.Errorf("%w: %d MiB free in %s, %d MiB are kept", store.ErrFull, sp.free>>20, sp.dir, sp.min>>20)
	}
	return nil
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
