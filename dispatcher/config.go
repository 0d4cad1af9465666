package dispatcher

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"go.uber.org/zap"

	"github.com/headrace/headrace/shard/member"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// Config says what a node is. The zero value of a field is its documented default.
type Config struct {
	// DataDir holds everything of a node that needs nothing else: the store, etcd and the secret. It is made
	// if it is not there, and locked. Empty only with Store and Registry.
	DataDir string

	// Store and Registry replace what DataDir would hold: for clusters and tests. The node closes neither.
	Store    store.Store
	Registry member.KV
	Secret   string // with Store: keys shards and page tokens, the same on all nodes and for ever

	Listen    string       // gRPC, host:port on a loopback address; 127.0.0.1:7070. Port 0 picks one
	Listener  net.Listener // instead of Listen
	HTTP      string       // health and debug pages, on a loopback address; 127.0.0.1:7071; "off" for none
	Advertise string       // address that clients and executors reach this node by; "": as they dialled it
	Name      string       // for people
	Version   string       // of the binary, for people

	Partitions int           // when there are none yet, and as many at least; 8. 1 to 1024
	MaxPayload int           // bytes; 1 MiB, at most 16 MiB
	Drain      time.Duration // how long a stop may take to hand partitions over; 5 s
	TTL        time.Duration // of the membership lease, whole seconds; 5 s
	// MemoryBytes is what the process's memory stays within, softly: near it the collector works harder.
	// 300 MiB, which with what the collector does not see (caches, tables, stacks) stays below 512 MB; negative: leave the collector alone, as tests and embedders want. GOGC and GOMEMLIMIT win.
	MemoryBytes int64
	Logger      *zap.Logger // nil: silent
}

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
	return c
}

// Validate names the field that is wrong and what it may be. It resolves host names.
func (c Config) Validate() error {
	c = c.withDefaults()
	switch {
	case c.DataDir == "" && (c.Store == nil || c.Registry == nil || c.Secret == ""):
		return errors.New("data directory: want one (or Config.Store, Registry and Secret)")
	case c.DataDir != "" && (c.Store != nil || c.Registry != nil):
		return errors.New("data directory: want either one, or Config.Store and Registry")
	case c.Partitions < 1 || c.Partitions > 1024:
		return &task.FieldError{Field: "Partitions", Value: fmt.Sprint(c.Partitions), Want: "1 to 1024"}
	case c.MaxPayload < 1 || c.MaxPayload > task.MaxPayloadConfig:
		return &task.FieldError{Field: "MaxPayload", Value: fmt.Sprint(c.MaxPayload), Want: fmt.Sprintf("1 to %d bytes", task.MaxPayloadConfig)}
	case c.Drain < 0 || c.Drain > time.Hour:
		return &task.FieldError{Field: "Drain", Value: c.Drain.String(), Want: "0 to 1h"}
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
