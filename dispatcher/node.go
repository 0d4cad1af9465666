package dispatcher

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"

	"github.com/headrace/headrace/dispatcher/api"
	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/dispatcher/door"
	"github.com/headrace/headrace/dispatcher/loop"
	"github.com/headrace/headrace/dispatcher/ownership"
	"github.com/headrace/headrace/dispatcher/peer"
	"github.com/headrace/headrace/dispatcher/pools"
	"github.com/headrace/headrace/dispatcher/push"
	"github.com/headrace/headrace/internal/failpoint"
	"github.com/headrace/headrace/internal/grpcx"
	"github.com/headrace/headrace/internal/telemetry"
	"github.com/headrace/headrace/proto/externalscaler"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/shard"
	"github.com/headrace/headrace/shard/limits"
	"github.com/headrace/headrace/shard/member"
	"github.com/headrace/headrace/shard/pause"
	"github.com/headrace/headrace/shard/placement"
	"github.com/headrace/headrace/shard/tenants"
	"github.com/headrace/headrace/shard/truth"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// stopGrace is what calls under way get once everything is handed over.
const stopGrace = 1500 * time.Millisecond

// Node is one server process of the platform. Make it with New, start it with Run.
type Node struct {
	cfg       Config
	log       *zap.Logger
	id        shard.NodeID
	startedAt time.Time
	clock     *firingClock
	alarms    *alarms

	ready     chan struct{} // closed when the node serves everything assigned to it
	readyOnce sync.Once
	grpcAddr  net.Addr // set before ready
	httpAddr  net.Addr

	// Set by Run before anything that uses them starts:
	dbs        *databases
	gate       *truth.Gate
	loop       *loop.Loop
	router     *peer.Router
	peers      *peer.Service
	roster     *peer.Roster // nil: there is no other node
	member     *member.Member
	owners     *owners
	api        *api.Services
	placements *placement.Registry
	pauses     *pause.Registry
	limits     *limits.Limits
	bounds     *limits.Bounds
	shares     *peer.Shares // nil: there is no other node
	tenants    *tenants.Registry
	door       *door.Door
	pools      *pools.Pools
	push       *push.Server
	grpc       *grpc.Server
	health     *health.Server
	http       *http.Server
	serving    atomic.Bool                       // for the pages
	growing    atomic.Bool                       // the catalogue is being compared with the configuration
	grown      atomic.Pointer[[]shard.Partition] // the last one that lacked nothing
	asking     atomic.Bool                       // facts is being made
	facts      atomic.Pointer[headracev1.Node]
	wg         sync.WaitGroup // short-lived helpers
}

// New returns a node that has not started. Its error is Config.Validate's.
func New(cfg Config) (*Node, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("node config: %w", err)
	}
	cfg = cfg.withDefaults()
	id := member.NewID()
	n := &Node{
		cfg: cfg, id: id, log: cfg.Logger.Named("node").With(telemetry.Node(string(id))),
		clock: newFiringClock(), ready: make(chan struct{}),
	}
	n.alarms = newAlarms(time.Now, n.log)
	return n, nil
}

// Ready is closed when the node serves every partition that it shall serve.
func (n *Node) Ready() <-chan struct{} { return n.ready }

// ID names this run of the node.
func (n *Node) ID() string { return string(n.id) }

// Addr is where gRPC is served. Valid after Ready.
func (n *Node) Addr() string { return n.grpcAddr.String() }

// HTTPAddr is where the health and debug pages are; "" if they are off. Valid after Ready.
func (n *Node) HTTPAddr() string {
	if n.httpAddr == nil {
		return ""
	}
	return n.httpAddr.String()
}

// Run serves until ctx ends, then hands everything over and returns nil, within Config.Drain + 2 s. Another
// error says why it could not start, or could not go on; store.ErrLocked is in it when another process
// uses the data directory. Call it once.
func (n *Node) Run(ctx context.Context) (err error) {
	n.startedAt = time.Now()
	if n.cfg.MemoryBytes > 0 {
		tune(n.cfg.MemoryBytes)
	}
	grpcLis, httpLis, err := n.listen()
	if err != nil {
		return err
	}
	defer func() {
		_ = grpcLis.Close() // the servers have closed them already, once they served
		if httpLis != nil {
			_ = httpLis.Close()
		}
	}()
	res, err := n.open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, res.close()) }()

	if err := n.build(res); err != nil {
		return err
	}
	return n.serve(ctx, res, grpcLis, httpLis)
}

func (n *Node) listen() (grpcLis, httpLis net.Listener, err error) {
	if grpcLis = n.cfg.Listener; grpcLis == nil {
		if grpcLis, err = net.Listen("tcp", listenAddr(n.cfg.Listen)); err != nil {
			return nil, nil, fmt.Errorf("listen for gRPC: %w", err)
		}
	}
	n.grpcAddr = grpcLis.Addr()
	if n.cfg.HTTP != "off" {
		if httpLis, err = net.Listen("tcp", listenAddr(n.cfg.HTTP)); err != nil {
			_ = grpcLis.Close()
			return nil, nil, fmt.Errorf("listen for HTTP: %w", err)
		}
		n.httpAddr = httpLis.Addr()
	}
	return grpcLis, httpLis, nil
}

// build makes the parts and ties them together. Nothing starts here.
func (n *Node) build(res *resources) (err error) {
	n.dbs, n.gate = res.databases, res.gate
	n.dbs.directory = func() *shard.Directory { return n.member.Directory() }
	addr := n.cfg.Advertise
	if addr == "" && !res.sole && n.cfg.Listener == nil {
		addr = n.grpcAddr.String()
	}
	n.member, err = member.New(member.Config{
		Node: shard.Node{ID: n.id, Name: n.cfg.Name, Addr: addr, StartedAt: n.startedAt, Version: n.cfg.Version, Levels: n.cfg.Levels,
			Passive: !n.cfg.has(RoleDispatcher), Databases: n.dbs.names()},
		TTL: n.cfg.TTL, Partitions: res.catalogue, Sole: res.sole, Healthy: n.healthy, Logger: n.cfg.Logger,
	}, res.registry)
	if err != nil {
		return err
	}
	var dbs []loop.Database
	for _, db := range n.dbs.list {
		if !res.sole {
			db.reaches = newReaches(db.Name, db.store, n.cfg.TTL, n.clock.Now)
		}
		db.watched = &watchedStore{Store: db.store, now: n.clock.Now, reaches: db.reaches}
		dbs = append(dbs, loop.Database{Name: db.Name, Store: db.watched})
	}
	life := ownership.RosterLife(n.cfg.TTL)
	if !res.sole {
		n.roster = peer.NewRoster(peer.RosterConfig{Life: life, Now: n.clock.Now, Directory: n.member.Directory,
			Listed: func(run, upTo uint64) { n.loop.Listed(run, upTo) }})
	}
	if !n.cfg.has(RoleDispatcher) || res.sole {
		life = 0
	}
	n.door = door.New(door.Config{Now: n.clock.Now, Local: n.strain, Logger: n.cfg.Logger,
		Peers: func() []*door.Report { return n.router.Reports() }})
	n.pools = pools.New(pools.Config{Now: n.clock.Now, NodeID: string(n.id), Local: n.loads, Logger: n.cfg.Logger,
		Peers: func() []pools.Report { return n.router.Pools() }})
	trust := &trust{base: n.member.TrustBase, now: n.clock.Now, life: ownership.Trust(n.cfg.TTL)}
	var hand loop.Hand
	if res.inHand != nil {
		hand = res.inHand
	}
	n.loop, err = loop.New(loop.Config{
		Hand:      hand,
		Core:      core.Config{Random: random, Standing: n.door.Standing, Roster: n.roster != nil, Shared: n.roster != nil, Handles: n.onTask()},
		Roster:    n.tellRoster(),
		Databases: dbs,
		Now:       n.clock.Now,
		Trust:     trust.get,
		Held:      n.heldWhy,
		Elsewhere: func(ctx context.Context, partition uint32, tenant, requestID string) (*store.Request, error) {
			return n.router.Elsewhere(ctx, partition, tenant, requestID)
		},
		Lost:     func(p core.LostPartition) { n.owners.lost(p) },
		Released: func(p uint32) { n.owners.released(p) },
		Logger:   n.cfg.Logger,
	})
	if err != nil {
		return err
	}
	n.router = peer.NewRouter(peer.Config{NodeID: n.id, Directory: n.member.Directory, Dial: n.peerDial(res.sole), Logger: n.cfg.Logger,
		RosterLife: life, Session: n.member.Session, Now: n.clock.Now}, n.loop)
	if !res.sole {
		n.shares = peer.NewShares(n.router, n.loop, n.clock.Now)
	}
	n.pauses, err = pause.New(pause.Config{KV: res.registry, Now: n.clock.Now, Changed: n.loop.SetPauses, Logger: n.cfg.Logger})
	if err != nil {
		return err
	}
	n.limits, err = limits.New(limits.Config[task.Limit]{KV: res.registry, Now: n.clock.Now, Changed: n.loop.SetLimits, Logger: n.cfg.Logger})
	if err != nil {
		return err
	}
	n.bounds, err = limits.NewBounds(limits.Config[task.Bound]{KV: res.registry, Now: n.clock.Now, Changed: n.setBounds, Logger: n.cfg.Logger})
	if err != nil {
		return err
	}
	n.tenants, err = tenants.New(tenants.Config{KV: res.registry, Now: n.clock.Now, Changed: n.granted, Logger: n.cfg.Logger})
	if err != nil {
		return err
	}
	n.peers = peer.NewService(n.loop, n.told, n.roster, n.pauses.Bring, n.door.Report, n.shares, n.pools.Stats)
	n.owners = newOwners(n.loop, n.member, n.dbs.of, n.rules, n.clock.Now, n.cfg.Logger, n.member.Events())
	n.owners.cut = n.cutFrom
	n.owners.ready, n.owners.roster = n.setServing, n.router.Executors
	if !res.sole {
		n.owners.spare = n.spare
	}
	n.placements, err = placement.New(placement.Config{
		KV: res.registry, Secret: res.secret, Now: n.clock.Now, Logger: n.cfg.Logger,
		Catalogue: func() []shard.Partition { return n.member.Directory().Partitions },
	})
	if err != nil {
		return err
	}
	n.api, err = api.New(api.Config{
		Placements: n.placements, Pauses: n.pauses, Limits: n.limits, Bounds: n.bounds, Tenants: n.tenants, Door: n.door, Pools: n.pools,
		NodeID: string(n.id), Version: n.cfg.Version, StartedAt: n.startedAt,
		Databases: n.dbs.stores(), DatabaseNames: n.dbs.names(), DatabaseOf: n.dbs.index, DatabaseAway: n.databaseAway, Secret: res.secret, Now: n.clock.Now, MaxPayload: n.cfg.MaxPayload,
		Self: n.self, Truth: n.gate, Logger: n.cfg.Logger,
	}, n.router, n.member)
	if err != nil {
		return err
	}
	n.owners.cutOff = func() {
		n.api.ShedDirectories()
		n.alarms.raise(alarmEtcd, "", "no keep-alive has got through for a lease: partitions keep their owners until one does")
	}
	n.owners.condemned = res.inHand.condemned
	n.owners.alarm = func(partition uint32, message string) {
		if subject := fmt.Sprint(partition); message != "" {
			n.alarms.raise(alarmPanic, subject, message)
		} else {
			n.alarms.clear(alarmPanic, subject)
		}
	}
	n.owners.reached = func() { n.alarms.clear(alarmEtcd, "") }
	n.owners.news = func(ctx context.Context) {
		n.router.Update()
		if n.roster != nil {
			n.roster.Update()
		}
		n.api.DirectoryChanged()
		n.grow(ctx)
	}
	n.push = push.New(push.Config{NodeID: string(n.id), MaxResult: n.cfg.MaxPayload, Logger: n.cfg.Logger}, n.loop)

	n.health = health.NewServer()
	n.setHealth(false)
	n.grpc = grpc.NewServer(append(grpcx.ServerOptions(0, 0), n.api.Interceptors()...)...)
	if n.cfg.has(RoleAPI) {
		headracev1.RegisterTaskServiceServer(n.grpc, &api.Tasks{Services: n.api})
	}
	headracev1.RegisterPeerServiceServer(n.grpc, n.peers)
	headracev1.RegisterPlacementServiceServer(n.grpc, &api.Placements{Services: n.api})
	headracev1.RegisterPauseServiceServer(n.grpc, &api.Pauses{Services: n.api})
	headracev1.RegisterLimitServiceServer(n.grpc, &api.Limits{Services: n.api})
	headracev1.RegisterTenantServiceServer(n.grpc, &api.Tenants{Services: n.api})
	headracev1.RegisterPoolServiceServer(n.grpc, &api.Pools{Services: n.api})
	externalscaler.RegisterExternalScalerServer(n.grpc, &api.Scaler{Services: n.api})
	headracev1.RegisterClusterServiceServer(n.grpc, &api.ClusterInfo{Services: n.api})
	headracev1.RegisterExecutorServiceServer(n.grpc, executorService{push: n.push, api: &api.Executors{Services: n.api}})
	healthpb.RegisterHealthServer(n.grpc, n.health)
	reflection.Register(n.grpc)
	n.http = n.pages()
	return nil
}

// setBounds takes the limits that a tenant's user has set.
func (n *Node) setBounds(tenant string, bs []task.Bound) {
	n.loop.SetBounds(tenant, bs)
	if n.shares != nil {
		n.shares.SetBounds(tenant, bs)
	}
}

// rules returns once the engine has all rules that a new owner must know before its first push.
func (n *Node) rules(ctx context.Context) error {
	if err := n.pauses.Current(ctx); err != nil {
		return err
	}
	return n.bounds.Known(ctx)
}

// tellRoster is loop.Config.Roster.
func (n *Node) tellRoster() func(run uint64, changes []core.RosterChange) {
	if n.roster == nil {
		return nil
	}
	return n.roster.Change
}

// executorService joins the sessions with the rest of the executors' calls.
type executorService struct {
	headracev1.UnimplementedExecutorServiceServer
	push *push.Server
	api  *api.Executors
}

func (e executorService) Session(s grpc.BidiStreamingServer[headracev1.SessionRequest, headracev1.SessionResponse]) error {
	return e.push.Session(s)
}

func (e executorService) Directory(r *headracev1.DirectoryRequest, s grpc.ServerStreamingServer[headracev1.DirectoryResponse]) error {
	return e.api.Directory(r, s)
}

func (e executorService) FetchPayload(ctx context.Context, r *headracev1.FetchPayloadRequest) (*headracev1.FetchPayloadResponse, error) {
	return e.api.FetchPayload(ctx, r)
}

// setServing is told by the owners whether everything assigned is served.
func (n *Node) setServing(serves bool) {
	n.setHealth(serves)
	if serves {
		n.readyOnce.Do(func() {
			n.log.Info("ready", zap.Stringer("grpc", n.grpcAddr), telemetry.Took(time.Since(n.startedAt)))
			close(n.ready)
		})
	}
}

// services are what health is asked for by name; "" is the whole node.
var services = []string{"", "headrace.v1.TaskService", "headrace.v1.ExecutorService", "headrace.v1.ClusterService", "headrace.v1.PlacementService", "headrace.v1.PauseService", "headrace.v1.LimitService", "headrace.v1.TenantService", "headrace.v1.PoolService", "externalscaler.ExternalScaler"}

func (n *Node) setHealth(serves bool) {
	status := healthpb.HealthCheckResponse_NOT_SERVING
	if serves {
		status = healthpb.HealthCheckResponse_SERVING
	}
	n.serving.Store(serves)
	for _, s := range services {
		n.health.SetServingStatus(s, status)
	}
}

// onTask is what the core tells of tasks.
func (n *Node) onTask() func(*store.Task) {
	if n.cfg.OnTask == nil && failpoint.Enabled {
		return func(t *store.Task) {
			if t.Labels[failpoint.Label] != "" {
				failpoint.Hit(t.Labels[failpoint.Label])
			}
		}
	}
	return n.cfg.OnTask
}

// random is 64 random bits for the core.
func random() uint64 {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint64(b[:])
}
