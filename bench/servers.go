package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headrace/headrace/internal/pgtest"
	"github.com/headrace/headrace/internal/proctree"
)

// tuned is what a Postgres gets that shall not wait for checkpoints and vacuum; fsync and synchronous_commit are on.
var tuned = []string{
	"synchronous_commit=on", "shared_buffers=2GB", "max_wal_size=8GB", "min_wal_size=2GB", "wal_buffers=64MB",
	"wal_compression=lz4", "checkpoint_timeout=15min", "autovacuum_naptime=10s", "autovacuum_vacuum_cost_delay=1ms",
	"max_connections=200", "log_min_messages=error",
}

func startPostgres() (*pgtest.Server, error) {
	pg, err := pgtest.New(tuned...)
	if err != nil {
		return nil, fmt.Errorf("start Postgres: %w", err)
	}
	return pg, nil
}

// calm writes what is dirty, so that no run pays for the one before it.
func calm(pg *pgtest.Server) error {
	_, err := pg.SQL("postgres", "CHECKPOINT")
	return err
}

// redisServer is a Redis of ours, in a directory of its own.
type redisServer struct {
	fsync string // everysec or always
	dir   string
	addr  string
	cmd   *exec.Cmd
	conn  *redis.Client
}

func startRedis(ctx context.Context, fsync string) (_ *redisServer, err error) {
	dir, err := os.MkdirTemp("", "headrace-redis-")
	if err != nil {
		return nil, err
	}
	s := &redisServer{fsync: fsync, dir: dir}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s.addr = l.Addr().String()
	l.Close()
	_, port, _ := net.SplitHostPort(s.addr)
	s.cmd = exec.Command("redis-server", "--bind", "127.0.0.1", "--port", port, "--dir", dir, "--save", "", "--appendonly", "yes",
		"--appendfsync", fsync, "--auto-aof-rewrite-percentage", "0", "--loglevel", "warning")
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start redis-server (Debian has it; `make bench-peers` installs it): %w", err)
	}
	s.conn = redis.NewClient(&redis.Options{Addr: s.addr})
	for deadline := time.Now().Add(20 * time.Second); ; {
		if err = s.conn.Ping(ctx).Err(); err == nil {
			return s, nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return nil, fmt.Errorf("start redis-server: %w", err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (s *redisServer) close() {
	if s.conn != nil {
		s.conn.Close()
	}
	if s.cmd != nil && s.cmd.Process != nil {
		s.cmd.Process.Kill()
		s.cmd.Wait()
	}
	os.RemoveAll(s.dir)
}

func (s *redisServer) cpu() time.Duration {
	u, _ := proctree.Of(s.cmd.Process.Pid) // nothing, of one that died: the next call to it fails
	return u.CPU
}

// appended returns how large the append-only file is.
func (s *redisServer) appended() (n int64, err error) {
	files, err := filepath.Glob(filepath.Join(s.dir, "appendonlydir", "*.incr.aof"))
	if err == nil && len(files) == 0 {
		err = errors.New("no append-only file in " + s.dir)
	}
	for _, f := range files {
		info, err := os.Stat(f)
		if err != nil {
			return 0, err
		}
		n += info.Size()
	}
	return n, err
}

// info returns a field of Redis' INFO.
func (s *redisServer) info(ctx context.Context, field string) string {
	text, err := s.conn.Info(ctx).Result()
	if err != nil {
		return ""
	}
	for line := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(line, field+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// written returns the position of Postgres' log.
func written(pg *pgtest.Server) (int64, error) {
	out, err := pg.SQL("postgres", "SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint")
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(out, 10, 64)
}
