package store

import "context"

// Configuration is what a database remembers of the cluster's configuration, which lives in the registry.
// A version grows with each change there, so a registry that is behind a database was restored, or lost.
type Configuration struct {
	Seen   uint64       // the highest version that the database was told of; 0: none
	Copied uint64       // the version that Copies are of, at most Seen; 0: there are none
	Copies []Configured // the registry's keys as of Copied, by key
}

// Configured is one key of the registry, copied.
type Configured struct {
	Key     string
	Value   []byte
	Version uint64 // that it was copied at
	Deleted bool   // in a change only: the key is gone
}

// Keeper is the part of a store that remembers the configuration. Its methods may be called from any
// goroutine, beside all others.
type Keeper interface {
	// Configuration reads what is remembered, Copies only if they are asked for.
	Configuration(ctx context.Context, copies bool) (*Configuration, error)
	// SawConfiguration raises Seen to the version; a lower one changes nothing.
	SawConfiguration(ctx context.Context, version uint64) error
	// CopyConfiguration applies changes to the copies of version from, which makes them those of version
	// to, from it on or above; and raises Seen to it. All of it is stored, or nothing. Errors: ErrFenced if the
	// copies are of another version than from: somebody else has copied.
	CopyConfiguration(ctx context.Context, from, to uint64, changes []Configured) error
}
