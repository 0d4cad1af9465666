package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/headrace/headrace/internal/devserver"
	"github.com/headrace/headrace/internal/proctree"
	"github.com/headrace/headrace/store/pgstore"
)

// storeFile is the --store that needs nothing else.
const storeFile = "file"

func isPostgresURL(s string) bool {
	return strings.HasPrefix(s, "postgres://") || strings.HasPrefix(s, "postgresql://")
}

// benchServer is the server that a benchmark starts for itself.
type benchServer struct {
	addr     string
	database func() (proctree.Usage, error) // nil: not Postgres, or not on this machine
	cleanups []func(context.Context) error  // the last one first
}

// stopLimit bounds the end of a benchmark's server, the removal of what it stored included.
const stopLimit = time.Minute

func (s *benchServer) stop(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	for i := len(s.cleanups) - 1; i >= 0; i-- {
		err = errors.Join(err, s.cleanups[i](ctx))
	}
	return err
}

// startBenchServer starts a server on a store: storeFile or the URL of a database on a Postgres server. An empty data
// directory means a temporary one.
func startBenchServer(ctx context.Context, store, data string) (_ *benchServer, err error) {
	s := &benchServer{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop(ctx))
		}
	}()
	if data == "" {
		if data, err = os.MkdirTemp("", "headrace-bench-"); err != nil {
			return nil, err
		}
		s.cleanups = append(s.cleanups, func(context.Context) error { return os.RemoveAll(data) })
	}
	cfg := devserver.Config{Data: data}
	if store != storeFile {
		if cfg, err = s.onPostgres(ctx, store, data); err != nil {
			return nil, fmt.Errorf("--store: %w", err)
		}
	}
	server, err := devserver.Start(ctx, cfg)
	if err != nil {
		return nil, err
	}
	s.addr = server.GRPC
	s.cleanups = append(s.cleanups, server.Stop)
	return s, nil
}

// onPostgres makes a database and the configuration of a node of its own on it.
func (s *benchServer) onPostgres(ctx context.Context, url, dir string) (devserver.Config, error) {
	connect, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	scratch, err := pgstore.NewScratch(connect, url)
	if err != nil {
		return devserver.Config{}, err
	}
	s.cleanups = append(s.cleanups, scratch.Drop)
	if s.database, err = postgresUsage(connect, scratch); err != nil {
		return devserver.Config{}, err
	}
	text, err := yaml.Marshal(map[string]any{
		"name": "bench", "log_level": "warn",
		"etcd":      map[string]string{"dir": filepath.Join(dir, "etcd")},
		"databases": []map[string]string{{"name": "bench", "dsn": scratch.DSN}},
	})
	if err != nil {
		return devserver.Config{}, err
	}
	file := filepath.Join(dir, "headrace.yaml")
	return devserver.Config{File: file}, os.WriteFile(file, text, 0o600)
}

// postgresUsage returns what reads the usage of the server's processes; nil if they are not on this machine.
func postgresUsage(ctx context.Context, scratch *pgstore.Scratch) (usage func() (proctree.Usage, error), err error) {
	err = scratch.Backend(ctx, func(pid int) error {
		// The number may be another process's here: ours says in its command line which database it serves.
		if line, err := proctree.Command(pid); err != nil || !strings.Contains(line, scratch.Name) {
			return nil
		}
		postmaster, err := proctree.Parent(pid)
		if err == nil {
			usage = func() (proctree.Usage, error) { return proctree.Of(postmaster) }
		}
		return err
	})
	return usage, err
}
