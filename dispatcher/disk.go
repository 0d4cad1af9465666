package dispatcher

import (
	"sync"
	"time"

	"github.com/headrace/headrace/store"
)

// diskMoment is how long who asks for figures of the disks waits for the databases' answers.
const diskMoment = 200 * time.Millisecond

// diskUse is what a database last said of its disk. A database that is slow or away takes seconds to answer, or does not: nobody
// waits for that who looks for what is wrong with the cluster.
type diskUse struct {
	mu                sync.Mutex    // guards following
	asked             chan struct{} // closed with the answer to the question under way; nil: there is none
	written, occupied int64
}

// ask sees to it that there is a question under way, and returns what is closed with its answer.
func (u *diskUse) ask(wg *sync.WaitGroup, s store.Store) <-chan struct{} {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.asked != nil {
		return u.asked
	}
	asked := make(chan struct{})
	u.asked = asked
	wg.Go(func() {
		written, occupied := s.DiskBytes()
		u.mu.Lock()
		defer u.mu.Unlock()
		u.written, u.occupied, u.asked = written, occupied, nil
		close(asked)
	})
	return asked
}

func (u *diskUse) last() (written, occupied int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.written, u.occupied
}

// diskBytes sums what the databases say now, each its last answer if it takes longer than a moment.
func (d *databases) diskBytes() (written, occupied int64) {
	asked := make([]<-chan struct{}, len(d.list))
	for i, db := range d.list {
		asked[i] = db.disk.ask(&d.asking, db.store)
	}
	timeout := time.NewTimer(diskMoment)
	defer timeout.Stop()
	for i, late := 0, false; i < len(asked) && !late; i++ {
		select {
		case <-asked[i]:
		case <-timeout.C:
			late = true
		}
	}
	for _, db := range d.list {
		w, o := db.disk.last()
		written, occupied = written+w, occupied+o
	}
	return written, occupied
}
