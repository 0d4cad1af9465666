package localcluster

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// Down ends in order what was started in a directory, by whomever, and nothing else: the nodes hand over, then etcd and
// Postgres stop. It returns how many processes it ended; 0 with no error when nothing runs. The data stays.
func Down(dir string) (ended int, err error) {
	unlock, err := lock(filepath.Join(dir, "lock"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer unlock()
	s, err := ReadState(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	boot, err := bootID()
	if err != nil {
		return 0, err
	}
	if s.BootID != boot {
		s = s.stopped()
	}
	var steps [3][]step
	for _, n := range s.Nodes {
		steps[0] = append(steps[0], step{n.Process, syscall.SIGTERM, 20 * time.Second})
	}
	for _, m := range s.Etcd {
		steps[1] = append(steps[1], step{m.Process, syscall.SIGTERM, 10 * time.Second})
	}
	for _, db := range s.Postgres { // SIGINT: "fast", transactions are aborted
		steps[2] = append(steps[2], step{db.Process, syscall.SIGINT, 30 * time.Second})
	}
	for _, together := range steps {
		n, e := endAll(together)
		ended, err = ended+n, errors.Join(err, e)
	}
	if err != nil {
		return ended, err
	}
	return ended, os.Remove(filepath.Join(dir, stateFile))
}

// step is how one process is ended.
type step struct {
	Process
	sig      syscall.Signal
	patience time.Duration
}

func endAll(all []step) (ended int, err error) {
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, s := range all {
		if !s.Alive() {
			continue
		}
		ended++
		wg.Go(func() { errs[i] = s.end(s.sig, s.patience) })
	}
	wg.Wait()
	return ended, errors.Join(errs...)
}
