package filestore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"go.uber.org/zap"

	"github.com/headrace/headrace/store"
)

// Config opens a directory. Only Dir is required.
type Config struct {
	Dir    string      // made if it is not there; nothing else may write in it
	Logger *zap.Logger // nil: nothing is logged
	// MinFreeBytes is the free space of the disk below which inserts are refused with store.ErrFull;
	// outcomes go on to half of it, 64 MiB at most. 0: 15 % of the disk, 1 GiB of a large one. Larger stops earlier, smaller risks that the
	// engine can't compact.
	MinFreeBytes int64
	// MemTableBytes bounds one table in memory; there are up to 3. 0: 32 MiB. Larger writes less to
	// disk and takes longer to start.
	MemTableBytes int64
	// CacheBytes of blocks read from disk. 0: 32 MiB.
	CacheBytes int64
}

func (c Config) withDefaults() Config {
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	if c.MemTableBytes == 0 {
		c.MemTableBytes = 32 << 20
	}
	if c.CacheBytes == 0 {
		c.CacheBytes = 32 << 20
	}
	return c
}

// Validate checks c; zero fields are fine.
func (c Config) Validate() error {
	switch {
	case c.Dir == "":
		return errors.New("filestore: Dir: want a directory")
	case c.MinFreeBytes < 0:
		return errors.New("filestore: MinFreeBytes: want 0 or more")
	case c.MemTableBytes != 0 && (c.MemTableBytes < 1<<20 || c.MemTableBytes > 1<<30):
		return errors.New("filestore: MemTableBytes: want 1 MiB to 1 GiB")
	case c.CacheBytes < 0:
		return errors.New("filestore: CacheBytes: want 0 or more")
	}
	return nil
}

var (
	errClosed = errors.New("the store is closed")
	errBroken = fmt.Errorf("the store stopped after a failed write, open it again: %w", store.ErrUnknown)
)

// formatVersion of the directory: a larger one than this is refused.
const formatVersion = 1

// Store is an open directory. See the package's documentation.
type Store struct {
	cfg  Config
	log  *zap.Logger
	lock *os.File
	db   *pebble.DB

	use  sync.RWMutex // held to read while the database is used, to write by Close
	shut bool         // guarded by use

	writeMu sync.Mutex // serialises Commit and Acquire; taken before mu
	// Guarded by writeMu.
	space     space
	broken    error
	failed    chan struct{} // closed with broken
	batchSize int           // expected, in bytes
	key, val  []byte
	touched   []*flow
	lastFlow  *flow

	mu         sync.Mutex // guards following
	partitions map[uint32]*partition

	droppedMu sync.Mutex // guards following; the engine may open a file at any time, so it is apart
	dropped   []string
}

var _ store.Store = (*Store)(nil)

// Open opens the directory, and makes it if it is not there. Errors: store.ErrLocked if another
// process, or this one, has it open.
func Open(cfg Config) (_ *Store, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	defer func() {
		if err != nil {
			err = fmt.Errorf("open the store in %s: %w", cfg.Dir, err)
		}
	}()
	if err := os.MkdirAll(cfg.Dir, 0o755); err != nil {
		return nil, err
	}
	if cfg.MinFreeBytes == 0 {
		if cfg.MinFreeBytes, err = defaultMinFree(cfg.Dir); err != nil {
			return nil, err
		}
	}
	lock, err := lockDir(cfg.Dir)
	if err != nil {
		return nil, err
	}
	s := &Store{
		cfg: cfg, log: cfg.Logger.Named("filestore"), lock: lock,
		space:      space{dir: cfg.Dir, min: cfg.MinFreeBytes, log: cfg.Logger.Named("filestore")},
		partitions: map[uint32]*partition{}, failed: make(chan struct{}),
	}
	defer func() {
		if err != nil {
			_ = s.Close()
		}
	}()
	if err := s.openEngine(filepath.Join(cfg.Dir, "data")); err != nil {
		return nil, err
	}
	if err := s.checkFormat(); err != nil {
		return nil, err
	}
	return s, s.loadPartitions()
}

// checkFormat reads or writes the version of the directory's format.
func (s *Store) checkFormat() error {
	v, closer, err := s.db.Get([]byte{metaSpace})
	if errors.Is(err, pebble.ErrNotFound) {
		return s.db.Set([]byte{metaSpace}, strconv.AppendInt(nil, formatVersion, 10), pebble.Sync)
	}
	if err != nil {
		return err
	}
	defer closer.Close()
	if n, err := strconv.Atoi(string(v)); err != nil || n > formatVersion {
		return fmt.Errorf("its format is %q, this version reads up to %d", v, formatVersion)
	}
	return nil
}

// enter reports whether the database may be used until leave.
func (s *Store) enter() bool {
	s.use.RLock()
	if s.shut {
		s.use.RUnlock()
		return false
	}
	return true
}

func (s *Store) leave() { s.use.RUnlock() }

// writable returns why a batch can't be written, nil if it can. writeMu is held.
func (s *Store) writable(b *store.Batch) error {
	if s.broken != nil {
		return s.broken
	}
	size, inserts := weigh(b)
	return s.space.check(size, inserts)
}

// Failed is closed once a write has failed in a way that leaves its outcome unknown: nothing is written
// any more, and whoever opens the directory anew finds what is on disk.
func (s *Store) Failed() <-chan struct{} { return s.failed }

// breakDown notes that what is in memory may differ from what is on disk: nothing is written any more.
func (s *Store) breakDown(err error) error {
	if s.broken == nil {
		s.broken = errBroken
		close(s.failed)
	}
	s.log.Error("stopped writing", zap.Error(err))
	return fmt.Errorf("%w: %w", store.ErrUnknown, err)
}

// apply writes a batch and returns when it is on disk. writeMu is held, between enter and leave.
func (s *Store) apply(b *pebble.Batch) (err error) {
	defer func() {
		if p := recover(); p != nil { // the engine gives up by panicking: see engineLog.Fatalf
			err = s.breakDown(fmt.Errorf("write a commit: %v", p))
		}
	}()
	if err := b.Commit(pebble.Sync); err != nil {
		return s.breakDown(fmt.Errorf("write a commit: %w", err))
	}
	return nil
}

// Acquire implements store.Store.
func (s *Store) Acquire(ctx context.Context, id uint32, from store.Epoch) (store.Epoch, error) {
	return s.AcquireAbove(ctx, id, from, 0)
}

// AcquireAbove implements store.Store.
func (s *Store) AcquireAbove(ctx context.Context, id uint32, from, above store.Epoch) (store.Epoch, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	s.writeMu.Lock()
	defer s.writeMu.Unlock()
	if !s.enter() {
		return 0, errClosed
	}
	defer s.leave()
	if s.broken != nil {
		return 0, s.broken
	}
	row, err := readPartition(s.db, id)
	if err != nil {
		return 0, fmt.Errorf("acquire partition %d: %w", id, err)
	}
	if row.Epoch != from {
		return 0, fmt.Errorf("acquire partition %d from epoch %d, it is at %d: %w", id, from, row.Epoch, store.ErrFenced)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.partitions[id]
	if p == nil {
		p = &partition{Partition: store.Partition{ID: id}, flows: map[store.Flow]*flow{}}
	}
	p.Epoch = max(p.Epoch, above) + 1
	b := s.db.NewBatch()
	defer b.Close()
	if err := s.writePartition(b, p); err != nil {
		return 0, s.breakDown(err)
	}
	if err := s.apply(b); err != nil {
		return 0, err
	}
	s.partitions[id] = p
	return p.Epoch, nil
}

// Dropped says what Open found at the ends of files that is not as a clean end leaves it, and left
// out; "" if nothing. None of it had been answered.
func (s *Store) Dropped() string {
	s.droppedMu.Lock()
	defer s.droppedMu.Unlock()
	return strings.Join(s.dropped, "; ")
}

// Settings implements store.Store.
func (s *Store) Settings() map[string]string {
	return map[string]string{
		"engine": "pebble", "sync": "fdatasync before each answer",
		"memtable_bytes": strconv.FormatInt(s.cfg.MemTableBytes, 10),
		"cache_bytes":    strconv.FormatInt(s.cfg.CacheBytes, 10),
	}
}

// DiskBytes implements store.Store.
func (s *Store) DiskBytes() (written, occupied int64) {
	if !s.enter() {
		return 0, 0
	}
	defer s.leave()
	m := s.db.Metrics()
	w := m.WAL.BytesWritten
	for i := range m.Levels {
		w += m.Levels[i].TableBytesFlushed + m.Levels[i].TableBytesCompacted
	}
	return int64(w), int64(m.DiskSpaceUsage())
}

// Close implements store.Store. Calls that run are waited for.
func (s *Store) Close() error {
	s.use.Lock()
	defer s.use.Unlock()
	if s.shut {
		return nil
	}
	s.shut = true
	var err error
	if s.db != nil {
		err = s.db.Close()
	}
	return errors.Join(err, unlockDir(s.lock))
}
