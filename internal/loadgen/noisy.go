package loadgen

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/executor"
	"github.com/headrace/headrace/fn"
	"github.com/headrace/headrace/internal/clusterclient"
	"github.com/headrace/headrace/internal/histogram"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
)

// Noisy is the scenario of one tenant that floods executors which others share: so many times as many tasks as one of
// them, after a burst. How long the others wait is measured alone and beside it. One of them is moved to the very
// partitions of the flood.
type Noisy struct {
	Target
	Victims       int           // beside the one that is moved
	Every         time.Duration // each submits one task
	Flood         int           // times what one of them submits
	Burst         time.Duration // the flood begins with what it submits in that time
	Service       time.Duration // of a try, on average: half of it to half more
	Alone, Beside time.Duration
	Warm          time.Duration // before the first figures

	calm   atomic.Bool // the flood's tries end at once
	floods atomic.Int64
}

// FullNoisy is the scenario as it is measured, ShortNoisy a glance at it.
func FullNoisy() Noisy {
	return Noisy{Victims: 7, Every: 100 * time.Millisecond, Flood: 100, Burst: 10 * time.Second, Service: 20 * time.Millisecond,
		Alone: 30 * time.Second, Beside: 30 * time.Second, Warm: 2 * time.Second}
}

// ShortNoisy is FullNoisy in some seconds, at half the rates.
func ShortNoisy() Noisy {
	return Noisy{Victims: 5, Every: 200 * time.Millisecond, Flood: 100, Burst: 4 * time.Second, Service: 20 * time.Millisecond,
		Alone: 4 * time.Second, Beside: 6 * time.Second, Warm: time.Second}
}

// slots are as many as the flood alone would fill.
func (b *Noisy) slots() int {
	return max(int(float64(b.Flood)*b.Service.Seconds()/b.Every.Seconds()), 2)
}

// NoisyVictim is what one of the others saw.
type NoisyVictim struct {
	Tenant     string  `json:"tenant"`
	Partitions int     `json:"partitions"`
	Shared     int     `json:"shared"` // of them, with the flood
	Tasks      int64   `json:"tasks"`  // beside the flood
	AloneP50   float64 `json:"alone_p50_ms"`
	AloneP99   float64 `json:"alone_p99_ms"`
	BesideP50  float64 `json:"beside_p50_ms"`
	BesideP99  float64 `json:"beside_p99_ms"`
}

// NoisyReport is the outcome of the scenario.
type NoisyReport struct {
	Scenario string        `json:"scenario"`
	Slots    int           `json:"slots"`
	Service  float64       `json:"service_ms"`
	Flooded  int           `json:"flooded"` // tasks of the flood
	Victims  []NoisyVictim `json:"victims"`
	Verdict
}

// victim is one of the others while it runs.
type victim struct {
	NoisyVictim
	c             *client.Client
	alone, beside histogram.Histogram
	waits         atomic.Pointer[histogram.Histogram] // where they are recorded; nil: nowhere
	called        atomic.Int64
	submitted     int64
	err           error
}

// work takes a try's time. If all took the same, they would go in step, and all slots were free at once.
func (b *Noisy) work(ctx context.Context) error { return pass(ctx, b.Service/2+rand.N(b.Service)) }

func (v *victim) handle(work func(context.Context) error) executor.Handler {
	return func(ctx context.Context, t *executor.Task) (executor.Result, error) {
		if h := v.waits.Load(); h != nil {
			h.Record(time.Since(time.Unix(0, int64(binary.BigEndian.Uint64(t.Payload)))))
		}
		v.called.Add(1)
		return executor.Result{}, work(ctx)
	}
}

// submit submits at a steady rate until ctx ends.
func (v *victim) submit(ctx context.Context, function string, first, every time.Duration) {
	if pass(ctx, first) != nil {
		return
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for v.err == nil {
		payload := binary.BigEndian.AppendUint64(nil, uint64(time.Now().UnixNano()))
		if _, v.err = v.c.Submit(context.WithoutCancel(ctx), client.Task{Function: function, Payload: payload}); v.err == nil {
			v.submitted++
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Run runs the scenario. Its error says that it could not be run.
func (b *Noisy) Run(ctx context.Context) (_ *NoisyReport, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stamp := fmt.Sprintf("%s-noisy-%x", b.Tenant, uint32(time.Now().UnixMilli()))
	root, err := client.Dial(client.Config{Addr: b.Addr, APIKey: b.APIKey, Tenant: stamp + "-flood"})
	if err != nil {
		return nil, err
	}
	defer root.Close()
	victims := make([]*victim, b.Victims+1)
	for i := range victims {
		name := fmt.Sprint(stamp, "-", i)
		if i == b.Victims {
			name = stamp + "-covered"
		}
		c, err := root.ForTenant(name)
		if err != nil {
			return nil, err
		}
		defer c.Close()
		victims[i] = &victim{NoisyVictim: NoisyVictim{Tenant: name}, c: c}
	}
	if err := b.place(ctx, stamp+"-flood", victims); err != nil {
		return nil, err
	}
	for i := range 2 {
		slots := b.slots() / 2
		stop, err := startExecutor(ctx, executor.Config{Addr: b.Addr, APIKey: b.APIKey, Slots: max(slots, 1), Name: fmt.Sprint("noisy-", i)}, func(x *executor.Executor) {
			x.HandleRawTenant(stamp+"-flood", "f", fn.Options{}, b.flood)
			for _, v := range victims {
				x.HandleRawTenant(v.Tenant, "f", fn.Options{}, v.handle(b.work))
			}
		})
		if err != nil {
			return nil, err
		}
		defer stop()
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	submitting, end := context.WithCancel(ctx)
	defer end()
	for i, v := range victims {
		wg.Go(func() { v.submit(submitting, "f", b.Every*time.Duration(i)/time.Duration(len(victims)), b.Every) })
	}
	measure := func(name string, d time.Duration, into func(*victim) *histogram.Histogram) error {
		b.phase(name)
		for _, v := range victims {
			v.waits.Store(into(v))
		}
		return pass(ctx, d)
	}
	nowhere := func(*victim) *histogram.Histogram { return nil }
	if err := measure("warming up", b.Warm, nowhere); err != nil {
		return nil, err
	}
	if err := measure("alone", b.Alone, func(v *victim) *histogram.Histogram { return &v.alone }); err != nil {
		return nil, err
	}
	flooded, floodErr := 0, error(nil)
	wg.Go(func() { flooded, floodErr = b.submitFlood(submitting, root) })
	if err := measure("beside the flood", b.Beside, func(v *victim) *histogram.Histogram { return &v.beside }); err != nil {
		return nil, err
	}
	_ = measure("the rest", 0, nowhere)
	end()
	wg.Wait()
	if floodErr != nil {
		return nil, fmt.Errorf("submit the flood: %w", floodErr)
	}
	waiting := flooded - int(b.floods.Load())
	b.calm.Store(true)
	rep := &NoisyReport{Scenario: "noisy", Slots: b.slots(), Service: ms(b.Service), Flooded: flooded}
	lost, err := b.drain(ctx, flooded, victims)
	if err != nil {
		return nil, err
	}
	b.judge(rep, victims, lost, waiting)
	return rep, nil
}

// place moves the last victim to the flood's partitions, and notes how many partitions each shares with it.
func (b *Noisy) place(ctx context.Context, flood string, victims []*victim) error {
	cl, err := clusterclient.Dial(b.Addr, b.APIKey)
	if err != nil {
		return err
	}
	defer cl.Close()
	of := func(tenant string) ([]uint32, error) {
		res, err := cl.ExplainPlacement(ctx, tenant)
		if err != nil {
			return nil, err
		}
		return res.Placement.Partitions, nil
	}
	to, err := of(flood)
	if err != nil {
		return err
	}
	covered := victims[len(victims)-1].Tenant
	if _, err := cl.MovePlacement(ctx, &headracev1.MovePlacementRequest{Tenant: covered, Partitions: to, Note: "bench noisy"}); err != nil {
		return err
	}
	for _, v := range victims {
		partitions, err := of(v.Tenant)
		if err != nil {
			return err
		}
		v.Partitions = len(partitions)
		for _, p := range partitions {
			if slices.Contains(to, p) {
				v.Shared++
			}
		}
	}
	return nil
}

// flood is the handler of the flood's tasks.
func (b *Noisy) flood(ctx context.Context, _ *executor.Task) (executor.Result, error) {
	b.floods.Add(1)
	if b.calm.Load() {
		return executor.Result{}, nil
	}
	return executor.Result{}, b.work(ctx)
}

// submitFlood submits the burst, then at the flood's rate. It returns how many tasks it has submitted.
func (b *Noisy) submitFlood(ctx context.Context, cl *client.Client) (n int, err error) {
	rate := float64(b.Flood) / b.Every.Seconds()
	began := time.Now()
	for ctx.Err() == nil {
		due := int(rate*(b.Burst+time.Since(began)).Seconds()) - n
		if due < 1 {
			_ = pass(ctx, 10*time.Millisecond)
			continue
		}
		tasks := make([]client.Task, min(due, 500))
		for i := range tasks {
			tasks[i] = client.Task{Function: "f"}
		}
		accepted, err := submitAll(ctx, cl, tasks)
		if n += accepted; err != nil {
			return n, err
		}
	}
	return n, nil
}

// drain waits until everything was called that was submitted, and returns how much was not.
func (b *Noisy) drain(ctx context.Context, flooded int, victims []*victim) (lost int64, err error) {
	for end := time.Now().Add(time.Minute); ; {
		lost = int64(flooded) - b.floods.Load()
		for _, v := range victims {
			if v.err != nil {
				return 0, fmt.Errorf("submit for %s: %w", v.Tenant, v.err)
			}
			lost += v.submitted - v.called.Load()
		}
		if lost <= 0 || time.Now().After(end) {
			return lost, nil
		}
		if err := pass(ctx, 20*time.Millisecond); err != nil {
			return lost, err
		}
	}
}

// judge says what the scenario shows.
func (b *Noisy) judge(rep *NoisyReport, victims []*victim, lost int64, waiting int) {
	var alone, beside [3]histogram.Histogram // by how much they share: nothing, some, all
	groups := [3]string{"that share no partition", "that share some", "that the flood's shard covers"}
	for _, v := range victims {
		g := 1
		switch v.Shared {
		case 0:
			g = 0
		case v.Partitions:
			g = 2
		}
		alone[g].Add(&v.alone)
		beside[g].Add(&v.beside)
		p := func(h *histogram.Histogram, q float64) float64 { return ms(h.Quantile(q)) }
		v.Tasks = v.beside.Count()
		v.AloneP50, v.AloneP99, v.BesideP50, v.BesideP99 = p(&v.alone, 0.5), p(&v.alone, 0.99), p(&v.beside, 0.5), p(&v.beside, 0.99)
		rep.Victims = append(rep.Victims, v.NoisyVictim)
	}
	for g, name := range groups {
		if alone[g].Count() > 0 {
			rep.Checks.most("p99 wait of those "+name+", ms", ms(beside[g].Quantile(0.99)), 1.2*ms(alone[g].Quantile(0.99))+ms(b.Service))
		}
	}
	rep.Checks.least("tasks of the flood that still waited at its end", float64(waiting), 1)
	rep.Checks.most("tasks that were not run", float64(lost), 0)
}
