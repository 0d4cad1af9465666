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
	"github.com/headrace/headrace/internal/histogram"
)

// Throttle is the scenario of a downstream with a hidden capacity that halves and quadruples, kept busy through real
// executors. It throttles what is too much and some strays, fails some tries, and has an unrelated one beside it.
type Throttle struct {
	Target
	Capacity   int           // tries at once at first
	Service    time.Duration // of a try
	Alone      time.Duration // the unrelated downstream has the server for itself
	Warm       time.Duration // until the limit ought to be found
	Steady     time.Duration
	Halved     time.Duration // with half the capacity, the first third, and 8 s at least, to find it
	Quadrupled time.Duration // then with four times that, the first two thirds to find it; 0: not at all

	svc   *service // of the run
	other *otherService
}

// Full is the scenario as it is measured, Short a glance at it.
func Full() Throttle {
	return Throttle{Capacity: 100, Service: 200 * time.Millisecond, Alone: 10 * time.Second, Warm: 30 * time.Second,
		Steady: 30 * time.Second, Halved: 30 * time.Second, Quadrupled: time.Minute}
}

// Short is Full in half a minute, with a capacity that is found soon.
func Short() Throttle {
	return Throttle{Capacity: 24, Service: 100 * time.Millisecond, Alone: 3 * time.Second, Warm: 5 * time.Second,
		Steady: 5 * time.Second, Halved: 13 * time.Second}
}

const (
	strayShare  = 0.005 // of the calls, throttled whatever the load
	failShare   = 0.05  // of the calls, that fail
	otherEvery  = 20 * time.Millisecond
	otherTakes  = 5 * time.Millisecond
	otherMargin = 200 * time.Millisecond // of a machine that is shared
	findLeast   = 8 * time.Second
	settleMost  = 5  // seconds
	settleSmall = 10 // below 32 a limit falls by what the rate says, a tenth or two at a time
)

// ThrottlePhase is what came of a part of the scenario.
type ThrottlePhase struct {
	Name      string  `json:"name"`
	Seconds   float64 `json:"seconds"`
	Capacity  int     `json:"capacity"`
	Use       float64 `json:"use"`       // mean of what was in service over the capacity
	Calls     int     `json:"calls"`     // pushes that came to the downstream
	Throttled int     `json:"throttled"` // of them, strays included
	Failed    int     `json:"failed"`
}

// ThrottleReport is the outcome of the scenario.
type ThrottleReport struct {
	Scenario  string          `json:"scenario"`
	Phases    []ThrottlePhase `json:"phases"`
	Tasks     int             `json:"tasks"`
	Succeeded int             `json:"succeeded"`
	Settled   float64         `json:"settled_s"` // after the halving
	Alone     float64         `json:"other_alone_p99_ms"`
	Beside    float64         `json:"other_beside_p99_ms"`
	Verdict
}

var (
	errTooMuch = errors.New("429 too many requests")
	errServer  = errors.New("500 internal server error")
)

// otherService is the unrelated downstream.
type otherService struct {
	mu     sync.Mutex // guards following
	waits  *histogram.Histogram
	called int
}

func (o *otherService) handle(ctx context.Context, t *executor.Task) (executor.Result, error) {
	wait := time.Since(time.Unix(0, int64(binary.BigEndian.Uint64(t.Payload))))
	o.mu.Lock()
	o.called++
	o.waits.Record(wait)
	o.mu.Unlock()
	return executor.Result{}, pass(ctx, otherTakes)
}

// turn returns what waited since the last turn.
func (o *otherService) turn() *histogram.Histogram {
	o.mu.Lock()
	defer o.mu.Unlock()
	was := o.waits
	o.waits = &histogram.Histogram{}
	return was
}

// Run runs the scenario. Its error says that it could not be run.
func (b *Throttle) Run(ctx context.Context) (_ *ThrottleReport, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	b.svc, b.other = &service{}, &otherService{}
	b.svc.begin(b.Capacity)
	b.other.turn()
	cl, err := client.Dial(client.Config{Addr: b.Addr, APIKey: b.APIKey, Tenant: b.Tenant})
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	stamp := fmt.Sprintf("throttle-%x", time.Now().UnixNano())
	for i := range 2 {
		stop, err := b.executor(ctx, fmt.Sprint(stamp, "-", i), stamp)
		if err != nil {
			return nil, err
		}
		defer stop()
	}
	rep := &ThrottleReport{Scenario: "throttle"}
	var wg sync.WaitGroup
	var feedErr, otherErr error
	feeding, endFeed := context.WithCancel(ctx)
	defer wg.Wait()
	defer endFeed()
	others := 0
	wg.Go(func() { others, otherErr = b.submitOther(feeding, cl, stamp+"-other") })

	b.phase("the unrelated one alone")
	if err := pass(ctx, b.Alone); err != nil {
		return nil, err
	}
	rep.Alone = ms(b.other.turn().Quantile(0.99))
	submitted := 0
	wg.Go(func() { submitted, feedErr = b.feed(feeding, cl, stamp) })
	part := func(name string, d time.Duration, counts bool) error {
		b.phase(name)
		from := b.svc.mark()
		if err := pass(ctx, d); err != nil {
			return err
		}
		if counts {
			rep.Phases = append(rep.Phases, b.svc.between(name, from, b.svc.mark()))
		}
		return nil
	}
	err = part("warming up", b.Warm, false)
	if err == nil {
		err = part("steady", b.Steady, true)
	}
	halved, finding := time.Now(), max(b.Halved/3, findLeast)
	b.svc.resize(b.Capacity / 2)
	if err == nil {
		err = part("halved", finding, false)
	}
	if err == nil {
		err = part("half the capacity", b.Halved-finding, true)
	}
	rep.Settled = b.svc.settled(halved)
	if b.Quadrupled > 0 {
		b.svc.resize(2 * b.Capacity)
		if err == nil {
			err = part("quadrupled", b.Quadrupled*2/3, false)
		}
		if err == nil {
			err = part("four times that", b.Quadrupled/3, true)
		}
	}
	rep.Beside = ms(b.other.turn().Quantile(0.99))
	endFeed()
	wg.Wait()
	if err = errors.Join(err, feedErr, otherErr); err != nil {
		return nil, err
	}
	b.phase("the rest")
	b.svc.calm(max(b.Capacity, 2*b.Capacity))
	if err := b.drain(ctx, submitted, others); err != nil {
		return nil, err
	}
	rep.Tasks = submitted
	b.judge(rep, others)
	return rep, nil
}

func (b *Throttle) executor(ctx context.Context, name, function string) (stop func(), err error) {
	backoff := fn.Backoff{Base: 200 * time.Millisecond, Factor: 1, Max: 200 * time.Millisecond}
	return startExecutor(ctx, executor.Config{Addr: b.Addr, APIKey: b.APIKey, Slots: 10 * b.Capacity, Name: name}, func(x *executor.Executor) {
		x.HandleRawTenant(b.Tenant, function, fn.Options{Downstream: function, MaxAttempts: 30, Backoff: backoff}, b.call)
		x.HandleRawTenant(b.Tenant, function+"-other", fn.Options{}, b.other.handle)
	})
}

// call is the handler of what the downstream does.
func (b *Throttle) call(ctx context.Context, t *executor.Task) (executor.Result, error) {
	switch answer, after := b.svc.enter(t.ID.String(), t.Attempt, time.Now()); answer {
	case answerThrottled:
		return executor.Result{}, executor.Throttled(errTooMuch, "", after)
	case answerFailed:
		err := pass(ctx, b.Service)
		b.svc.leave(t.ID.String(), false)
		return executor.Result{}, errors.Join(errServer, err)
	}
	err := pass(ctx, b.Service)
	b.svc.leave(t.ID.String(), err == nil)
	return executor.Result{}, err
}

// feed keeps some seconds of work waiting, and returns how many tasks it has submitted.
func (b *Throttle) feed(ctx context.Context, cl *client.Client, function string) (n int, err error) {
	const batch = 200
	tasks := make([]client.Task, batch)
	for i := range tasks {
		tasks[i] = client.Task{Function: function}
	}
	for ctx.Err() == nil {
		ahead := int(2 * float64(b.svc.size()) / b.Service.Seconds())
		if n-b.svc.done() > ahead+batch {
			_ = pass(ctx, 50*time.Millisecond)
			continue
		}
		accepted, err := submitAll(ctx, cl, tasks)
		if n += accepted; err != nil {
			return n, err
		}
	}
	return n, nil
}

// submitOther submits to the unrelated downstream at a steady rate.
func (b *Throttle) submitOther(ctx context.Context, cl *client.Client, function string) (n int, err error) {
	tick := time.NewTicker(otherEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return n, nil
		case <-tick.C:
		}
		payload := binary.BigEndian.AppendUint64(nil, uint64(time.Now().UnixNano()))
		if _, err := cl.Submit(context.WithoutCancel(ctx), client.Task{Function: function, Payload: payload}); err != nil {
			return n, err
		}
		n++
	}
}

// drain waits until everything that was submitted has succeeded.
func (b *Throttle) drain(ctx context.Context, submitted, others int) error {
	for end := time.Now().Add(time.Minute); ; {
		b.other.mu.Lock()
		called := b.other.called
		b.other.mu.Unlock()
		if b.svc.done() >= submitted && called >= others {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("after a minute %d of %d tasks have succeeded, %d of %d unrelated ones", b.svc.done(), submitted, called, others)
		}
		if err := pass(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// judge says what the scenario shows.
func (b *Throttle) judge(rep *ThrottleReport, others int) {
	add := rep.Checks.add
	most := 0.03
	for _, p := range rep.Phases {
		add("use of the capacity, "+p.Name, p.Use, 0.95, p.Use >= 0.95)
		bound := most
		if p.Capacity < 32 { // one slot too many is a throttle in so many calls
			bound = 0.06
		}
		share := float64(p.Throttled) / float64(max(p.Calls, 1))
		add("share of pushes throttled, "+p.Name, share, bound, share <= bound)
	}
	settle := float64(settleMost)
	if b.Capacity/2 < 32 {
		settle = settleSmall
	}
	add("seconds to settle after the halving", rep.Settled, settle, rep.Settled <= settle)
	bound := 1.2*rep.Alone + ms(otherTakes+otherMargin)
	add("p99 wait of the unrelated one, ms", rep.Beside, bound, rep.Beside <= bound)
	b.svc.mu.Lock()
	defer b.svc.mu.Unlock()
	rep.Succeeded = b.svc.succeeded
	add("attempts spent by throttles", float64(b.svc.spent), 0, b.svc.spent == 0)
	add("pushes before their retry-after", float64(b.svc.early), 0, b.svc.early == 0)
}
