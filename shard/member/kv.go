package member

import (
	"context"
	"errors"
	"time"
)

// ErrLeaseLost means that the registry does not know the lease: it ran out or was revoked.
var ErrLeaseLost = errors.New("lease is gone")

// LeaseID names a lease; 0 is none.
type LeaseID int64

// Item is one key as it was read.
type Item struct {
	Key      string
	Value    []byte
	Lease    LeaseID // that it hangs on; 0: none
	Revision int64   // of the write that left it so; never 0
	Writes   int64   // how often it was written since it was made, that included: a counter that needs no condition
}

// Change is one key after a write. Of a deleted one only Key and Revision are set.
type Change struct {
	Item
	Deleted bool
}

// Cond is something that must hold for a transaction to be applied.
type Cond struct {
	Key      string
	Revision int64   // the key's revision; 0: the key is absent. Not looked at if Lease is set
	Lease    LeaseID // the key is there and hangs on this lease
}

// Op writes or deletes one key.
type Op struct {
	Key    string
	Value  []byte
	Lease  LeaseID // to hang it on; 0: none
	Delete bool
}

// Txn applies all of Then if all of If hold, else nothing. At most MaxTxnOps of each.
type Txn struct {
	If   []Cond
	Then []Op
}

// MaxTxnOps bounds the conditions and the operations of a transaction: etcd's default.
const MaxTxnOps = 128

// KV is what membership needs of a registry: linearizable keys with revisions, leases and watches. All
// methods may be called from any goroutine and return when ctx ends. An error other than the named
// ones leaves open whether a write was applied.
type KV interface {
	// Grant makes a lease that ends when it was not kept alive for ttl, or a little later.
	Grant(ctx context.Context, ttl time.Duration) (LeaseID, error)
	// KeepAlive renews a lease, once. Errors: ErrLeaseLost.
	KeepAlive(ctx context.Context, lease LeaseID) error
	// Revoke ends a lease and deletes what hangs on it. It is no error if the lease is gone.
	Revoke(ctx context.Context, lease LeaseID) error
	// List returns the keys that start with the prefix, in key order, and the revision it was read at.
	List(ctx context.Context, prefix string) ([]Item, int64, error)
	// Commit applies a transaction and reports whether its conditions held, and at which revision.
	// Errors: ErrLeaseLost if an operation names a lease that is gone.
	Commit(ctx context.Context, txn Txn) (ok bool, revision int64, err error)
	// Watch sends the changes of keys with the prefix after a revision, in order and those of one
	// transaction together. The channel is closed when ctx ends or when it can't go on: then list again.
	Watch(ctx context.Context, prefix string, after int64) <-chan []Change
}
