package testcluster_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/executor"
	"github.com/headrace/headrace/fn"
	"github.com/headrace/headrace/internal/faketime"
	"github.com/headrace/headrace/internal/testcluster"
)

// scale weighs what runs on one executor.
type scale struct {
	mu      sync.Mutex // guards following
	used    int        // slots
	most    int
	low     int
	mostLow int
	done    map[string]int
}

func (s *scale) handler(name string, slots int, service time.Duration) executor.Handler {
	return func(ctx context.Context, t *executor.Task) (executor.Result, error) {
		low := string(t.Payload) == "low"
		count := func(n int) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.used += n * slots
			s.most = max(s.most, s.used)
			if low {
				s.low += n * slots
				s.mostLow = max(s.mostLow, s.low)
			}
			if n < 0 {
				s.done[name]++
			}
		}
		count(1)
		defer count(-1)
		select {
		case <-time.After(service):
		case <-ctx.Done():
		}
		return executor.Result{}, nil
	}
}

func (s *scale) of(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.done[name]
}

// run starts an executor in the bubble.
func (s *scale) run(t *testing.T, cfg executor.Config, register func(*executor.Executor)) {
	t.Helper()
	cfg.Logger, cfg.Tenant, cfg.DrainTimeout = slog.New(slog.DiscardHandler), "acme", time.Second
	x, err := executor.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	register(x)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- x.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	<-x.Ready()
}

// Two nodes share an executor of six slots, two of which are kept for band high. By the executor's own count its slots
// hold, low work never takes the last two, and what costs three slots gets them although single ones keep coming at both
// nodes.
func TestSlotsOfTwoNodes(t *testing.T) {
	testcluster.RunSeveral(t, 2, 1, func(t *testing.T, c *testcluster.Several) {
		nodes := c.All()
		balanced(t, 1, len(partitions(t, nodes[0])), nodes...)
		s := &scale{done: map[string]int{}}
		s.run(t, executor.Config{Addr: nodes[0].Addr, Dialer: c.Dial, Slots: 6, Reserve: []executor.Reserve{{Band: "high", Slots: 2}}}, func(x *executor.Executor) {
			x.HandleRaw("light", fn.Options{}, s.handler("light", 1, 50*time.Millisecond))
			x.HandleRaw("heavy", fn.Options{Cost: 3}, s.handler("heavy", 3, 80*time.Millisecond))
		})
		cl := nodes[0].Client("acme")
		submit := func(function string, band client.Band, n int) {
			t.Helper()
			var tasks []client.Task
			for range n {
				tasks = append(tasks, client.Task{Function: function, Payload: []byte(band), Options: client.Options{Band: band}})
			}
			items, err := cl.SubmitBatch(t.Context(), tasks)
			if err != nil {
				t.Fatal(err)
			}
			for _, it := range items {
				if it.Err != nil {
					t.Fatal(it.Err)
				}
			}
		}
		for range 8 { // several calls: some go to each node
			submit("light", client.BandLow, 50)
			submit("heavy", client.BandLow, 5)
		}
		until(t, time.Minute, "half of the heavy ones have run", func() bool { return s.of("heavy") >= 20 })
		if n := s.of("light"); n == 400 {
			t.Error("the heavy ones had to wait for all the light ones")
		}
		submit("light", client.BandHigh, 20)

		until(t, time.Minute, "all have run", func() bool { return s.of("light") == 420 && s.of("heavy") == 40 })
		if s.most > 6 || s.mostLow > 4 || s.mostLow < 3 {
			t.Errorf("%d slots were in use at once, %d by band low, want at most 6 and 4", s.most, s.mostLow)
		}
	})
}

// A function goes where its labels say: never to an executor without those that it requires, and to those without what it
// prefers only while the others are full.
func TestLabelsOfExecutors(t *testing.T) {
	testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
		plain, gpu := &scale{done: map[string]int{}}, &scale{done: map[string]int{}}
		offer := func(s *scale) func(*executor.Executor) {
			return func(x *executor.Executor) {
				x.HandleRaw("train", fn.Options{Requires: "gpu=true"}, s.handler("train", 1, 100*time.Millisecond))
				x.HandleRaw("infer", fn.Options{Prefers: "gpu=true"}, s.handler("infer", 1, 100*time.Millisecond))
			}
		}
		plain.run(t, executor.Config{Addr: "127.0.0.1:7070", Dialer: c.Dial, Slots: 10}, offer(plain))
		cl := c.Client("acme")
		submitMany(t, cl, "train", 5)
		submitMany(t, cl, "infer", 5)
		until(t, 5*time.Second, "what prefers runs without", func() bool { return plain.of("infer") == 5 })
		gpu.run(t, executor.Config{Addr: "127.0.0.1:7070", Dialer: c.Dial, Slots: 4, Labels: map[string]string{"gpu": "true"}}, offer(gpu))
		until(t, 5*time.Second, "what requires runs now", func() bool { return gpu.of("train") == 5 })
		faketime.Pass(time.Second) // of the bubble: its slots are known to be free
		submitMany(t, cl, "infer", 4)
		until(t, 5*time.Second, "it runs where it prefers to", func() bool { return gpu.of("infer") == 4 })
		faketime.Pass(time.Second)
		submitMany(t, cl, "infer", 12)
		until(t, 5*time.Second, "and elsewhere when that is full", func() bool { return gpu.of("infer")+plain.of("infer") == 21 })
		if plain.of("train") > 0 || gpu.of("infer") < 8 {
			t.Errorf("plain: %v, gpu: %v", plain.done, gpu.done)
		}
	})
}
