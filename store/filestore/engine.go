package filestore

import (
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"
)

func (s *Store) openEngine(dir string) error {
	d := &disk{
		FS: vfs.Default,
		// A small reserve means a small disk. The step is a multiple of the manifest's.
		logStep: min(max(s.cfg.MinFreeBytes/32/manifestStep, 1)*manifestStep, 4<<20),
		note: func(what string) {
			s.droppedMu.Lock()
			defer s.droppedMu.Unlock()
			if !slices.Contains(s.dropped, what) {
				s.dropped = append(s.dropped, what)
				s.log.Warn("a file's end is not as it was left", zap.String("what", what))
			}
		},
	}
	if err := d.inspect(dir); err != nil {
		return err
	}
	cache := pebble.NewCache(s.cfg.CacheBytes)
	defer cache.Unref()
	opts := &pebble.Options{
		Cache:                       cache,
		FS:                          vfs.OnDiskFull(d, s.space.onFull),
		FormatMajorVersion:          pebble.FormatWALSyncChunks, // its log can tell a torn end from damage
		Logger:                      engineLog{s.log},
		MemTableSize:                uint64(s.cfg.MemTableBytes),
		MemTableStopWritesThreshold: 3,
		// Fewer, larger compactions: half the CPU and writes, for a few more tables looked into.
		L0CompactionThreshold: 8,
		FlushSplitBytes:       512 << 10,
	}
	opts.TargetFileSizes[0] = 512 << 10
	opts.Levels[0].FilterPolicy = bloom.FilterPolicy(10)
	var err error
	s.db, err = pebble.Open(dir, opts)
	return err
}

// engineLog hands the engine's words to our log.
type engineLog struct{ log *zap.Logger }

func (l engineLog) Infof(format string, args ...any) {
	if l.log.Core().Enabled(zap.DebugLevel) {
		l.log.Debug("engine", zap.String("says", fmt.Sprintf(format, args...)))
	}
}

func (l engineLog) Errorf(format string, args ...any) {
	l.log.Warn("engine", zap.String("says", fmt.Sprintf(format, args...)))
}

// Fatalf must not return. In a commit the panic is caught and makes the store broken; in the engine's
// own goroutines it ends the process, which is safe: what was answered is on disk.
func (l engineLog) Fatalf(format string, args ...any) {
	panic(fmt.Sprintf(format, args...))
}
