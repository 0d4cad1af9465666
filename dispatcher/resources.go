package dispatcher

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/headrace/headrace/internal/telemetry"
	"github.com/headrace/headrace/shard"
	"github.com/headrace/headrace/shard/etcdshard"
	"github.com/headrace/headrace/shard/member"
	"github.com/headrace/headrace/shard/truth"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/store/filestore"
)

// resources are what outlives the parts: the databases and the registry.
type resources struct {
	databases *databases
	registry  member.KV
	gate      *truth.Gate // that registry is, once the databases are known
	secret    string
	sole      bool                // nobody else can be on this registry: we hold the lock of its directory
	catalogue []shard.Partition   // for a registry that has none; nil: it can't be said yet
	inHand    *inHand             // nil: others take over from this node
	etcd      *etcdshard.Embedded // nil: the registry is from outside
}

// The names in a data directory.
const (
	storeDir   = "store"
	etcdDir    = "etcd"
	secretFile = "secret"
)

// open opens the data directory, or what the configuration has.
func (n *Node) open(ctx context.Context) (_ *resources, err error) {
	res := &resources{databases: &databases{log: n.log}, registry: n.cfg.Registry, secret: n.cfg.Secret}
	defer func() {
		if err != nil {
			err = errors.Join(err, res.close())
		}
	}()
	if n.cfg.DataDir != "" {
		if err := os.MkdirAll(n.cfg.DataDir, 0o700); err != nil {
			return nil, fmt.Errorf("data directory: %w", err)
		}
		// The store's lock guards the whole directory: nothing else is touched before.
		file, err := filestore.Open(filestore.Config{Dir: filepath.Join(n.cfg.DataDir, storeDir), Logger: n.cfg.Logger})
		if errors.Is(err, store.ErrLocked) {
			return nil, fmt.Errorf("data directory %s is in use by another headrace process: %w", n.cfg.DataDir, err)
		}
		if err != nil {
			return nil, fmt.Errorf("open the store: %w", err)
		}
		main := Database{Name: mainDatabase, Zone: mainDatabase, Partitions: n.cfg.Partitions}
		res.databases.list = append(res.databases.list, &database{Database: main, store: file, own: true})
	}
	if dir := cmp.Or(n.cfg.DataDir, n.cfg.EtcdDir); dir != "" {
		if err := res.openEtcd(ctx, dir, n.log); err != nil {
			return nil, err
		}
		if res.inHand, err = openInHand(filepath.Join(dir, inHandFile), n.log); err != nil {
			return nil, err
		}
	}
	for _, db := range n.cfg.Databases {
		one := &database{Database: db, store: db.Store}
		if db.Store == nil {
			one.late = newLateStore(db.Name, db.Open, n.log)
			one.store, one.own = one.late, true
		}
		res.databases.list = append(res.databases.list, one)
	}
	res.databases.open(ctx)
	if err := res.guard(ctx, n.registryHeld, n.log); err != nil {
		return nil, err
	}
	if res.databases.opened() {
		if res.catalogue, err = res.databases.missing(ctx, nil); err != nil {
			n.log.Error("the catalogue is written once all databases answer", telemetry.Err(err))
			res.catalogue = nil
		}
	}
	if res.secret == "" {
		if res.secret, err = sharedSecret(ctx, res.gate, n.log); err != nil {
			return nil, err
		}
	}
	return res, nil
}

// openEtcd starts an etcd of one member in a directory, which it locks, and reads or makes the secret there.
func (r *resources) openEtcd(ctx context.Context, dir string, log *zap.Logger) (err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("etcd directory: %w", err)
	}
	r.etcd, err = etcdshard.StartEmbedded(ctx, etcdshard.EmbeddedConfig{Dir: filepath.Join(dir, etcdDir), Logger: log})
	if errors.Is(err, etcdshard.ErrLocked) {
		return fmt.Errorf("etcd directory %s is in use by another headrace process: %w", dir, err)
	}
	if err != nil {
		return fmt.Errorf("start etcd: %w", err)
	}
	r.registry, r.sole = r.etcd.KV(), true
	if r.secret == "" {
		r.secret, err = secret(filepath.Join(dir, secretFile))
	}
	return err
}

// guard puts the gate between the node and the registry, and compares for the first time. A node that is alone
// with both needs nobody to say which is true: the store.
func (r *resources) guard(ctx context.Context, changed func(*truth.Held), log *zap.Logger) (err error) {
	var dbs []truth.Database
	for _, db := range r.databases.list {
		dbs = append(dbs, truth.Database{Name: db.Name, Keeper: db.store})
	}
	if r.gate, err = truth.New(truth.Config{KV: r.registry, Databases: dbs, Changed: changed, Logger: log}); err != nil {
		return err
	}
	r.registry = r.gate
	call, cancel := context.WithTimeout(ctx, acquireMax)
	defer cancel()
	if err := r.gate.Compare(call); err != nil {
		log.Warn("the registry does not answer yet", telemetry.Err(err))
		return nil
	}
	if h := r.gate.Held(); r.sole && h != nil && !h.Unsure {
		err := r.gate.Accept(call, truth.Copies)
		if errors.Is(err, truth.ErrNoCopies) {
			err = r.gate.Accept(call, truth.Registry)
		}
		if err != nil {
			return fmt.Errorf("rebuild the registry: %w", err)
		}
		log.Warn("the registry was behind the store, and was made again from it")
	}
	return nil
}

// close closes what is ours, the registry first.
func (r *resources) close() error {
	var err error
	if r.etcd != nil {
		err = r.etcd.Close()
	}
	if r.inHand != nil {
		err = errors.Join(err, r.inHand.close())
	}
	return errors.Join(err, r.databases.close())
}

// failed is closed when the embedded etcd has given up; nil, which never is, if there is none.
func (r *resources) etcdFailed() <-chan struct{} {
	if r.etcd == nil {
		return nil
	}
	return r.etcd.Failed()
}

// storeFailed is closed when the embedded store can't write any more.
func (r *resources) storeFailed() <-chan struct{} {
	if file, ok := r.databases.list[0].store.(*filestore.Store); ok {
		return file.Failed()
	}
	return nil
}

// secret reads the directory's secret, or makes it.
func secret(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err == nil {
		if s := strings.TrimSpace(string(b)); len(s) == 64 {
			return s, nil
		}
		return "", fmt.Errorf("%s is damaged: want 64 hex digits; without it page tokens and shards change", path)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read the secret: %w", err)
	}
	s := newSecret()
	// Written whole or not at all: a crash here must not leave half of it.
	if err := writeFile(path, s+"\n"); err != nil {
		return "", fmt.Errorf("write the secret: %w", err)
	}
	return s, nil
}

func writeFile(path, text string) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func newSecret() string {
	var raw [32]byte
	rand.Read(raw[:]) // never fails
	return hex.EncodeToString(raw[:])
}

// secretKey is where a cluster's secret is in the registry, beside the membership.
const secretKey = "/headrace/v1/secret"

// sharedSecret reads the cluster's secret from the registry; the first node puts one there. It waits for the
// registry until ctx ends.
func sharedSecret(ctx context.Context, kv *truth.Gate, log *zap.Logger) (string, error) {
	look := func() (string, error) {
		call, cancel := context.WithTimeout(ctx, acquireMax)
		defer cancel()
		for range 2 {
			items, _, err := kv.List(call, secretKey)
			if err != nil {
				return "", err
			}
			if len(items) > 0 && items[0].Key == secretKey {
				return string(items[0].Value), nil
			}
			if h := kv.Held(); h != nil && !h.Unsure { // the registry was lost: the secret is not
				copied, there, err := kv.Copy(call, secretKey)
				if err == nil && there {
					return string(copied), nil
				}
				return "", errors.Join(truth.ErrHeld, err)
			}
			if _, _, err := kv.Commit(call, member.Txn{
				If:   []member.Cond{{Key: secretKey}},
				Then: []member.Op{{Key: secretKey, Value: []byte(newSecret())}},
			}); err != nil {
				return "", err
			}
		}
		return "", errors.New("the secret is gone again")
	}
	for {
		s, err := look()
		if err == nil && s != "" {
			return s, nil
		}
		log.Warn("the cluster's secret can't be read: waiting for it", telemetry.Err(err))
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return "", fmt.Errorf("read the cluster's secret: %w", cmp.Or(err, context.Cause(ctx)))
		}
	}
}
