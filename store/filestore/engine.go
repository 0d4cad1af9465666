package filestore

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"go.uber.org/zap"
)

func (s *Store) openEngine(dir string) error {
	log := engineLog{s.log}
	cache := pebble.NewCache(s.cfg.CacheBytes)
	defer cache.Unref()
	opts := &pebble.Options{
		Cache:                       cache,
		FormatMajorVersion:          pebble.FormatWALSyncChunks,
		Logger:                      log,
		MemTableSize:                uint64(s.cfg.MemTableBytes),
		MemTableStopWritesThreshold: 3,
	}
	opts.Levels[0].FilterPolicy = bloom.FilterPolicy(10)
	var err error
	s.db, err = pebble.Open(dir, opts)
	return err
}

// engineLog hands the engine's words to our log.
type engineLog struct{ log *zap.Logger }

func (l engineLog) Infof(format string, args ...any) {
	l.log.Debug("engine", zap.String("says", fmt.Sprintf(format, args...)))
}

func (l engineLog) Errorf(format string, args ...any) {
	l.log.Warn("engine", zap.String("says", fmt.Sprintf(format, args...)))
}

// Fatalf must not return. In a commit the panic is caught and makes the store broken; in the engine's
// own goroutines it ends the process, which is safe: what was answered is on disk.
func (l engineLog) Fatalf(format string, args ...any) {
	panic(fmt.Sprintf(format, args...))
}
