package peer

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/flowcontrol/gcra"
	"github.com/headrace/headrace/flowcontrol/shares"
	"github.com/headrace/headrace/internal/telemetry"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/shard"
	"github.com/headrace/headrace/task"
)

// shareMax bounds one question for shares: a peer that is away must not keep the others' answers from coming in time.
const shareMax = 2 * shares.Every

// Bounds is the node's own loop. The methods are described there.
type Bounds interface {
	BoundReport(ctx context.Context) (core.BoundReport, error)
	GrantBounds(gs core.BoundGrants)
}

// Shares divides the limits that users set among the nodes (flowcontrol/shares): it asks the coordinators for this node,
// and is the coordinator of some. Make it with NewShares, start it with Run; the other methods may be called
// from any goroutine.
type Shares struct {
	router *Router
	local  Bounds
	now    func() time.Time
	log    *zap.Logger
	seq    uint64 // of the newest report; of Run only

	mu    sync.Mutex // guards following
	pools *shares.Pools
	rules map[string][]task.Bound // by tenant
}

// NewShares returns a node's part in the shares. now counts suspends.
func NewShares(r *Router, local Bounds, now func() time.Time) *Shares {
	return &Shares{router: r, local: local, now: now, log: r.log, pools: shares.NewPools(string(r.cfg.NodeID)), rules: map[string][]task.Bound{}}
}

// SetBounds makes bs all the limits of a tenant. Nobody may change them.
func (s *Shares) SetBounds(tenant string, bs []task.Bound) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	for _, b := range s.rules[tenant] {
		if !slices.ContainsFunc(bs, func(o task.Bound) bool { return o.Function == b.Function }) {
			s.pools.SetLimit(now, shares.Key{Tenant: tenant, Function: b.Function}, shares.Limit{})
		}
	}
	for _, b := range bs {
		l := shares.Limit{Concurrency: b.Concurrency}
		if b.Rate > 0 {
			l.Rate = gcra.Rate{PerSecond: b.Rate, Burst: float64(b.BurstSize())}
		}
		s.pools.SetLimit(now, shares.Key{Tenant: tenant, Function: b.Function}, l)
	}
	if s.rules[tenant] = bs; len(bs) == 0 {
		delete(s.rules, tenant)
	}
}

// Run asks for shares until ctx ends.
func (s *Shares) Run(ctx context.Context) {
	tick := time.NewTicker(shares.Every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.ask(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// look takes the membership as it is now, and returns who may coordinate; none while there is nothing to divide.
func (s *Shares) look() []string {
	d := s.router.cfg.Directory()
	var members []string
	for _, n := range d.Nodes {
		if !n.Passive {
			members = append(members, string(n.ID))
		}
	}
	var partitions []uint32
	for _, p := range d.Partitions {
		partitions = append(partitions, p.ID)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pools.SetSession(s.now(), s.router.cfg.Session())
	s.pools.SetView(s.now(), members, partitions)
	if len(s.rules) == 0 {
		return nil
	}
	return members
}

// ask reports to each coordinator once, and takes what they answer.
func (s *Shares) ask(ctx context.Context) {
	members := s.look()
	if !slices.Contains(members, string(s.router.cfg.NodeID)) {
		return
	}
	askedAt := s.now()
	r, err := s.local.BoundReport(ctx)
	if err != nil {
		if ctx.Err() == nil {
			s.log.Debug("the loop does not tell what it has in use", telemetry.Err(err))
		}
		return
	}
	if len(r.Keys) == 0 {
		return
	}
	s.seq++
	reports := map[string]*shares.Report{}
	for _, k := range r.Keys {
		to := shares.Coordinator(k, members)
		rep := reports[to]
		if rep == nil {
			rep = &shares.Report{Node: string(s.router.cfg.NodeID), Seq: s.seq, Open: r.Open, Lost: r.Lost}
			reports[to] = rep
		}
		rep.Known ^= k.Sum()
		if len(r.Uses) > 0 && r.Uses[0].Key == k { // both are in order
			rep.Uses = append(rep.Uses, r.Uses[0])
			r.Uses = r.Uses[1:]
		}
	}
	var wg sync.WaitGroup
	for to, rep := range reports {
		wg.Go(func() {
			a, err := s.report(ctx, to, rep)
			if err != nil {
				s.log.Debug("a coordinator does not answer", telemetry.Text("node", to), telemetry.Err(err))
				return
			}
			s.local.GrantBounds(core.BoundGrants{AskedAt: askedAt, Grants: a.Grants, Adopted: a.Adopted,
				Mine: func(k shares.Key) bool { return shares.Coordinator(k, members) == to }})
		})
	}
	wg.Wait()
}

func (s *Shares) report(ctx context.Context, to string, rep *shares.Report) (shares.Answer, error) {
	if to == rep.Node {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.pools.Report(s.now(), *rep), nil
	}
	p := s.router.peer(shard.NodeID(to))
	if p == nil {
		return shares.Answer{}, fmt.Errorf("node %s can't be asked", to)
	}
	call, cancel := context.WithTimeout(ctx, shareMax)
	defer cancel()
	res, err := p.client.ShareBounds(call, writeShareReport(rep))
	if err != nil {
		return shares.Answer{}, fmt.Errorf("ask node %s for shares: %w", to, err)
	}
	a := shares.Answer{Adopted: readOpened(res.Adopted)}
	for _, g := range res.Shares {
		a.Grants = append(a.Grants, shares.Grant{Key: shares.Key{Tenant: g.Tenant, Function: g.Function}, Share: int(g.Share), Tokens: int(g.Tokens)})
	}
	return a, nil
}

// ShareBounds answers a report of a peer.
func (s *Service) ShareBounds(_ context.Context, req *headracev1.ShareBoundsRequest) (*headracev1.ShareBoundsResponse, error) {
	res := &headracev1.ShareBoundsResponse{}
	if s.shares == nil {
		return res, nil
	}
	s.shares.look()
	s.shares.mu.Lock()
	defer s.shares.mu.Unlock()
	a := s.shares.pools.Report(s.shares.now(), readShareReport(req))
	res.Adopted = writeOpened(a.Adopted)
	for _, g := range a.Grants {
		res.Shares = append(res.Shares, &headracev1.BoundShare{Tenant: g.Tenant, Function: g.Function, Share: uint32(g.Share), Tokens: uint32(g.Tokens)})
	}
	return res, nil
}

func writeShareReport(r *shares.Report) *headracev1.ShareBoundsRequest {
	m := &headracev1.ShareBoundsRequest{NodeId: r.Node, Sequence: r.Seq, Known: r.Known, Open: writeOpened(r.Open), Lost: writeOpened(r.Lost)}
	for _, u := range r.Uses {
		m.Uses = append(m.Uses, &headracev1.BoundUse{Tenant: u.Tenant, Function: u.Function, InUse: uint32(u.InUse), Ready: uint32(u.Ready),
			Share: uint32(u.Share), Tokens: uint32(u.Tokens)})
	}
	return m
}

func readShareReport(m *headracev1.ShareBoundsRequest) shares.Report {
	r := shares.Report{Node: m.NodeId, Seq: m.Sequence, Known: m.Known, Open: readOpened(m.Open), Lost: readOpened(m.Lost)}
	for _, u := range m.Uses {
		r.Uses = append(r.Uses, shares.Use{Key: shares.Key{Tenant: u.Tenant, Function: u.Function}, InUse: int(u.InUse), Ready: int(u.Ready),
			Share: int(u.Share), Tokens: int(u.Tokens)})
	}
	return r
}

func writeOpened(os []shares.Opened) (out []*headracev1.PartitionEpoch) {
	for _, o := range os {
		out = append(out, &headracev1.PartitionEpoch{Partition: o.Partition, Epoch: o.Epoch})
	}
	return out
}

func readOpened(ms []*headracev1.PartitionEpoch) (out []shares.Opened) {
	for _, m := range ms {
		out = append(out, shares.Opened{Partition: m.Partition, Epoch: m.Epoch})
	}
	return out
}
