package localcluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// databaseName is the one database of each server.
const databaseName = "headrace"

// askMax bounds one question to a service.
const askMax = 5 * time.Second

// A Database is one Postgres server: fsync is on, and it listens on loopback only, without a password. Kill is Postgres's own
// "immediate" shutdown: no checkpoint, recovery at the next start. Stop is "fast".
type Database struct {
	Service
	DSN  string
	Port int
	Data string // its directory

	bin  string
	cred *syscall.Credential // nil: our own user
}

func (c *Cluster) database(i int, bin string, cred *syscall.Credential) *Database {
	s := &c.state.Postgres[i]
	db := &Database{DSN: s.DSN, Port: s.Port, Data: filepath.Join(c.Dir, s.Name), bin: bin, cred: cred}
	db.Service = Service{Name: s.Name, c: c, proc: &s.Process, stop: syscall.SIGINT, kill: syscall.SIGQUIT,
		prepare: func(ctx context.Context) (command, error) {
			if err := db.init(ctx); err != nil {
				return command{}, err
			}
			args := []string{"-D", db.Data, "-p", strconv.Itoa(db.Port), "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="}
			for _, set := range c.opt.PostgresSettings {
				args = append(args, "-c", set)
			}
			return command{path: filepath.Join(bin, "postgres"), args: args, env: []string{"LC_ALL=C"}, dir: db.Data, cred: cred}, nil
		},
		serves: func(ctx context.Context) bool {
			ctx, cancel := context.WithTimeout(ctx, askMax)
			defer cancel()
			_, err := db.psql(ctx, "postgres", "SELECT 1")
			return err == nil
		},
		complete: func(ctx context.Context) error {
			have, err := db.psql(ctx, "postgres", "SELECT count(*) FROM pg_database WHERE datname = '"+databaseName+"'")
			if err == nil && have == "0" {
				_, err = db.psql(ctx, "postgres", "CREATE DATABASE "+databaseName)
			}
			return err
		},
	}
	return db
}

// init makes the data directory, once. Postgres wants it to be its user's own.
func (db *Database) init(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(db.Data, "PG_VERSION")); err == nil {
		return nil
	}
	if err := os.RemoveAll(db.Data); err != nil { // half made
		return err
	}
	if err := os.Mkdir(db.Data, 0o700); err != nil {
		return err
	}
	if db.cred != nil {
		if err := os.Chown(db.Data, int(db.cred.Uid), int(db.cred.Gid)); err != nil {
			return err
		}
	}
	_, err := db.run(ctx, "initdb", "-D", db.Data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-instructions")
	if err != nil && db.cred != nil {
		err = fmt.Errorf("%w (as root it runs as user postgres, who must be allowed to enter %s)", err, db.c.Dir)
	}
	return err
}

// run runs one of Postgres's programs as the server's user.
func (db *Database) run(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(db.bin, name), args...)
	cmd.Dir = db.Data
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: db.cred, Setpgid: true}
	cmd.Env = append(os.Environ(), "LC_ALL=C", "PGCONNECT_TIMEOUT=5")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return strings.TrimSpace(string(out)), nil
}

func (db *Database) psql(ctx context.Context, database, sql string) (string, error) {
	return db.run(ctx, "psql", "-h", "127.0.0.1", "-p", strconv.Itoa(db.Port), "-U", "postgres", "-d", database, "-X", "-A", "-t", "-q",
		"-v", "ON_ERROR_STOP=1", "-c", sql)
}

// SQL runs statements as superuser and returns what they print, columns apart by |. No proxy is in between.
func (db *Database) SQL(ctx context.Context, sql string) (string, error) {
	return db.psql(ctx, databaseName, sql)
}

// KillBackends ends the connections of all clients, as an administrator or a failing pooler would, and returns how many.
func (db *Database) KillBackends(ctx context.Context) (int, error) {
	out, err := db.SQL(ctx, `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
		WHERE datname = '`+databaseName+`' AND pid <> pg_backend_pid()`)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(out)
}
