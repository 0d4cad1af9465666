package loadgen

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/executor"
	"github.com/headrace/headrace/fn"
	"github.com/headrace/headrace/internal/clusterclient"
	"github.com/headrace/headrace/internal/histogram"
	"github.com/headrace/headrace/task"
)

// Priority is the scenario of a tenant that floods its own executors with tasks of band high: first while much of low
// and normal waits, too, then while low comes at half the rate that it is sure of. Another tenant's work is in band
// low only, and gets half of the executors all the same.
type Priority struct {
	Target
	Slots   int
	Service time.Duration // of a try
	Warm    time.Duration
	Full    time.Duration // all bands wait
	Trickle time.Duration // low comes at half of what it is sure of

	mu      sync.Mutex // guards following
	calm    bool
	low     int64 // starts of the tenant's band low
	high    int64
	normal  int64
	other   int64
	sinceLo int64 // its starts since the last one of low
	longest int64 // most starts between two of low
	waits   *histogram.Histogram
}

// FullPriority is the scenario as it is measured, ShortPriority a glance at it.
func FullPriority() Priority {
	return Priority{Slots: 20, Service: 20 * time.Millisecond, Warm: 3 * time.Second, Full: 30 * time.Second, Trickle: 30 * time.Second}
}

// ShortPriority is FullPriority in some seconds, with half the slots.
func ShortPriority() Priority {
	return Priority{Slots: 10, Service: 20 * time.Millisecond, Warm: time.Second, Full: 6 * time.Second, Trickle: 5 * time.Second}
}

const (
	lowShare  = 0.045                  // of the tenant's starts, at least
	waitAhead = 2 * time.Second        // of work that waits in band high
	waitMore  = 300 * time.Millisecond // of a machine that is shared, and of commits
)

// PriorityPhase is what came of a part of the scenario.
type PriorityPhase struct {
	Name     string  `json:"name"`
	Seconds  float64 `json:"seconds"`
	High     int64   `json:"high"` // starts
	Normal   int64   `json:"normal"`
	Low      int64   `json:"low"`
	Other    int64   `json:"other"`     // of the other tenant
	LowShare float64 `json:"low_share"` // of the tenant's
	LowGap   int64   `json:"low_gap"`   // most of its starts between two of low
	LowP50   float64 `json:"low_wait_p50_ms"`
	LowMax   float64 `json:"low_wait_max_ms"`
}

// PriorityReport is the outcome of the scenario.
type PriorityReport struct {
	Scenario string          `json:"scenario"`
	Slots    int             `json:"slots"`
	Nodes    int             `json:"nodes"`
	Service  float64         `json:"service_ms"`
	Tasks    int             `json:"tasks"`
	Phases   []PriorityPhase `json:"phases"`
	Verdict
}

// perSecond is how many tries the executors do.
func (b *Priority) perSecond() float64 { return float64(b.Slots) / b.Service.Seconds() }

// Run runs the scenario. Its error says that it could not be run.
func (b *Priority) Run(ctx context.Context) (_ *PriorityReport, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stamp := fmt.Sprintf("%s-priority-%x", b.Tenant, uint32(time.Now().UnixMilli()))
	b.waits = &histogram.Histogram{}
	cl, err := client.Dial(client.Config{Addr: b.Addr, APIKey: b.APIKey, Tenant: stamp})
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	other, err := cl.ForTenant(stamp + "-other")
	if err != nil {
		return nil, err
	}
	defer other.Close()
	nodes, err := b.nodes(ctx)
	if err != nil {
		return nil, err
	}
	stop, err := startExecutor(ctx, executor.Config{Addr: b.Addr, APIKey: b.APIKey, Slots: b.Slots, Name: "priority"}, func(x *executor.Executor) {
		x.HandleRawTenant(stamp, "f", fn.Options{}, b.handle)
		x.HandleRawTenant(stamp+"-other", "f", fn.Options{}, b.handleOther)
	})
	if err != nil {
		return nil, err
	}
	defer stop()
	rep := &PriorityReport{Scenario: "priority", Slots: b.Slots, Nodes: nodes, Service: ms(b.Service)}
	var wg, lesser sync.WaitGroup // lesser: those of low and normal
	defer wg.Wait()
	defer lesser.Wait()
	all, endAll := context.WithCancel(ctx)
	defer endAll()
	full, endFull := context.WithCancel(all)
	defer endFull()
	total := make([]int, 5)
	errs := make([]error, 5)
	ahead := int(b.perSecond() * waitAhead.Seconds())
	least := max(ahead/10, 25) // it goes at 1 of 42 turns
	for i, f := range []struct {
		ctx     context.Context
		c       *client.Client
		band    task.Band
		started *int64
		ahead   int
	}{{all, cl, task.High, &b.high, ahead}, {all, other, task.Low, &b.other, ahead}, {full, cl, task.Normal, &b.normal, 2 * least}, {full, cl, task.Low, &b.low, least}} {
		group := &wg
		if f.ctx == full {
			group = &lesser
		}
		group.Go(func() { total[i], errs[i] = b.feed(f.ctx, f.c, f.band, f.started, f.ahead) })
	}
	b.phase("warming up")
	if err := pass(ctx, b.Warm); err != nil {
		return nil, err
	}
	phase, err := b.part(ctx, "all bands wait", b.Full)
	if err != nil {
		return nil, err
	}
	rep.Phases = append(rep.Phases, phase)
	endFull()
	lesser.Wait()
	b.phase("the low and normal ones go")
	if err := b.gone(ctx, total[2]+total[3]); err != nil {
		return nil, err
	}
	wg.Go(func() { total[4], errs[4] = b.trickle(all, cl) })
	if phase, err = b.part(ctx, "low trickles", b.Trickle); err != nil {
		return nil, err
	}
	rep.Phases = append(rep.Phases, phase)
	endAll()
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	b.phase("the rest")
	for _, n := range total {
		rep.Tasks += n
	}
	lost, err := b.drain(ctx, int64(rep.Tasks))
	if err != nil {
		return nil, err
	}
	b.judge(rep, lost)
	return rep, nil
}

func (b *Priority) nodes(ctx context.Context) (int, error) {
	cl, err := clusterclient.Dial(b.Addr, b.APIKey)
	if err != nil {
		return 0, err
	}
	defer cl.Close()
	nodes, err := cl.Nodes(ctx)
	return max(len(nodes), 1), err
}

// handle is the handler of the tenant's tasks: the payload begins with the band.
func (b *Priority) handle(ctx context.Context, t *executor.Task) (executor.Result, error) {
	b.mu.Lock()
	switch task.Band(t.Payload[0]) {
	case task.High:
		b.high++
	case task.Normal:
		b.normal++
	case task.Low:
		b.low++
		b.waits.Record(time.Since(time.Unix(0, int64(binary.BigEndian.Uint64(t.Payload[1:])))))
		b.sinceLo = -1
	}
	b.sinceLo++
	b.longest = max(b.longest, b.sinceLo)
	calm := b.calm
	b.mu.Unlock()
	if calm {
		return executor.Result{}, nil
	}
	return executor.Result{}, pass(ctx, b.Service)
}

func (b *Priority) handleOther(ctx context.Context, _ *executor.Task) (executor.Result, error) {
	b.mu.Lock()
	b.other++
	calm := b.calm
	b.mu.Unlock()
	if calm {
		return executor.Result{}, nil
	}
	return executor.Result{}, pass(ctx, b.Service)
}

// part is a phase that counts.
func (b *Priority) part(ctx context.Context, name string, d time.Duration) (PriorityPhase, error) {
	b.phase(name)
	b.mu.Lock()
	high, normal, low, other := b.high, b.normal, b.low, b.other
	b.sinceLo, b.longest, b.waits = 0, 0, &histogram.Histogram{}
	b.mu.Unlock()
	began := time.Now()
	err := pass(ctx, d)
	b.mu.Lock()
	defer b.mu.Unlock()
	p := PriorityPhase{Name: name, Seconds: round(time.Since(began).Seconds(), 1), High: b.high - high, Normal: b.normal - normal, Low: b.low - low,
		Other: b.other - other, LowGap: b.longest, LowP50: ms(b.waits.Quantile(0.5)), LowMax: ms(b.waits.Max())}
	p.LowShare = round(float64(p.Low)/float64(max(p.High+p.Normal+p.Low, 1)), 4)
	return p, err
}

func payloadOf(band task.Band) []byte {
	return binary.BigEndian.AppendUint64([]byte{byte(band)}, uint64(time.Now().UnixNano()))
}

// feed keeps tasks of a band waiting, and returns how many it has submitted.
func (b *Priority) feed(ctx context.Context, cl *client.Client, band task.Band, started *int64, ahead int) (n int, err error) {
	for ctx.Err() == nil {
		b.mu.Lock()
		more := ahead - n + int(*started)
		b.mu.Unlock()
		if more < max(ahead/4, 1) {
			_ = pass(ctx, 20*time.Millisecond)
			continue
		}
		tasks := make([]client.Task, min(more, 500))
		for i := range tasks {
			tasks[i] = client.Task{Function: "f", Payload: payloadOf(band), Options: client.Options{Band: client.Band(band.String())}}
		}
		accepted, err := submitAll(ctx, cl, tasks)
		if n += accepted; err != nil {
			return n, err
		}
	}
	return n, nil
}

// gone waits until so many low and normal tasks have started: all of them.
func (b *Priority) gone(ctx context.Context, total int) error {
	for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); {
		b.mu.Lock()
		started := b.low + b.normal
		b.mu.Unlock()
		if started >= int64(total) {
			return nil
		}
		if err := pass(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	return errors.New("low and normal tasks have waited for 5 minutes")
}

// trickle submits low tasks at half of what the band is sure of: the tenant has half of the executors, low 1 of 21 turns.
func (b *Priority) trickle(ctx context.Context, cl *client.Client) (n int, err error) {
	tick := time.NewTicker(time.Duration(float64(time.Second) / (b.perSecond() / 2 / 21 / 2)))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return n, nil
		case <-tick.C:
		}
		if _, err := cl.Submit(context.WithoutCancel(ctx), client.Task{Function: "f", Payload: payloadOf(task.Low), Options: client.Options{Band: client.BandLow}}); err != nil {
			return n, err
		}
		n++
	}
}

// drain waits until all has started, and returns how much has not.
func (b *Priority) drain(ctx context.Context, total int64) (lost int64, err error) {
	b.mu.Lock()
	b.calm = true
	b.mu.Unlock()
	for end := time.Now().Add(time.Minute); ; {
		b.mu.Lock()
		lost = total - b.high - b.normal - b.low - b.other
		b.mu.Unlock()
		if lost <= 0 || time.Now().After(end) {
			return lost, nil
		}
		if err := pass(ctx, 20*time.Millisecond); err != nil {
			return lost, err
		}
	}
}

// judge says what the scenario shows.
func (b *Priority) judge(rep *PriorityReport, lost int64) {
	full, trickle := rep.Phases[0], rep.Phases[1]
	rep.Checks.least("share of low under a flood of high", full.LowShare, lowShare)
	tenant := full.High + full.Normal + full.Low
	half := float64(tenant) / float64(max(tenant+full.Other, 1))
	rep.Checks.least("share of the one who floods, of two tenants", half, 0.45)
	rep.Checks.most("share of the one who floods, at most", half, 0.55)
	// A low task that comes alone waits for 22 turns of its tenant at most, so for 44 of the executors, on a node; what is
	// pushed to an executor starts in the order in which its goroutines wake up.
	turn := time.Duration(float64(time.Second) / b.perSecond() * float64(2*22*rep.Nodes))
	rep.Checks.most("longest wait of a low task that trickles, ms", trickle.LowMax, ms(turn+b.Service+waitMore))
	rep.Checks.most("most turns between two of low, all waiting", float64(full.LowGap), float64((21+b.Slots)*rep.Nodes))
	rep.Checks.most("tasks that were not run", float64(lost), 0)
}
