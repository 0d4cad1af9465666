package etcdshard

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/types"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/config"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.etcd.io/etcd/server/v3/features"
	"go.etcd.io/etcd/server/v3/proxy/grpcproxy/adapter"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// ErrLocked means that another process, or another server in this one, uses the directory.
var ErrLocked = errors.New("etcd directory is in use")

// EmbeddedConfig is for StartEmbedded.
type EmbeddedConfig struct {
	// Dir is etcd's directory, made if it is not there. The caller holds a lock on what it is part of.
	Dir string
	// QuotaBytes bounds the keys and their history: 64 MB. Beyond it etcd refuses writes.
	QuotaBytes int64
	// StartTimeout bounds one attempt to start: 5 s, beyond which the directory counts as damaged. A healthy
	// start takes a tenth of a second.
	StartTimeout time.Duration
	// Logger gets etcd's words at warn and above; nil logs nothing.
	Logger *zap.Logger
}

// Embedded is an etcd of one member in this process.
type Embedded struct {
	server  *etcdserver.EtcdServer
	kv      *KV
	fatal   *fatalHook
	movedTo string
}

// Ticks of the one member's election clock: nobody else votes, so the election timeout is only what a start
// waits (one to three ticks); shorter ticks cost CPU for ever.
const (
	tickMs        = 25
	electionTicks = 2
)

// walSegmentBytes is what etcd allocates for its log at once, twice; its own default is 64 MB, more
// than a small team's whole data.
const walSegmentBytes = 2 << 20

var setSegmentSize sync.Once // the size is a variable of etcd's package

// StartEmbedded starts etcd and returns when it answers. A damaged directory is moved aside and an empty one
// begun (see the package's doc). Errors: ErrLocked.
func StartEmbedded(ctx context.Context, cfg EmbeddedConfig) (*Embedded, error) {
	setSegmentSize.Do(func() { wal.SegmentSizeBytes = walSegmentBytes })
	if cfg.QuotaBytes == 0 {
		cfg.QuotaBytes = 64 << 20
	}
	if cfg.StartTimeout == 0 {
		cfg.StartTimeout = 5 * time.Second
	}
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("etcd directory: %w", err)
	}
	cfg.Dir = dir
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return nil, fmt.Errorf("etcd directory: %w", err)
	}

	damage := checkLock(dir)
	if errors.Is(damage, ErrLocked) {
		return nil, fmt.Errorf("start etcd in %s: %w", dir, ErrLocked)
	}
	marker := dir + ".starting"
	if damage == nil && exists(marker) && exists(dir) {
		damage = errors.New("the last start ended the process")
	}
	if damage == nil {
		damage = checkPages(filepath.Join(dir, "member", "snap", "db"))
	}
	if err := os.WriteFile(marker, nil, 0o600); err != nil {
		return nil, fmt.Errorf("start etcd: %w", err)
	}
	var e *Embedded
	if damage == nil {
		if e, damage = start(ctx, cfg); ctx.Err() != nil && damage != nil {
			_ = os.Remove(marker)
			return nil, fmt.Errorf("start etcd: %w", context.Cause(ctx))
		}
	}
	if damage != nil {
		moved, err := moveAside(dir)
		if err != nil {
			return nil, fmt.Errorf("move damaged etcd directory aside (%w): %w", damage, err)
		}
		cfg.Logger.Warn("etcd's directory is damaged and was moved aside; starting with an empty one",
			zap.NamedError("damage", damage), zap.String("moved_to", moved))
		if e, err = start(ctx, cfg); err != nil {
			return nil, fmt.Errorf("start etcd in an empty directory: %w", err)
		}
		e.movedTo = moved
	}
	if err := os.Remove(marker); err != nil {
		_ = e.Close()
		return nil, fmt.Errorf("start etcd: %w", err)
	}
	return e, nil
}

// KV is the connection to the server. It is closed by Close.
func (e *Embedded) KV() *KV { return e.kv }

// MovedTo is where a damaged directory was moved; "" if there was none.
func (e *Embedded) MovedTo() string { return e.movedTo }

// Failed is closed when etcd gave up with a fatal error; Err says which.
func (e *Embedded) Failed() <-chan struct{} { return e.fatal.failed }

// Err is why etcd gave up; nil while it lives.
func (e *Embedded) Err() error { return e.fatal.error() }

// Close stops the client, then the server. It takes a few milliseconds; a server that gave up is left alone.
func (e *Embedded) Close() error {
	err := e.kv.Close()
	if stopErr := stopServer(e.server, e.fatal); err == nil {
		err = stopErr
	}
	return err
}

// start makes one attempt.
func start(ctx context.Context, cfg EmbeddedConfig) (*Embedded, error) {
	fatal := &fatalHook{failed: make(chan struct{})}
	// Nobody connects to this address: the member has no peers, and no listener.
	peer := url.URL{Scheme: "http", Host: "127.0.0.1:1"}
	const name = "headrace"
	server := config.ServerConfig{
		Name:                       name,
		DataDir:                    cfg.Dir,
		PeerURLs:                   []url.URL{peer},
		ClientURLs:                 []url.URL{peer},
		InitialPeerURLsMap:         types.URLsMap{name: {peer}},
		InitialClusterToken:        name,
		NewCluster:                 true,
		TickMs:                     tickMs,
		ElectionTicks:              electionTicks,
		InitialElectionTickAdvance: true,
		PreVote:                    true,
		SnapshotCount:              2000,
		SnapshotCatchUpEntries:     500,
		MaxSnapFiles:               2,
		MaxWALFiles:                2,
		AutoCompactionMode:         "revision",
		AutoCompactionRetention:    1000, // revisions
		QuotaBackendBytes:          cfg.QuotaBytes,
		MaxTxnOps:                  128,
		MaxRequestBytes:            1 << 20,
		MaxConcurrentStreams:       1 << 20,
		MaxLearners:                1,
		BcryptCost:                 10, // of no use without users, but etcd warns of none
		// Small disks are slow; that is no news.
		WarningApplyDuration:        500 * time.Millisecond,
		WarningUnaryRequestDuration: 500 * time.Millisecond,
		StrictReconfigCheck:         true,
		DowngradeCheckTime:          time.Minute,
		CompactHashCheckTime:        time.Hour,
		V2Deprecation:               config.V2DeprDefault,
		ServerFeatureGate:           features.NewDefaultServerFeatureGate(name, zap.NewNop()),
		Logger: cfg.Logger.Named("etcd").WithOptions(zap.IncreaseLevel(zap.WarnLevel),
			zap.WrapCore(func(c zapcore.Core) zapcore.Core { return quietCore{c} }),
			zap.WithFatalHook(fatal), zap.WithPanicHook(fatal)),
	}

	type result struct {
		server *etcdserver.EtcdServer
		err    error
	}
	opened := make(chan result, 1)
	go func() { // ends when etcd has opened its files, or by the hook
		r := result{err: errors.New("gave up while opening its files")}
		defer func() {
			if p := recover(); p != nil {
				r = result{err: fmt.Errorf("panic while opening its files: %v", p)}
			}
			opened <- r
		}()
		s, err := etcdserver.NewServer(server)
		r = result{s, err}
	}()
	timeout := time.NewTimer(cfg.StartTimeout)
	defer timeout.Stop()
	var s *etcdserver.EtcdServer
	select {
	case r := <-opened:
		if err := fatal.error(); err != nil {
			return nil, err
		}
		if r.err != nil {
			return nil, r.err
		}
		s = r.server
	case <-timeout.C:
		return nil, fmt.Errorf("files not open after %v", cfg.StartTimeout)
	}

	// The pages know up to which entry of the log they are. If the log ends before (it was cut, and etcd
	// repaired it), new entries get the numbers of old ones and are skipped as known: etcd would hang. A
	// whole log is replayed within milliseconds of the election, and the new leader's own entry is behind it.
	applied, _ := schema.ReadConsistentIndex(s.Backend().ReadTx())
	var leadingSince time.Time
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()

	s.Start()
	var err error
	for ready := false; !ready && err == nil; {
		select {
		case now := <-look.C:
			committed := s.CommittedIndex()
			switch {
			case committed >= applied:
				look.Stop()
			case s.Leader() == 0:
				leadingSince = time.Time{}
			case leadingSince.IsZero():
				leadingSince = now
			case now.Sub(leadingSince) > replayLimit:
				err = fmt.Errorf("the log ends at entry %d, before %d that the pages have", committed, applied)
			}
		case <-s.ReadyNotify():
			ready = true
		case <-fatal.failed:
			err = fatal.error()
		case <-timeout.C:
			err = fmt.Errorf("not ready after %v", cfg.StartTimeout)
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	if err != nil {
		_ = stopServer(s, fatal)
		return nil, err
	}
	e := &Embedded{server: s, fatal: fatal, kv: &KV{
		client: v3client.New(s),
		leases: adapter.LeaseServerToLeaseClient(v3rpc.NewQuotaLeaseServer(s)),
	}}
	if err := e.probe(ctx, cfg.StartTimeout); err != nil {
		_ = e.Close()
		return nil, err
	}
	return e, nil
}

// replayLimit is how long after its election a leader may take to have committed what its log holds.
const replayLimit = time.Second

// probe writes and reads a key: only then the way through log, pages and index is known to be good.
func (e *Embedded) probe(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	go func() { // ends with ctx
		select {
		case <-e.fatal.failed:
			cancel()
		case <-ctx.Done():
		}
	}()
	const key = "/headrace/v1/started"
	_, err := e.kv.client.Put(ctx, key, time.Now().UTC().Format(time.RFC3339))
	if err == nil {
		_, err = e.kv.client.Get(ctx, "/headrace/v1/", clientv3.WithPrefix())
	}
	if fatal := e.fatal.error(); fatal != nil {
		return fatal
	}
	if err != nil {
		return fmt.Errorf("first write: %w", err)
	}
	return nil
}

// stopServer stops a server. One that gave up may never answer: it is left behind.
func stopServer(s *etcdserver.EtcdServer, fatal *fatalHook) error {
	stopped := make(chan struct{})
	go func() { // ends with the server, or never if that hangs
		defer close(stopped)
		s.HardStop()
	}()
	limit := 5 * time.Second
	if fatal.error() != nil {
		limit = 200 * time.Millisecond
	}
	select {
	case <-stopped:
		return nil
	case <-time.After(limit):
		return fmt.Errorf("etcd did not stop within %v", limit)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// keepDamaged is how many damaged directories are kept for a look.
const keepDamaged = 3

// moveAside renames a directory and returns its new name. Older ones beyond keepDamaged are deleted, so that
// a machine that damages it again and again does not fill its disk.
func moveAside(dir string) (string, error) {
	old, err := filepath.Glob(dir + ".damaged-*") // names sort by time
	if err != nil {
		return "", err
	}
	for ; len(old) >= keepDamaged; old = old[1:] {
		if err := os.RemoveAll(old[0]); err != nil {
			return "", err
		}
	}
	to := dir + ".damaged-" + time.Now().UTC().Format("20060102T150405.000000")
	return to, os.Rename(dir, to)
}

// fatalHook is what etcd's logger calls instead of ending the process.
type fatalHook struct {
	mu     sync.Mutex // guards following
	err    error
	failed chan struct{} // closed with the first
}

// OnWrite notes the first fatal message and ends the goroutine that wrote it.
func (h *fatalHook) OnWrite(entry *zapcore.CheckedEntry, fields []zapcore.Field) {
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range fields {
		f.AddTo(enc)
	}
	h.mu.Lock()
	if h.err == nil {
		h.err = fmt.Errorf("etcd gave up: %s %v", entry.Message, enc.Fields)
		close(h.failed)
	}
	h.mu.Unlock()
	runtime.Goexit()
}

func (h *fatalHook) error() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}
