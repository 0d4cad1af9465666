package dispatcher

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/headrace/headrace/shard"
	"github.com/headrace/headrace/shard/etcdshard"
	"github.com/headrace/headrace/shard/member"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/store/filestore"
)

// resources are what outlives the parts: the store and the registry.
type resources struct {
	store     store.Store
	registry  member.KV
	secret    string
	sole      bool // nobody else can be on this registry: we hold the lock of its directory
	catalogue []shard.Partition
	etcd      *etcdshard.Embedded // nil: the registry is from outside
	own       bool                // the store is ours to close
}

// The names in a data directory.
const (
	storeDir   = "store"
	etcdDir    = "etcd"
	secretFile = "secret"
)

// open opens the data directory, or takes what the configuration has.
func (n *Node) open(ctx context.Context) (_ *resources, err error) {
	res := &resources{store: n.cfg.Store, registry: n.cfg.Registry, secret: n.cfg.Secret}
	if n.cfg.DataDir != "" {
		defer func() {
			if err != nil {
				err = errors.Join(err, res.close())
			}
		}()
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
		res.store, res.own, res.sole = file, true, true
		if res.secret, err = secret(filepath.Join(n.cfg.DataDir, secretFile)); err != nil {
			return nil, err
		}
		if res.etcd, err = etcdshard.StartEmbedded(ctx, etcdshard.EmbeddedConfig{Dir: filepath.Join(n.cfg.DataDir, etcdDir), Logger: n.cfg.Logger}); err != nil {
			return nil, fmt.Errorf("start etcd: %w", err)
		}
		res.registry = res.etcd.KV()
	}
	if res.catalogue, err = n.catalogue(ctx, res.store); err != nil {
		return nil, err
	}
	return res, nil
}

// catalogue is what the registry shall know when it knows nothing: the configured number of partitions,
// and what the store has, should a registry have been lost.
func (n *Node) catalogue(ctx context.Context, s store.Store) ([]shard.Partition, error) {
	stored, err := s.Partitions(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the partitions: %w", err)
	}
	var ids []uint32
	for i := range n.cfg.Partitions {
		ids = append(ids, uint32(i+1))
	}
	for _, p := range stored {
		ids = append(ids, p.ID)
	}
	slices.Sort(ids)
	var ps []shard.Partition
	for _, id := range slices.Compact(ids) {
		ps = append(ps, shard.Partition{ID: id, Zone: "main"})
	}
	return ps, nil
}

// close closes what is ours, the registry first.
func (r *resources) close() error {
	var err error
	if r.etcd != nil {
		err = r.etcd.Close()
	}
	if r.own {
		err = errors.Join(err, r.store.Close())
	}
	return err
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
	if f, ok := r.store.(*filestore.Store); ok && r.own {
		return f.Failed()
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
	var raw [32]byte
	rand.Read(raw[:]) // never fails
	s := hex.EncodeToString(raw[:])
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
