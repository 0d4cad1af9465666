package filestore

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/headrace/headrace/store"
)

// lockDir takes the directory for this process, and no other: it holds a lock on the file LOCKED-BY,
// which also says by whom. The kernel gives the lock back when the process ends, however it ends.
func lockDir(dir string) (*os.File, error) {
	path := filepath.Join(dir, "LOCKED-BY")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		holder, _ := os.ReadFile(path)
		f.Close()
		if pid, err := strconv.Atoi(strings.TrimSpace(string(holder))); err == nil {
			return nil, fmt.Errorf("%w: process %d", store.ErrLocked, pid)
		}
		return nil, store.ErrLocked
	}
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = fmt.Fprintln(f, os.Getpid())
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

// unlockDir gives the directory back. Closing the file alone would not do at once: a process that is
// just being started shares it until it has become another program.
func unlockDir(f *os.File) error {
	return errors.Join(unix.Flock(int(f.Fd()), unix.LOCK_UN), f.Close())
}
