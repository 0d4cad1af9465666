package loadgen

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/executor"
	"github.com/headrace/headrace/flowcontrol/pressure"
	"github.com/headrace/headrace/fn"
	"github.com/headrace/headrace/internal/clusterclient"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
)

// Pressure is the scenario of one tenant that submits far more than is done, and is held at the door: its backlog takes
// no longer than its drain_max, others are never refused, and neither is an overnight batch of somebody else.
type Pressure struct {
	Target
	Service         int // tasks a second that two executors do together
	Flood           int // tasks a second that the flood submits
	Lights          int // other tenants
	LightEvery      time.Duration
	DrainMax        time.Duration // of the flood
	Night           int           // tasks of the overnight batch
	Settle, Measure time.Duration // after the flood's backlog is as long as it may be; then the figures

	mu   sync.Mutex // guards next
	next time.Time  // when the next try ends

	calm   atomic.Bool // tries end at once
	flood  atomic.Int64
	lights atomic.Int64
	night  atomic.Int64
}

// FullPressure is the scenario as it is measured, ShortPressure a glance at it.
func FullPressure() Pressure {
	return Pressure{Service: 1000, Flood: 5000, Lights: 50, LightEvery: 100 * time.Millisecond, DrainMax: time.Minute, Night: 300_000,
		Settle: 20 * time.Second, Measure: 30 * time.Second}
}

// ShortPressure is FullPressure in half a minute, at a fifth of the rates or less.
func ShortPressure() Pressure {
	return Pressure{Service: 200, Flood: 400, Lights: 10, LightEvery: 100 * time.Millisecond, DrainMax: 20 * time.Second, Night: 20_000,
		Settle: 6 * time.Second, Measure: 8 * time.Second}
}

const (
	serviceLate = 200 * time.Millisecond // what is late by more is lost
	floodEvery  = 10 * time.Millisecond  // a batch of the flood
)

// PressureReport is the outcome of the scenario.
type PressureReport struct {
	Scenario     string  `json:"scenario"`
	Flooded      int     `json:"flooded"`  // tasks that the flood has asked for
	Accepted     int     `json:"accepted"` // of them
	Light        int     `json:"light"`    // tasks of the others
	Night        int     `json:"night"`
	AcceptedPerS float64 `json:"accepted_per_s"` // of the flood, while it was measured
	LeftPerS     float64 `json:"left_per_s"`     // what was done, less what the others asked for
	Backlog      int64   `json:"backlog"`        // of the flood, at most
	FirstRefusal float64 `json:"first_refusal_s"`
	LimitGone    float64 `json:"limit_gone_s"` // after the flood's end
	Lost         int64   `json:"lost"`
	Verdict
	lightRefused   int
	nightRefused   int
	refusedNoTime  int
	lightSubmitErr error
}

// Run runs the scenario. Its error says that it could not be run.
func (b *Pressure) Run(ctx context.Context) (_ *PressureReport, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stamp := fmt.Sprintf("%s-pressure-%x", b.Tenant, uint32(time.Now().UnixMilli()))
	admin, err := clusterclient.Dial(b.Addr, b.APIKey)
	if err != nil {
		return nil, err
	}
	defer admin.Close()
	flood := stamp + "-flood"
	if _, err := admin.SetTenant(ctx, &headracev1.SetTenantRequest{Tenant: flood, DrainMaxMillis: proto.Int64(b.DrainMax.Milliseconds())}); err != nil {
		return nil, err
	}
	root, err := client.Dial(client.Config{Addr: b.Addr, APIKey: b.APIKey, Tenant: flood, FailOnBackpressure: true})
	if err != nil {
		return nil, err
	}
	defer root.Close()
	of := func(name string) (*client.Client, error) { return root.ForTenant(stamp + "-" + name) }
	slots := max(b.Service/10, 10) // 100 ms of work in each
	for i := range 2 {
		stop, err := startExecutor(ctx, executor.Config{Addr: b.Addr, APIKey: b.APIKey, Slots: slots, Name: fmt.Sprint("pressure-", i)}, func(x *executor.Executor) {
			x.HandleRawTenant(flood, "f", fn.Options{}, b.work(&b.flood))
			for i := range b.Lights {
				x.HandleRawTenant(fmt.Sprint(stamp, "-", i), "f", fn.Options{}, b.work(&b.lights))
			}
		})
		if err != nil {
			return nil, err
		}
		defer stop()
	}
	rep := &PressureReport{Scenario: "pressure"}

	b.phase("the overnight batch, which nobody works on before the night")
	night, err := of("night")
	if err != nil {
		return nil, err
	}
	defer night.Close()
	if err := b.submitNight(ctx, night, rep); err != nil {
		return nil, err
	}

	b.phase("the flood fills up what it may")
	var wg sync.WaitGroup
	defer wg.Wait()
	submitting, end := context.WithCancel(ctx)
	defer end()
	var mu sync.Mutex // guards the counts of the others
	for i := range b.Lights {
		c, err := of(fmt.Sprint(i))
		if err != nil {
			return nil, err
		}
		defer c.Close()
		wg.Go(func() {
			n, refused, err := b.submitLight(submitting, c, b.LightEvery*time.Duration(i)/time.Duration(b.Lights))
			mu.Lock()
			defer mu.Unlock()
			rep.Light += n
			rep.lightRefused += refused
			rep.lightSubmitErr = errors.Join(rep.lightSubmitErr, err)
		})
	}
	var floodErr error
	var accepted atomic.Int64
	flooding, endFlood := context.WithCancel(ctx)
	defer endFlood()
	wg.Go(func() { floodErr = b.submitFlood(flooding, root, rep, &accepted) })
	look := func() (*headracev1.Tenant, error) {
		t, err := admin.Tenant(ctx, flood)
		if err == nil {
			rep.Backlog = max(rep.Backlog, t.Ready)
		}
		return t, err
	}
	watch := func(d time.Duration, until func(*headracev1.Tenant) bool) error {
		for over := time.Now().Add(d); time.Now().Before(over); {
			t, err := look()
			if err != nil {
				return err
			}
			if until != nil && until(t) {
				return nil
			}
			if err := pass(ctx, 250*time.Millisecond); err != nil {
				return err
			}
		}
		return nil
	}
	limited := false
	if err := watch(b.DrainMax+30*time.Second, func(t *headracev1.Tenant) bool {
		limited = limited || t.Limit != nil
		return limited && t.DrainTime.AsDuration() > b.DrainMax*8/10
	}); err != nil {
		return nil, err
	}
	b.phase("it is held there")
	if err := watch(b.Settle, nil); err != nil {
		return nil, err
	}
	b.phase("measuring")
	type mark struct {
		at                     time.Time
		accepted, done, others int64
	}
	now := func() mark {
		return mark{time.Now(), accepted.Load(), b.flood.Load() + b.lights.Load(), b.lights.Load()}
	}
	from := now()
	if err := watch(b.Measure, nil); err != nil {
		return nil, err
	}
	to := now()
	seconds := to.at.Sub(from.at).Seconds()
	rep.AcceptedPerS = float64(to.accepted-from.accepted) / seconds
	rep.LeftPerS = float64(to.done-from.done-(to.others-from.others)) / seconds
	endFlood()
	stopped := time.Now()
	gone := false
	if err := watch(4*pressure.Interval, func(t *headracev1.Tenant) bool { gone = t.Limit == nil; return gone }); err != nil {
		return nil, err
	}
	rep.LimitGone = time.Since(stopped).Seconds()
	if !gone {
		rep.LimitGone = -1
	}
	end()
	wg.Wait()
	if err := errors.Join(floodErr, rep.lightSubmitErr); err != nil {
		return nil, err
	}
	rep.Accepted = int(accepted.Load())

	b.phase("the night, and the rest")
	b.calm.Store(true)
	stop, err := startExecutor(ctx, executor.Config{Addr: b.Addr, APIKey: b.APIKey, Slots: 1000, Name: "pressure-night"}, func(x *executor.Executor) {
		x.HandleRawTenant(stamp+"-night", "f", fn.Options{}, b.work(&b.night))
	})
	if err != nil {
		return nil, err
	}
	defer stop()
	if rep.Lost, err = b.drain(ctx, rep); err != nil {
		return nil, err
	}
	b.judge(rep)
	return rep, nil
}

// work is a handler that counts.
func (b *Pressure) work(count *atomic.Int64) executor.Handler {
	return func(ctx context.Context, _ *executor.Task) (executor.Result, error) {
		count.Add(1)
		if b.calm.Load() {
			return executor.Result{}, nil
		}
		return executor.Result{}, b.serve(ctx)
	}
}

// serve lets tries end at the rate of the service, however late a timer of a busy machine is.
func (b *Pressure) serve(ctx context.Context) error {
	now := time.Now()
	b.mu.Lock()
	if late := now.Add(-serviceLate); b.next.Before(late) {
		b.next = late
	}
	b.next = b.next.Add(time.Second / time.Duration(b.Service))
	wait := b.next.Sub(now)
	b.mu.Unlock()
	return pass(ctx, max(wait, 0))
}

func (b *Pressure) submitNight(ctx context.Context, cl *client.Client, rep *PressureReport) error {
	tasks := make([]client.Task, min(b.Night, 10_000))
	for i := range tasks {
		tasks[i] = client.Task{Function: "f"}
	}
	for left := b.Night; left > 0; {
		out, err := cl.SubmitBatch(ctx, tasks[:min(left, len(tasks))])
		if err != nil {
			return fmt.Errorf("submit the batch: %w", err)
		}
		left -= len(out)
		for _, o := range out {
			switch refusal := (*client.BackpressureError)(nil); {
			case o.Err == nil:
				rep.Night++
			case errors.As(o.Err, &refusal):
				rep.nightRefused++
			default:
				return fmt.Errorf("submit the batch: %w", o.Err)
			}
		}
	}
	return nil
}

// submitFlood submits at the flood's rate, and never waits because it is refused.
func (b *Pressure) submitFlood(ctx context.Context, cl *client.Client, rep *PressureReport, accepted *atomic.Int64) error {
	tasks := make([]client.Task, max(b.Flood/10, 1))
	for i := range tasks {
		tasks[i] = client.Task{Function: "f"}
	}
	began := time.Now()
	for ctx.Err() == nil {
		due := int(float64(b.Flood)*time.Since(began).Seconds()) - rep.Flooded
		if due < 1 {
			_ = pass(ctx, floodEvery)
			continue
		}
		out, err := cl.SubmitBatch(context.WithoutCancel(ctx), tasks[:min(due, len(tasks))])
		if err != nil {
			return fmt.Errorf("submit the flood: %w", err)
		}
		rep.Flooded += len(out)
		for _, o := range out {
			switch refusal := (*client.BackpressureError)(nil); {
			case o.Err == nil:
				accepted.Add(1)
			case !errors.As(o.Err, &refusal):
				return fmt.Errorf("submit the flood: %w", o.Err)
			default:
				if rep.FirstRefusal == 0 {
					rep.FirstRefusal = time.Since(began).Seconds()
				}
				if refusal.RetryAfter <= 0 {
					rep.refusedNoTime++
				}
			}
		}
	}
	return nil
}

// submitLight submits one by one at a steady rate.
func (b *Pressure) submitLight(ctx context.Context, cl *client.Client, first time.Duration) (n, refused int, err error) {
	if pass(ctx, first) != nil {
		return 0, 0, nil
	}
	tick := time.NewTicker(b.LightEvery)
	defer tick.Stop()
	for {
		_, err := cl.Submit(context.WithoutCancel(ctx), client.Task{Function: "f"})
		switch refusal := (*client.BackpressureError)(nil); {
		case err == nil:
			n++
		case errors.As(err, &refusal):
			refused++
		default:
			return n, refused, fmt.Errorf("submit for another: %w", err)
		}
		select {
		case <-ctx.Done():
			return n, refused, nil
		case <-tick.C:
		}
	}
}

// drain waits until everything was called that was accepted, and returns how much was not.
func (b *Pressure) drain(ctx context.Context, rep *PressureReport) (lost int64, err error) {
	for end := time.Now().Add(5 * time.Minute); ; {
		lost = int64(rep.Accepted+rep.Light+rep.Night) - b.flood.Load() - b.lights.Load() - b.night.Load()
		if lost <= 0 || time.Now().After(end) {
			return lost, nil
		}
		if err := pass(ctx, 20*time.Millisecond); err != nil {
			return lost, err
		}
	}
}

// judge says what the scenario shows.
func (b *Pressure) judge(rep *PressureReport) {
	c := &rep.Checks
	c.most("tasks of the others that were refused", float64(rep.lightRefused), 0)
	c.most("tasks of the overnight batch that were refused", float64(rep.nightRefused), 0)
	c.most("refusals that do not say when to come again", float64(rep.refusedNoTime), 0)
	c.most("backlog of the flood, in drain_max at what is left", float64(rep.Backlog)/max(rep.LeftPerS*b.DrainMax.Seconds(), 1), 1.25)
	share := rep.AcceptedPerS / max(rep.LeftPerS, 1)
	c.least("accepted of the flood, of what is left, at least", share, 0.85)
	c.most("accepted of the flood, of what is left, at most", share, 1.15)
	gone := rep.LimitGone
	most := (2 * pressure.Interval).Seconds() + 0.5 // the looks are a quarter of a second apart
	c.add("seconds until its limit is gone", gone, most, gone >= 0 && gone <= most)
	c.most("tasks that were accepted and not run", float64(rep.Lost), 0)
}
