package member

import (
	"crypto/rand"
	"encoding/base32"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/headrace/headrace/shard"
	"github.com/headrace/headrace/task"
)

// Config is how a node takes part. The zero value of a field is its default.
type Config struct {
	// Node is what the others learn of this one. ID must be set (NewID), new at each start of the process. Levels
	// nil: those of this build.
	Node shard.Node
	// TTL of the membership lease, whole seconds: 5 s. Shorter: a dead node's partitions move sooner;
	// longer: a slow registry or a long pause costs less often a takeover. 1 s to 60 s.
	TTL time.Duration
	// Partitions is the catalogue that the leader writes when the registry has none.
	Partitions []shard.Partition
	// JoinDelay is how long a leader waits for more to join before it moves partitions to a new node, so
	// that a start of many nodes moves them once: 5 s. Partitions that nobody has never wait. 0 to 60 s;
	// negative: none.
	JoinDelay time.Duration
	// Resync is how often everything is listed again, in case the watch missed something: 10 s.
	// 100 ms to 10 min.
	Resync time.Duration
	// Sole says that the caller holds a lock that makes it the only node on this registry: all
	// others found there are dead predecessors, whose leases are revoked at the first join.
	Sole bool
	// Prefix of all keys, ends in "/": DefaultPrefix.
	Prefix string
	// Healthy, if set, is asked before each keep-alive; while it returns an error none is sent, and the
	// node loses its lease. It ties the lease to the life of the node's loop. It must not block.
	Healthy func() error
	// Logger; nil logs nothing.
	Logger *zap.Logger
}

// NewID returns a new random node id.
func NewID() shard.NodeID {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return shard.NodeID(strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(b[:])))
}

func (c Config) withDefaults() Config {
	if c.Node.Levels == nil {
		own := shard.OwnLevels()
		c.Node.Levels = &own
	}
	if c.TTL == 0 {
		c.TTL = 5 * time.Second
	}
	if c.JoinDelay == 0 {
		c.JoinDelay = 5 * time.Second
	}
	if c.Resync == 0 {
		c.Resync = 10 * time.Second
	}
	if c.Prefix == "" {
		c.Prefix = DefaultPrefix
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	return c
}

// Validate names the field that is out of range.
func (c Config) Validate() error {
	c = c.withDefaults()
	seen := map[uint32]bool{}
	for _, p := range c.Partitions {
		if seen[p.ID] {
			return &task.FieldError{Field: "Partitions", Value: fmt.Sprint(p.ID), Want: "each one once"}
		}
		seen[p.ID] = true
	}
	switch {
	case c.Node.ID == "" || strings.Contains(string(c.Node.ID), "/"):
		return &task.FieldError{Field: "Node.ID", Value: string(c.Node.ID), Want: "an id without a slash"}
	case c.Node.Levels.Validate() != nil:
		return &task.FieldError{Field: "Node.Levels", Value: c.Node.Levels.String(), Want: "a range from 1 on"}
	case c.TTL < time.Second || c.TTL > time.Minute || c.TTL%time.Second != 0:
		return &task.FieldError{Field: "TTL", Value: c.TTL.String(), Want: "whole seconds from 1s to 60s"}
	case c.JoinDelay > time.Minute:
		return &task.FieldError{Field: "JoinDelay", Value: c.JoinDelay.String(), Want: "at most 60s"}
	case c.Resync < 100*time.Millisecond || c.Resync > 10*time.Minute:
		return &task.FieldError{Field: "Resync", Value: c.Resync.String(), Want: "100ms to 10m"}
	case !strings.HasSuffix(c.Prefix, "/"):
		return &task.FieldError{Field: "Prefix", Value: c.Prefix, Want: "a text that ends in a slash"}
	}
	return nil
}
