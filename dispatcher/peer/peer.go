package peer

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	grpcpeer "google.golang.org/grpc/peer"

	"go.uber.org/zap"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/dispatcher/door"
	"github.com/headrace/headrace/dispatcher/pools"
	"github.com/headrace/headrace/internal/grpcx"
	"github.com/headrace/headrace/internal/telemetry"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/shard"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

const (
	connectMax = 300 * time.Millisecond // a call's wait for a connection that is being made
	writeMax   = 30 * time.Second       // of a submit or cancel whose caller sets no deadline
	readMax    = 5 * time.Second
	pauseMin   = 50 * time.Millisecond // between two streams of statistics
	pauseMax   = time.Second
	leaveMax   = time.Second // what a peer that has left may take to answer what it was sent
)

// peer is another node.
type peer struct {
	id     shard.NodeID
	addr   string
	conn   *grpc.ClientConn
	client headracev1.PeerServiceClient
	log    *zap.Logger

	ctx    context.Context // ends when the node leaves
	cancel context.CancelFunc
	wg     sync.WaitGroup

	writes  inFlight
	watches watches
	stats   atomic.Pointer[stats]
	node    atomic.Pointer[headracev1.Node]
	report  atomic.Pointer[door.Report] // of its door; nil: none yet
	pools   atomic.Pointer[pools.Report]
	now     func() time.Time // a clock that counts suspends
	roster  rosterView
}

// stats are a peer's partitions as it told last. They never change, but for the sends.
type stats struct {
	parts []core.PartitionStat // by partition
	sent  []atomic.Int64       // tasks that we sent to each since

	at             time.Time // when they came; zero: nothing was told yet
	pressure, rate float64
}

// statsLife is how long statistics are shown as the present: eight were due in between.
const statsLife = 2 * time.Second

// fresh reports whether the peer has told something lately.
func (s *stats) fresh() bool { return !s.at.IsZero() && time.Since(s.at) <= statsLife }

func dial(n shard.Node, opts []grpc.DialOption, now func() time.Time, log *zap.Logger) (*peer, error) {
	target, resolve := grpcx.Target(n.Addr)
	conn, err := grpc.NewClient(target, slices.Concat(opts, resolve)...)
	if err != nil {
		return nil, fmt.Errorf("dial node %s at %s: %w", n.ID, n.Addr, err)
	}
	p := &peer{id: n.ID, addr: n.Addr, conn: conn, client: headracev1.NewPeerServiceClient(conn),
		log: log.With(telemetry.Text("peer", string(n.ID)), telemetry.Text("peer_addr", n.Addr))}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.watches = watches{client: p.client, ctx: p.ctx, wg: &p.wg}
	p.stats.Store(&stats{})
	if p.now = now; now == nil {
		p.now = time.Now
	}
	p.wg.Go(p.follow)
	return p, nil
}

// leave is close for a peer that has left the directory. One that did so in order has answers under way, and another run at its address
// refuses: cut off, these writes would count as unknown.
func (p *peer) leave() {
	p.cancel()
	select {
	case <-p.writes.none():
	case <-time.After(leaveMax):
	}
	p.close()
}

// close ends all calls to the peer and waits for what it started.
func (p *peer) close() {
	p.cancel()
	_ = p.conn.Close()
	p.wg.Wait()
}

// follow reads the peer's statistics until it leaves. It also keeps the connection up.
func (p *peer) follow() {
	pause := pauseMin
	for p.ctx.Err() == nil {
		stream, err := p.client.StreamStats(p.ctx, &headracev1.StreamStatsRequest{}, grpc.WaitForReady(true))
		for err == nil {
			var m *headracev1.StreamStatsResponse
			if m, err = stream.Recv(); err == nil {
				p.told(m)
				pause = pauseMin
			}
		}
		if p.ctx.Err() != nil {
			return
		}
		p.log.Debug("stream of statistics ended", telemetry.Err(err))
		select {
		case <-time.After(pause):
		case <-p.ctx.Done():
		}
		pause = min(2*pause, pauseMax)
	}
}

func (p *peer) told(m *headracev1.StreamStatsResponse) {
	s := &stats{parts: make([]core.PartitionStat, len(m.Partitions)), sent: make([]atomic.Int64, len(m.Partitions)),
		at: time.Now(), pressure: m.Pressure, rate: m.StartRate}
	for i, q := range m.Partitions {
		s.parts[i] = core.PartitionStat{Partition: q.Partition, Epoch: q.Epoch, Open: q.Open, Backlog: q.Backlog,
			Scheduled: q.Scheduled, Running: q.Running, Bytes: q.Bytes}
	}
	p.stats.Store(s)
	p.report.Store(readReport(m, p.now()))
	if m.Node != nil {
		p.node.Store(m.Node)
	}
	if m.Pools != nil {
		p.pools.Store(&pools.Report{Node: string(p.id), At: p.now(), Stats: m.Pools})
	}
}

// ready waits a moment for a connection. Its error says that nothing was sent: it comes while the caller still has the time to
// hear that (holdMargin), also of a submit whose other candidate is asked next.
func (p *peer) ready(ctx context.Context) error {
	if p.conn.GetState() == connectivity.Ready {
		return nil
	}
	left := connectMax
	if deadline, ok := ctx.Deadline(); ok {
		left = min(left, time.Until(deadline)-holdMargin)
	}
	ctx, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	for {
		s := p.conn.GetState()
		switch s {
		case connectivity.Ready:
			return nil
		case connectivity.Idle:
			p.conn.Connect()
		}
		if s == connectivity.Shutdown || !p.conn.WaitForStateChange(ctx, s) {
			return fmt.Errorf("node %s at %s can't be reached: %w", p.id, p.addr, core.ErrNotOwner)
		}
	}
}

// write makes a call that changes something. Its error is the context's, core.ErrNotOwner if the call certainly
// did not reach the peer, else core.ErrUnknownOutcome.
func write[Q, S any](ctx context.Context, p *peer, call func(context.Context, *Q, ...grpc.CallOption) (*S, error), req *Q) (*S, error) {
	if err := p.ready(ctx); err != nil {
		return nil, err
	}
	p.writes.begin()
	defer p.writes.end()
	call1, cancel := context.WithTimeout(ctx, writeMax)
	defer cancel()
	var to grpcpeer.Peer // set once the call has a stream of a connection: before that, nothing was sent
	res, err := call(call1, req, grpc.Peer(&to))
	switch {
	case err == nil:
		return res, nil
	case to.Addr == nil && ctx.Err() == nil:
		return nil, fmt.Errorf("call node %s: %w (%w)", p.id, core.ErrNotOwner, err)
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	}
	return nil, fmt.Errorf("call node %s: %w (%w)", p.id, core.ErrUnknownOutcome, err)
}

func (p *peer) submit(ctx context.Context, s *core.Submit) (core.SubmitAnswer, error) {
	req := &headracev1.ForwardSubmitRequest{Tenant: s.Tenant, Partition: s.Partition, RequestId: []byte(s.RequestID),
		Retry: s.Retry, Candidates: s.Candidates, Tasks: make([][]byte, len(s.Tasks))}
	for i, t := range s.Tasks {
		req.Tasks[i] = store.Encode(nil, t)
	}
	res, err := write(ctx, p, p.client.ForwardSubmit, req)
	if err != nil {
		return refused(ctx, err)
	}
	items, err := readItems(res.Items)
	if err == nil {
		err = readError(res.Error)
	}
	return core.SubmitAnswer{Err: err, Items: items}, nil
}

// refused tells an answer from a caller that gave up.
func refused(ctx context.Context, err error) (core.SubmitAnswer, error) {
	if ctx.Err() != nil {
		return core.SubmitAnswer{}, err
	}
	return core.SubmitAnswer{Err: err}, nil
}

func (p *peer) look(ctx context.Context, l core.Look) (core.SubmitAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, readMax)
	defer cancel()
	res, err := write(ctx, p, p.client.LookSubmit, &headracev1.LookSubmitRequest{Partition: l.Partition, Tenant: l.Tenant, RequestId: []byte(l.RequestID)})
	if err != nil {
		return core.SubmitAnswer{}, err
	}
	items, err := readItems(res.Items)
	if err == nil {
		err = readError(res.Error)
	}
	return core.SubmitAnswer{Err: err, Items: items}, nil
}

func (p *peer) cancelTask(ctx context.Context, c core.Cancel) (core.CancelAnswer, error) {
	res, err := write(ctx, p, p.client.ForwardCancel, &headracev1.ForwardCancelRequest{Tenant: c.Tenant, TaskId: c.ID[:], Reason: c.Reason})
	if err != nil {
		if ctx.Err() != nil {
			return core.CancelAnswer{}, err
		}
		return core.CancelAnswer{Err: err}, nil
	}
	a := core.CancelAnswer{Err: readError(res.Error), Outcome: res.Outcome}
	if len(res.Task) > 0 {
		if a.Task, err = store.Decode(res.Task); err != nil {
			return core.CancelAnswer{}, fmt.Errorf("the peer's answer: %w", err)
		}
	}
	return a, nil
}

// read asks the peer for what changes nothing, and waits up to readMax for its answer. Nil is a node that has left.
func read[Q, S any](ctx context.Context, p *peer, call func(headracev1.PeerServiceClient, context.Context, *Q, ...grpc.CallOption) (*S, error), req *Q) (*S, error) {
	if p == nil {
		return nil, fmt.Errorf("the node has left: %w", core.ErrNotOwner)
	}
	if err := p.ready(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, readMax)
	defer cancel()
	res, err := call(p.client, ctx, req)
	if err != nil {
		return nil, fmt.Errorf("ask node %s: %w", p.id, err)
	}
	return res, nil
}

// views returns what the peer's memory has of tasks, in their order.
func (p *peer) views(ctx context.Context, ids []task.ID) ([]core.Live, error) {
	if err := p.ready(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, readMax)
	defer cancel()
	out := make([]core.Live, 0, len(ids))
	for len(out) < len(ids) {
		rest := ids[len(out):]
		req := &headracev1.ReadViewsRequest{}
		for i := range min(len(rest), maxViews) {
			req.TaskIds = append(req.TaskIds, rest[i][:])
		}
		res, err := p.client.ReadViews(ctx, req)
		if err != nil {
			return nil, fmt.Errorf("ask node %s: %w", p.id, err)
		}
		if len(res.Tasks) == 0 || len(res.Tasks) > len(req.TaskIds) {
			return nil, fmt.Errorf("ask node %s: %d answers for %d tasks", p.id, len(res.Tasks), len(req.TaskIds))
		}
		for _, m := range res.Tasks {
			l, err := readLive(m)
			if err != nil {
				return nil, err
			}
			out = append(out, l)
		}
	}
	return out, nil
}

func (p *peer) running(ctx context.Context, tenant, function string, most int) ([]core.Live, error) {
	if err := p.ready(ctx); err != nil {
		return nil, err
	}
	call, cancel := context.WithTimeout(ctx, readMax)
	defer cancel()
	res, err := p.client.ReadRunning(call, &headracev1.ReadRunningRequest{Tenant: tenant, Function: function, Most: uint32(most)})
	if err != nil {
		return nil, fmt.Errorf("ask node %s what runs: %w (%w)", p.id, core.ErrNotOwner, err)
	}
	ids := make([]task.ID, len(res.TaskIds))
	for i, b := range res.TaskIds {
		if ids[i], err = task.IDFromBytes(b); err != nil {
			return nil, fmt.Errorf("the peer's answer: %w", err)
		}
	}
	return p.views(ctx, ids)
}
