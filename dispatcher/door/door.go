package door

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/flowcontrol/gcra"
	"github.com/headrace/headrace/flowcontrol/heavy"
	"github.com/headrace/headrace/flowcontrol/pressure"
	"github.com/headrace/headrace/internal/telemetry"
	"github.com/headrace/headrace/task"
)

// Config says where a door looks. Required, but for the logger.
type Config struct {
	Now func() time.Time // a clock that counts suspends
	// Local returns what tenants have on this node, by name, and its shared pressure: 1 is where overload begins.
	Local func(ctx context.Context) ([]core.TenantUsage, float64, error)
	// Peers returns what the other nodes told last. Nobody changes a report.
	Peers  func() []*Report
	Logger *zap.Logger // nil: silent
}

// The times of a door.
const (
	every       = 250 * time.Millisecond
	reportLife  = 10 * time.Second // older ones count no more
	localMax    = 2 * time.Second  // for the loop's answer
	offerTime   = 500 * time.Millisecond
	acceptTime  = 2 * time.Second
	finishTime  = 10 * time.Second
	finishHold  = time.Minute
	retryMin    = time.Second // of caps that end nobody knows when
	retryMax    = 5 * time.Minute
	retryUnsure = 30 * time.Second
	costBytes   = 16 << 10 // so many bytes of payload cost as much as a task
)

// Door is the door of one node. Make it with New, start it with Run.
type Door struct {
	cfg   Config
	log   *zap.Logger
	gates sync.Map // of *gate, by tenant
	// View is what the last step saw; replaced, never changed.
	view atomic.Pointer[view]

	mu     sync.Mutex // guards following
	grants map[string]task.Tenant
	light  *heavy.Counter // of tenants without a gate
	began  time.Time      // its interval

	// Step's goroutine only:
	control pressure.Controller
	finish  map[string]*pressure.Rate
	limited map[string]bool // logged
}

// New returns a door that limits nobody yet.
func New(cfg Config) *Door {
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	d := &Door{cfg: cfg, log: cfg.Logger.Named("door"), grants: map[string]task.Tenant{}, light: heavy.New(100, rand.Float64),
		finish: map[string]*pressure.Rate{}, limited: map[string]bool{}}
	d.view.Store(&view{})
	return d
}

// gate is one tenant's.
type gate struct {
	tenant                  string
	offered, accepted, cost atomic.Uint64 // in all
	pending, pendingBytes   atomic.Int64  // let in and not answered yet
	rows, bytes             atomic.Int64  // room that is left
	rules                   atomic.Pointer[rules]

	mu   sync.Mutex // guards following
	hard gcra.Limiter
	soft gcra.Limiter

	// Step's goroutine only:
	offerRate, acceptRate, costRate pressure.Rate
	seenAt                          time.Time // when it had something last
}

// rules are what a gate enforces. They never change.
type rules struct {
	grant  task.Tenant // with defaults
	rate   gcra.Rate   // by the grant; zero: none
	limit  *pressure.Limit
	share  gcra.Rate // of the limit, at this door
	at     time.Time // of the decision
	finish float64   // tasks that end a second; 0: unknown
}

// Grant makes a grant the one of a tenant, at once. The zero grant means the defaults.
func (d *Door) Grant(tenant string, g task.Tenant) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if g == (task.Tenant{}) {
		delete(d.grants, tenant)
	} else {
		d.grants[tenant] = g
	}
	if v, ok := d.gates.Load(tenant); ok || g != (task.Tenant{}) {
		gt, _ := v.(*gate)
		if gt == nil {
			gt = d.gateLocked(tenant)
		}
		old := gt.rules.Load()
		r := *old
		r.setGrant(g)
		gt.rules.Store(&r)
		gt.rows.Add(r.grant.MaxRows - old.grant.MaxRows)
		gt.bytes.Add(r.grant.MaxBytes - old.grant.MaxBytes)
	}
}

func (r *rules) setGrant(g task.Tenant) {
	r.grant, r.rate = g.WithDefaults(), gcra.Rate{}
	if g.Rate != 0 {
		r.rate = gcra.Rate{PerSecond: r.grant.Rate, Burst: r.grant.Burst}
	}
}

// grantOf returns a tenant's grant, without defaults.
func (d *Door) grantOf(tenant string) task.Tenant {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.grants[tenant]
}

// Standing is a tenant's weight and class.
func (d *Door) Standing(tenant string) (weight int, class task.TenantClass) {
	g := d.grantOf(tenant).WithDefaults()
	return g.Weight, g.Class
}

func (d *Door) gate(tenant string) *gate {
	if v, ok := d.gates.Load(tenant); ok {
		return v.(*gate)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.gateLocked(tenant)
}

// gateLocked makes a tenant's gate, unless somebody did. The caller holds mu.
func (d *Door) gateLocked(tenant string) *gate {
	if v, ok := d.gates.Load(tenant); ok {
		return v.(*gate)
	}
	g := &gate{tenant: tenant, seenAt: d.cfg.Now()}
	r := &rules{}
	r.setGrant(d.grants[tenant])
	g.rules.Store(r)
	g.rows.Store(r.grant.MaxRows)
	g.bytes.Store(r.grant.MaxBytes)
	d.gates.Store(tenant, g)
	return g
}

// Pass is what was let in; Done says that it is answered.
type Pass struct {
	Items int // the first so many of those that asked
	gate  *gate
	bytes int64
}

// Done must be called once, when the items are stored or certainly not.
func (p Pass) Done() {
	if p.gate != nil {
		p.gate.pending.Add(-int64(p.Items))
		p.gate.pendingBytes.Add(-p.bytes)
	}
}

// Admit asks for n tasks of a tenant, the payload of each as size says. It lets the first ones in, as many as may come now, or
// with whole all or none; the refusal, if there is one, is for the rest. It does not wait.
func (d *Door) Admit(tenant string, n int, size func(i int) int, whole bool) (Pass, *Refusal) {
	bytes := first(n, size)
	cost := uint64(n) + uint64(bytes)/costBytes
	v, known := d.gates.Load(tenant)
	if !known {
		d.mu.Lock()
		d.light.Add(tenant, float64(cost))
		d.mu.Unlock()
		return Pass{Items: n}, nil
	}
	g := v.(*gate)
	g.offered.Add(uint64(n))
	g.cost.Add(cost)
	r := g.rules.Load()
	m, refusal := n, (*Refusal)(nil)
	if r.rate.PerSecond > 0 || r.limit != nil {
		m, refusal = g.take(d.cfg.Now(), r, n, whole)
	}
	if over := -g.rows.Add(-int64(m)); over > 0 && m > 0 {
		keep := cut(m, over, whole)
		g.rows.Add(int64(m - keep))
		m, refusal = keep, g.refuse(r, ReasonRows, fmt.Sprintf("%d tasks", r.grant.MaxRows), over)
	}
	bytes = first(m, size)
	if over := -g.bytes.Add(-bytes); over > 0 && bytes > 0 {
		keep := 0
		for sum := int64(0); !whole && keep < m; keep++ {
			if sum += int64(size(keep)); sum > bytes-over {
				break
			}
		}
		refusal = g.refuse(r, ReasonBytes, fmt.Sprintf("%d bytes", r.grant.MaxBytes), int64(m-keep))
		g.rows.Add(int64(m - keep))
		kept := first(keep, size)
		g.bytes.Add(bytes - kept)
		m, bytes = keep, kept
	}
	if m == 0 {
		return Pass{}, refusal
	}
	g.accepted.Add(uint64(m))
	g.pending.Add(int64(m))
	g.pendingBytes.Add(bytes)
	return Pass{Items: m, gate: g, bytes: bytes}, refusal
}

// first is the size of the first n items.
func first(n int, size func(i int) int) (sum int64) {
	for i := range n {
		sum += int64(size(i))
	}
	return sum
}

// cut is how many of n are left when over of them are too many.
func cut(n int, over int64, whole bool) int {
	if whole {
		return 0
	}
	return max(0, n-int(min(over, int64(n))))
}

// take asks the limiters for n, and returns how many they let in.
func (g *gate) take(now time.Time, r *rules, n int, whole bool) (int, *Refusal) {
	g.mu.Lock()
	defer g.mu.Unlock()
	soft := r.limit != nil && now.Sub(r.at) <= reportLife
	m := n
	fit := func(l *gcra.Limiter, rate gcra.Rate) {
		if whole {
			if l.Wait(now, rate, float64(n)) > 0 {
				m = 0
			}
			return
		}
		for m > 0 && (float64(m) > rate.Burst || l.Wait(now, rate, float64(m)) > 0) {
			m = min(m-1, int(math.Ceil(l.Fits(now, rate))))
		}
	}
	if r.rate.PerSecond > 0 {
		fit(&g.hard, r.rate)
	}
	if soft {
		fit(&g.soft, r.share)
	}
	if m > 0 {
		if r.rate.PerSecond > 0 {
			g.hard.Take(now, r.rate, float64(m))
		}
		if soft {
			g.soft.Take(now, r.share, float64(m))
		}
	}
	if m == n {
		return n, nil
	}
	refusal := &Refusal{Tenant: g.tenant, Reason: ReasonRate, Level: pressure.Hard, Limit: perSecond(r.grant.Rate)}
	wait := func(l *gcra.Limiter, rate gcra.Rate) time.Duration {
		return l.Wait(now, rate, min(float64(n-m), max(rate.Burst, 1)))
	}
	if r.rate.PerSecond > 0 {
		refusal.RetryAfter = wait(&g.hard, r.rate)
	}
	if soft {
		if w := wait(&g.soft, r.share); w > refusal.RetryAfter {
			refusal.Reason, refusal.Level, refusal.Limit, refusal.RetryAfter = r.limit.Reason.String(), r.limit.Level, perSecond(r.limit.PerSecond), w
		}
	}
	refusal.RetryAfter = min(max(refusal.RetryAfter, 1), retryMax)
	return m, refusal
}

func perSecond(rate float64) string { return fmt.Sprintf("%.4g tasks/s", rate) }

// refuse makes the refusal of what is too many until tasks end.
func (g *gate) refuse(r *rules, reason, limit string, over int64) *Refusal {
	wait := retryUnsure
	if r.finish > 0 {
		wait = time.Duration(min(float64(over)/r.finish, retryMax.Seconds()) * float64(time.Second))
	}
	wait = time.Duration(float64(min(max(wait, retryMin), retryMax)) * (1 + rand.Float64()/5)) // not all at once
	return &Refusal{Tenant: g.tenant, Reason: reason, Level: pressure.Hard, Limit: limit, RetryAfter: min(wait, retryMax)}
}

// The reasons of refusals, beside those of flowcontrol/pressure.
const (
	ReasonRate  = "tenant_rate"
	ReasonRows  = "tenant_rows"
	ReasonBytes = "tenant_bytes"
)

// Refusal says that a tenant's tasks are not taken now: nothing of them was stored.
type Refusal struct {
	Tenant     string
	Reason     string
	Level      pressure.Level
	Limit      string        // in words
	RetryAfter time.Duration // above 0. If nobody else comes, as many as the limit lets in at once are let in then
}

func (r *Refusal) Error() string {
	why := map[string]string{
		ReasonRate: "submits are above the tenant's rate", ReasonRows: "the tenant has as many unfinished tasks as it may",
		ReasonBytes: "the tenant's unfinished tasks hold as many bytes as they may",
		"overload":  "the platform has too much to do, and this tenant asks for more than its share", "tenant_drain": "the tenant's tasks would take longer to finish than its drain_max",
	}[r.Reason]
	return fmt.Sprintf("%s (%s); nothing was stored", why, r.Limit)
}

// Run steps four times a second until ctx ends.
func (d *Door) Run(ctx context.Context) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		call, cancel := context.WithTimeout(ctx, localMax)
		usages, shared, err := d.cfg.Local(call)
		cancel()
		if err != nil {
			if ctx.Err() == nil {
				d.log.Debug("the loop does not say what tenants have", telemetry.Err(err))
			}
			continue // decisions grow old, and hold no more
		}
		d.Step(usages, shared)
	}
}
