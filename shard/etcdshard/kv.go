package etcdshard

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/headrace/headrace/internal/grpcx"
	"github.com/headrace/headrace/shard/member"
)

// KV is a member.KV on etcd.
type KV struct {
	client *clientv3.Client
	leases pb.LeaseClient // beside client: see KeepAlive
}

var _ member.KV = (*KV)(nil)

// ClientConfig says how to reach a cluster's etcd.
type ClientConfig struct {
	Endpoints []string    // host:port, at least one
	TLS       *tls.Config // nil: none
	Username  string      // "": no authentication
	Password  string
	// DialTimeout bounds one attempt to connect: 2 s.
	DialTimeout time.Duration
	Logger      *zap.Logger // nil logs nothing; the client's own words come at warn and above
}

// Dial returns a client of a cluster's etcd. It does not wait for a connection: etcd may come later than
// the node. Close it after Member.Run has returned.
func Dial(cfg ClientConfig) (*KV, error) {
	if len(cfg.Endpoints) == 0 {
		return nil, errors.New("etcd endpoints: at least one is needed")
	}
	if cfg.DialTimeout == 0 {
		cfg.DialTimeout = 2 * time.Second
	}
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	conf := clientv3.Config{
		Endpoints:            cfg.Endpoints,
		TLS:                  cfg.TLS,
		Username:             cfg.Username,
		Password:             cfg.Password,
		DialTimeout:          cfg.DialTimeout,
		DialKeepAliveTime:    2 * time.Second, // a dead connection is noticed within a lease
		DialKeepAliveTimeout: time.Second,
		PermitWithoutStream:  true,
		Logger:               cfg.Logger.Named("etcd").WithOptions(zap.IncreaseLevel(zap.WarnLevel)),
	}
	// When etcd is back the first lease to run out is that of a node which waits with its next attempt.
	conf.DialOptions = append(conf.DialOptions, grpcx.Reconnect(time.Second))
	client, err := clientv3.New(conf)
	if err != nil {
		return nil, fmt.Errorf("etcd client: %w", err)
	}
	return &KV{client: client, leases: pb.NewLeaseClient(client.ActiveConnection())}, nil
}

// Close ends all watches and calls.
func (kv *KV) Close() error {
	if err := kv.client.Close(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("close etcd client: %w", err)
	}
	return nil
}

// Grant makes a lease; etcd counts in whole seconds, and has a minimum of one or two.
func (kv *KV) Grant(ctx context.Context, ttl time.Duration) (member.LeaseID, error) {
	resp, err := kv.client.Grant(ctx, int64(math.Ceil(ttl.Seconds())))
	if err != nil {
		return 0, fmt.Errorf("etcd grant: %w", err)
	}
	return member.LeaseID(resp.ID), nil
}

// KeepAlive renews a lease, once. It is not clientv3's KeepAliveOnce: that one repeats a failed call without
// any pause until its context ends, which is a busy loop for as long as etcd is away.
func (kv *KV) KeepAlive(ctx context.Context, lease member.LeaseID) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream
	stream, err := kv.leases.LeaseKeepAlive(ctx)
	if err == nil {
		err = stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(lease)})
	}
	var resp *pb.LeaseKeepAliveResponse
	if err == nil {
		resp, err = stream.Recv()
	}
	if err == nil && resp.TTL <= 0 {
		err = rpctypes.ErrLeaseNotFound
	}
	return mapError("etcd keep alive", err)
}

// Revoke ends a lease.
func (kv *KV) Revoke(ctx context.Context, lease member.LeaseID) error {
	_, err := kv.client.Revoke(ctx, clientv3.LeaseID(lease))
	if err = mapError("etcd revoke", err); errors.Is(err, member.ErrLeaseLost) {
		return nil
	}
	return err
}

// List reads a prefix, linearizably.
func (kv *KV) List(ctx context.Context, prefix string) ([]member.Item, int64, error) {
	resp, err := kv.client.Get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return nil, 0, mapError("etcd get "+prefix, err)
	}
	items := make([]member.Item, len(resp.Kvs))
	for i, it := range resp.Kvs {
		items[i] = item(it)
	}
	return items, resp.Header.Revision, nil
}

// Commit applies a transaction.
func (kv *KV) Commit(ctx context.Context, txn member.Txn) (bool, int64, error) {
	conds := make([]clientv3.Cmp, len(txn.If))
	for i, c := range txn.If {
		if c.Lease != 0 {
			conds[i] = clientv3.Compare(clientv3.LeaseValue(c.Key), "=", int64(c.Lease))
		} else {
			conds[i] = clientv3.Compare(clientv3.ModRevision(c.Key), "=", c.Revision)
		}
	}
	ops := make([]clientv3.Op, len(txn.Then))
	for i, op := range txn.Then {
		if op.Delete {
			ops[i] = clientv3.OpDelete(op.Key)
		} else {
			ops[i] = clientv3.OpPut(op.Key, string(op.Value), clientv3.WithLease(clientv3.LeaseID(op.Lease)))
		}
	}
	resp, err := kv.client.Txn(ctx).If(conds...).Then(ops...).Commit()
	if err != nil {
		return false, 0, mapError("etcd txn", err)
	}
	return resp.Succeeded, resp.Header.Revision, nil
}

// Watch follows a prefix. It ends when etcd has no leader, so that a watch on a member that was cut off does
// not look like peace.
func (kv *KV) Watch(ctx context.Context, prefix string, after int64) <-chan []member.Change {
	out := make(chan []member.Change)
	go func() { // ends with ctx or with etcd's channel
		defer close(out)
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		for resp := range kv.client.Watch(clientv3.WithRequireLeader(ctx), prefix, clientv3.WithPrefix(), clientv3.WithRev(after+1)) {
			if resp.Err() != nil {
				return
			}
			for events := resp.Events; len(events) > 0; {
				n := 1
				for n < len(events) && events[n].Kv.ModRevision == events[0].Kv.ModRevision {
					n++
				}
				select {
				case out <- changes(events[:n]):
				case <-ctx.Done():
					return
				}
				events = events[n:]
			}
		}
	}()
	return out
}

func changes(events []*clientv3.Event) []member.Change {
	cs := make([]member.Change, len(events))
	for i, e := range events {
		if e.Type == clientv3.EventTypeDelete {
			cs[i] = member.Change{Item: member.Item{Key: string(e.Kv.Key), Revision: e.Kv.ModRevision}, Deleted: true}
		} else {
			cs[i] = member.Change{Item: item(e.Kv)}
		}
	}
	return cs
}

func item(it *mvccpb.KeyValue) member.Item {
	return member.Item{Key: string(it.Key), Value: it.Value, Lease: member.LeaseID(it.Lease), Revision: it.ModRevision, Writes: it.Version}
}

// mapError names what callers act on.
func mapError(what string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseNotFound) {
		return fmt.Errorf("%s: %w", what, member.ErrLeaseLost)
	}
	return fmt.Errorf("%s: %w", what, err)
}
