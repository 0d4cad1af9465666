package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/headrace/headrace/shard"
	"github.com/headrace/headrace/shard/member"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// Config says what a node is. The zero value of a field is its documented default.
type Config struct {
	// DataDir holds everything of a node that needs nothing else: the store, etcd and the secret. It is made
	// if it is not there, and locked. Empty only with Store and Registry.
	DataDir string

	// Databases and Registry replace what DataDir would hold: for clusters and tests. The node does not close the
	// registry. Several nodes on one registry are a cluster.
	Databases []Database
	Registry  member.KV
	// EtcdDir, instead of Registry, holds an etcd of one member in this process: a cluster of one node. It is made
	// if it is not there, and locked. Its secret is in it too, unless Secret is set.
	EtcdDir string
	// Store is short for one database of the name "main", with Partitions. The node does not close it.
	Store store.Store
	// Secret, with Registry, keys shards and page tokens: the same on all nodes and for ever. "": it is in the
	// registry, where the first node puts a random one.
	Secret string
	// PeerDialer connects to the other nodes' addresses, for tests; nil: TCP.
	PeerDialer func(ctx context.Context, addr string) (net.Conn, error)
	// Roles: "api" takes requests for the whole cluster, "dispatcher" owns partitions; none: both.
	Roles []string

	Listen   string       // gRPC, host:port on a loopback address; 127.0.0.1:7070. Port 0 picks one
	Listener net.Listener // instead of Listen
	HTTP     string       // health and debug pages, on a loopback address; 127.0.0.1:7071; "off" for none
	// Advertise is the address that other nodes, clients and executors reach this node by; "": the one it listens
	// on, and without a cluster as they dialled it.
	Advertise string
	Name      string // for people
	Version   string // of the binary, for people

	// OnTask, if set, is told each task that the node is about to handle, by its loop's goroutine: a place to die at,
	// for tests. Nil: the failpoint "task" (internal/failpoint), in builds that have it.
	OnTask func(*store.Task)

	// Levels are the feature levels that the node says it reads: nil: those of this build. Anything else is for tests
	// of clusters whose nodes are of two versions.
	Levels *shard.Levels

	Partitions int           // of DataDir or Store, when there are none yet, and as many at least; 8. 1 to 1024
	MaxPayload int           // bytes; 1 MiB, at most 16 MiB
	Drain      time.Duration // how long a stop may take to hand partitions over; 5 s
	TTL        time.Duration // of the membership lease, whole seconds; 5 s
	// MemoryBytes is what the process's memory stays within, softly: near it the collector works harder.
	// 300 MiB, which with what the collector does not see (caches, tables, stacks) stays below 512 MB; negative: leave the collector alone, as tests and embedders want. GOGC and GOMEMLIMIT win.
	MemoryBytes int64
	Logger      *zap.Logger // nil: silent
}

// Database is one store that holds some of the partitions: a failure domain. Its failure stalls nothing of another.
type Database struct {
	Name       string // the same on all nodes and for ever: the catalogue of partitions names it
	Zone       string // the failure domain, where several databases share one; Name
	Partitions int    // when it has fewer; 8. 1 to 1024. They are never taken away
	// Store is open, and not closed by the node. Open is tried until it works, and what it returns is closed at
	// the end; the partitions have no owner before. Open must return when its context ends. One of the two.
	Store store.Store
	Open  func(context.Context) (store.Store, error)
}

// The roles of a node.
const (
	RoleAPI        = "api"
	RoleDispatcher = "dispatcher"
)

func (c Config) has(role string) bool { return len(c.Roles) == 0 || slices.Contains(c.Roles, role) }

func (c Config) withDefaults() Config {
	if c.Listen == "" {
		c.Listen = "127.0.0.1:7070"
	}
	if c.HTTP == "" {
		c.HTTP = "127.0.0.1:7071"
	}
	if c.Partitions == 0 {
		c.Partitions = 8
	}
	if c.MaxPayload == 0 {
		c.MaxPayload = task.MaxPayload
	}
	if c.Drain == 0 {
		c.Drain = 5 * time.Second
	}
	if c.MemoryBytes == 0 {
		c.MemoryBytes = 300 << 20
	}
	if c.TTL == 0 {
		c.TTL = 5 * time.Second
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	if c.Store != nil {
		c.Databases, c.Store = append(slices.Clone(c.Databases), Database{Name: mainDatabase, Partitions: c.Partitions, Store: c.Store}), nil
	}
	c.Databases = slices.Clone(c.Databases)
	for i := range c.Databases {
		db := &c.Databases[i]
		if db.Zone == "" {
			db.Zone = db.Name
		}
		if db.Partitions == 0 {
			db.Partitions = 8
		}
	}
	return c
}

// mainDatabase is the name of the one database of a node with a data directory.
const mainDatabase = "main"

// Validate names the field that is wrong and what it may be. It resolves host names.
func (c Config) Validate() error {
	c = c.withDefaults()
	switch {
	case c.DataDir == "" && (len(c.Databases) == 0 || c.Registry == nil && c.EtcdDir == ""):
		return errors.New("data directory: want one (or Config.Databases and Registry or EtcdDir)")
	case c.DataDir != "" && (len(c.Databases) > 0 || c.Registry != nil || c.EtcdDir != ""):
		return errors.New("data directory: want either one, or Config.Databases and Registry or EtcdDir")
	case c.EtcdDir != "" && c.Registry != nil:
		return errors.New("etcd directory: want either one, or a Registry")
	case c.Partitions < 1 || c.Partitions > 1024:
		return &task.FieldError{Field: "Partitions", Value: fmt.Sprint(c.Partitions), Want: "1 to 1024"}
	case c.MaxPayload < 1 || c.MaxPayload > task.MaxPayloadConfig:
		return &task.FieldError{Field: "MaxPayload", Value: fmt.Sprint(c.MaxPayload), Want: fmt.Sprintf("1 to %d bytes", task.MaxPayloadConfig)}
	case c.Drain < 0 || c.Drain > time.Hour:
		return &task.FieldError{Field: "Drain", Value: c.Drain.String(), Want: "0 to 1h"}
	}
	names := map[string]bool{}
	for _, db := range c.Databases {
		if err := task.Name("Databases.Name", db.Name); err != nil {
			return err
		}
		if err := task.Name("Databases.Zone", db.Zone); err != nil {
			return err
		}
		switch {
		case names[db.Name]:
			return &task.FieldError{Field: "Databases.Name", Value: db.Name, Want: "each name once"}
		case db.Partitions < 1 || db.Partitions > 1024:
			return &task.FieldError{Field: "Databases.Partitions", Value: fmt.Sprint(db.Partitions), Want: "1 to 1024"}
		case (db.Store == nil) == (db.Open == nil):
			return &task.FieldError{Field: "Databases", Value: db.Name, Want: "either Store or Open"}
		}
		names[db.Name] = true
	}
	for _, role := range c.Roles {
		if role != RoleAPI && role != RoleDispatcher {
			return &task.FieldError{Field: "Roles", Value: role, Want: "api, dispatcher or both"}
		}
	}
	if c.Listener == nil {
		if err := loopback("Listen", c.Listen); err != nil {
			return err
		}
	}
	if c.HTTP != "off" {
		return loopback("HTTP", c.HTTP)
	}
	return nil
}

// loopback refuses an address that others could reach: without keys everybody who reaches a node may do all.
func loopback(field, addr string) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("%s %q: want host:port", field, addr)
	}
	if host == "" { // ":0" means every interface to Go, and "here" to a person
		return nil
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		if ip.IsLoopback() {
			return nil
		}
	} else if ips, err := net.LookupIP(host); err == nil && len(ips) > 0 {
		all := true
		for _, ip := range ips {
			all = all && ip.IsLoopback()
		}
		if all {
			return nil
		}
	}
	return fmt.Errorf("%s %q: without API keys a server listens on loopback only: want 127.0.0.1, [::1] or localhost", field, addr)
}

// listenAddr is where an address is bound: no host means loopback.
func listenAddr(addr string) string {
	if host, port, err := net.SplitHostPort(addr); err == nil && host == "" {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return addr
}
