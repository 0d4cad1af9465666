package pools

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/flowcontrol/elastic"
	"github.com/headrace/headrace/internal/telemetry"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
)

// Config says where it looks. Required, but for the logger.
type Config struct {
	Now    func() time.Time // a clock that counts suspends
	NodeID string
	// Local returns what functions and executors the node has (core.Core.Loads).
	Local func(ctx context.Context) ([]core.FunctionLoad, []core.PoolLoad, error)
	// Peers returns what each other node that owns something told last.
	Peers  func() []Report
	Logger *zap.Logger // nil: silent
}

// Report is what a node told. Nobody changes it.
type Report struct {
	Node  string
	At    time.Time // when it came here; zero: it told nothing yet
	Stats *headracev1.PeerPoolStats
}

const (
	every    = time.Second
	localMax = 2 * time.Second // for the loop's answer
	// Life is how long what a node told counts. It is also how long a node that has told nothing is not missed.
	Life         = 30 * time.Second
	scaleIn      = 5 * time.Minute
	meterLife    = time.Hour // of a function that has nothing
	maxFunctions = 1000
	maxExecutors = 2000
	maxNames     = 50_000 // of functions, of all pools together: 7 MiB, where a message may have 24
)

// Pools is one node's picture of all pools. Make it with New, start it with Run.
type Pools struct {
	cfg  Config
	log  *zap.Logger
	own  atomic.Pointer[headracev1.PeerPoolStats]
	view atomic.Pointer[View]

	mu      sync.Mutex
	changed chan struct{} // guarded by mu: closed with the next View

	// Step's goroutine only:
	meters map[core.FunctionName]*meter
	holds  map[string]*hold
	since  map[string]time.Time // when a node was first seen to have told nothing that counts
}

type meter struct {
	elastic.Meter
	usedAt time.Time
}

// hold is what is remembered of a pool.
type hold struct {
	elastic.Hold
	slots  float64 // of an executor, when there was one last; 0: there was none
	seenAt time.Time
}

// New returns one that knows nothing yet.
func New(cfg Config) *Pools {
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	p := &Pools{cfg: cfg, log: cfg.Logger.Named("pools"), changed: make(chan struct{}),
		meters: map[core.FunctionName]*meter{}, holds: map[string]*hold{}, since: map[string]time.Time{}}
	p.view.Store(&View{})
	return p
}

// Run steps once a second until ctx ends.
func (p *Pools) Run(ctx context.Context) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		call, cancel := context.WithTimeout(ctx, localMax)
		fs, ps, err := p.cfg.Local(call)
		cancel()
		if err == nil {
			p.Step(fs, ps)
		} else if ctx.Err() == nil {
			p.log.Debug("the loop does not tell what it has", telemetry.Err(err))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// Stats is what this node tells its peers; nil before the first step.
func (p *Pools) Stats() *headracev1.PeerPoolStats { return p.own.Load() }

// View returns the newest picture, and what is closed when there is a newer one.
func (p *Pools) View() (*View, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.view.Load(), p.changed
}

// Step makes the picture anew. One goroutine calls it.
func (p *Pools) Step(fs []core.FunctionLoad, ps []core.PoolLoad) {
	now := p.cfg.Now()
	own := p.measure(now, fs, ps)
	reports := []Report{{Node: p.cfg.NodeID, At: now, Stats: own}}
	seen := map[string]bool{}
	var missing []string
	for _, r := range p.cfg.Peers() {
		if r.Stats != nil && now.Sub(r.At) <= Life {
			reports = append(reports, r)
			continue
		}
		seen[r.Node] = true
		if p.since[r.Node].IsZero() {
			p.since[r.Node] = now
		}
		if r.Stats != nil || now.Sub(p.since[r.Node]) > Life {
			missing = append(missing, r.Node)
		}
	}
	for node := range p.since {
		if !seen[node] {
			delete(p.since, node)
		}
	}
	slices.Sort(missing)
	v := join(reports)
	v.At, v.Missing = now, missing
	p.decide(now, v)
	p.own.Store(own)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.view.Store(v)
	close(p.changed)
	p.changed = make(chan struct{})
}

// measure makes this node's Stats.
func (p *Pools) measure(now time.Time, fs []core.FunctionLoad, ps []core.PoolLoad) *headracev1.PeerPoolStats {
	s := &headracev1.PeerPoolStats{}
	for _, f := range fs {
		m := p.meters[f.FunctionName]
		if m == nil {
			m = &meter{}
			p.meters[f.FunctionName] = m
		}
		m.Add(now, f.Arrived, f.Ended, f.Busy)
		busy := f.Waiting > 0 || f.Running > 0 || m.Arrival() > 1e-6
		if busy || m.usedAt.IsZero() {
			m.usedAt = now
		}
		if !busy {
			continue
		}
		t := &headracev1.PeerFunctionStats{Tenant: f.Tenant, Name: f.Name, Downstream: f.Downstream, Waiting: f.Waiting, Running: f.Running,
			ArrivalRate: m.Arrival(), ServiceMicros: m.Service().Microseconds()}
		if f.Limit >= 0 {
			t.Limit = &f.Limit
		}
		s.Functions = append(s.Functions, t)
	}
	for name, m := range p.meters {
		if now.Sub(m.usedAt) > meterLife {
			delete(p.meters, name)
		}
	}
	slices.SortFunc(s.Functions, func(a, b *headracev1.PeerFunctionStats) int { // those with most first
		return cmp.Or(cmp.Compare(b.Waiting+b.Running, a.Waiting+a.Running), strings.Compare(a.Tenant, b.Tenant), strings.Compare(a.Name, b.Name))
	})
	s.Functions = s.Functions[:min(len(s.Functions), maxFunctions)]
	// Those with few functions first: nobody's thousand names crowd out another's pool.
	slices.SortStableFunc(ps, func(a, b core.PoolLoad) int { return cmp.Compare(len(a.Functions), len(b.Functions)) })
	executors, names := 0, 0
	for _, l := range ps {
		if names += min(len(l.Functions), maxFunctions); names > maxNames {
			break
		}
		q := &headracev1.PeerPool{}
		for _, f := range l.Functions[:min(len(l.Functions), maxFunctions)] {
			q.Functions = append(q.Functions, &headracev1.PeerFunctionName{Tenant: f.Tenant, Name: f.Name})
		}
		for _, x := range l.Executors {
			if executors == maxExecutors {
				break
			}
			executors++
			q.Executors = append(q.Executors, &headracev1.PeerExecutor{Id: []byte(x.ID), Name: x.Name, Slots: uint32(x.Slots),
				Running: uint32(x.Running), BusyMillis: x.Busy.Milliseconds(), Draining: x.Draining})
		}
		s.Pools = append(s.Pools, q)
	}
	return s
}

// decide says how many executors each pool should have.
func (p *Pools) decide(now time.Time, v *View) {
	for _, q := range v.Pools {
		h := p.holds[q.key]
		if h == nil {
			h = &hold{}
			p.holds[q.key] = h
			h.Begin(now, q.live, scaleIn)
		}
		h.seenAt = now
		if q.live > 0 {
			h.slots = float64(q.Slots) / float64(q.live)
		}
		q.SlotsPerExecutor = h.slots
		q.Need = elastic.Slots(elastic.Config{}, q.Loads)
		q.Desired = h.Step(now, q.Need, elastic.Config{}, h.slots, scaleIn, 0, 1_000_000)
	}
	for key, h := range p.holds {
		if now.Sub(h.seenAt) > meterLife {
			delete(p.holds, key)
		}
	}
}
