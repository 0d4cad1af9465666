package client_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/internal/faketime"
	"github.com/headrace/headrace/internal/grpcx"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

// When the context ends first, the error says whether the task may be stored, wraps the context's own
// and names the last cause.
func TestContextEndIsHonest(t *testing.T) {
	type errs []error
	for _, c := range []struct {
		name  string
		setup func(s *fakeServer)
		is    errs
		text  string
	}{
		{"refused connection", func(s *fakeServer) { s.cut(true) }, errs{client.ErrNotSent, context.DeadlineExceeded}, "connection refused"},
		{"silent network", func(s *fakeServer) { s.dialer = blackHole{} }, errs{client.ErrNotSent, context.DeadlineExceeded}, "connect"},
		{"silent server", func(s *fakeServer) {
			s.submit = func(int, *batchRequest, func() *batchResponse) (*batchResponse, error) {
				faketime.Pass(time.Hour)
				return nil, nil
			}
		}, errs{client.ErrOutcomeUnknown, context.DeadlineExceeded}, "deadline exceeded"},
		{"lost answers", func(s *fakeServer) {
			s.submit = func(_ int, _ *batchRequest, commit func() *batchResponse) (*batchResponse, error) {
				commit()
				s.cut(true)
				return nil, errors.New("nobody hears this")
			}
		}, errs{client.ErrOutcomeUnknown, context.DeadlineExceeded}, "connection refused"},
		{"unavailable", func(s *fakeServer) {
			s.submit = func(int, *batchRequest, func() *batchResponse) (*batchResponse, error) {
				return nil, grpcx.Info{Code: codes.Unavailable, Reason: "store_slow", Message: "the store is slow"}.Err()
			}
		}, errs{client.ErrOutcomeUnknown, context.DeadlineExceeded}, "store_slow"},
		{"backpressure", func(s *fakeServer) {
			s.submit = func(int, *batchRequest, func() *batchResponse) (*batchResponse, error) {
				return nil, grpcx.Info{Code: codes.ResourceExhausted, Reason: "tenant_rate", RetryAfter: 3 * time.Second}.Err()
			}
		}, errs{client.ErrNotSent, context.DeadlineExceeded}, "tenant_rate"},
	} {
		for _, n := range []int{1, 3} {
			t.Run(fmt.Sprintf("%s, %d tasks", c.name, n), func(t *testing.T) {
				bubble(t, client.Config{CallTimeout: 2 * time.Second}, func(t *testing.T, s *fakeServer, cl *client.Client) {
					c.setup(s)
					ctx, cancel := context.WithTimeout(t.Context(), 7*time.Second)
					defer cancel()
					start := time.Now()
					var err error
					if n == 1 {
						_, err = cl.Submit(ctx, client.Task{Function: "f"})
					} else {
						var out []client.Outcome
						out, err = cl.SubmitBatch(ctx, make([]client.Task, n))
						if len(out) != n || out[n-1].Err == nil {
							t.Errorf("outcomes %v", out)
						}
					}
					if d := time.Since(start); d != 7*time.Second {
						t.Errorf("returned after %v", d)
					}
					for _, want := range c.is {
						if !errors.Is(err, want) {
							t.Errorf("%v is not %v", err, want)
						}
					}
					if err != nil && n == 1 && !strings.Contains(err.Error(), c.text) {
						t.Errorf("%v does not name its cause", err)
					}
				})
			})
		}
	}
}

// Tasks with an id of their own share no call with others, and while theirs is held the others go on.
func TestOwnIDsHoldNobodyElse(t *testing.T) {
	bubble(t, client.Config{CallTimeout: time.Minute}, func(t *testing.T, s *fakeServer, c *client.Client) {
		release := make(chan struct{})
		s.submit = func(_ int, req *batchRequest, commit func() *batchResponse) (*batchResponse, error) {
			for _, spec := range req.Tasks {
				if (spec.ClientId == "") != (req.Tasks[0].ClientId == "") {
					t.Error("a call has tasks with ids and without")
				}
			}
			if req.Tasks[0].ClientId != "" {
				<-release
			}
			return commit(), nil
		}
		var held, free sync.WaitGroup
		for i := range 20 {
			held.Go(func() {
				if _, err := c.Submit(t.Context(), client.Task{Function: "f", Options: client.Options{ID: fmt.Sprint(i)}}); err != nil {
					t.Error(err)
				}
			})
			if i == 0 {
				synctest.Wait() // one call is held; the others gather
			}
			free.Go(func() {
				if _, err := c.Submit(t.Context(), client.Task{Function: "f", Payload: fmt.Append(nil, i)}); err != nil {
					t.Error(err)
				}
			})
			if i == 0 {
				free.Wait()
			}
		}
		close(release)
		held.Wait()
		free.Wait()
	})
}

// blackHole accepts no connection and refuses none.
type blackHole struct{}

func (blackHole) DialContext(ctx context.Context) (net.Conn, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// A context that is over sends nothing; its own cause is kept.
func TestEndedContextSendsNothing(t *testing.T) {
	bubble(t, client.Config{}, func(t *testing.T, s *fakeServer, c *client.Client) {
		why := errors.New("user went away")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(why)
		_, err := c.Submit(ctx, client.Task{Function: "f"})
		if !errors.Is(err, client.ErrNotSent) || !errors.Is(err, context.Canceled) || !errors.Is(err, why) || s.callCount() != 0 {
			t.Errorf("%d calls, %v", s.callCount(), err)
		}
		if out, err := c.SubmitBatch(ctx, make([]client.Task, 2)); !errors.Is(err, client.ErrNotSent) || !errors.Is(out[1].Err, why) || s.callCount() != 0 {
			t.Errorf("%d calls, %v", s.callCount(), err)
		}
	})
}

// Of ten callers who wait for a call under way, nine leave: two of those in the call, which must stay
// as it is, the others from the queue, and these are never sent. The one who stays gets its task.
func TestLeavingDisturbsNobody(t *testing.T) {
	bubble(t, client.Config{MaxInFlight: 1, MaxBatch: 3, CallTimeout: time.Second}, func(t *testing.T, s *fakeServer, c *client.Client) {
		s.submit = func(n int, req *batchRequest, commit func() *batchResponse) (*batchResponse, error) {
			switch {
			case n == 1: // occupies the only sender while the others gather
				faketime.Pass(100 * time.Millisecond)
			case n == 2:
				commit()
				faketime.Pass(time.Minute) // lost
			}
			return commit(), nil
		}
		var wg sync.WaitGroup
		submit := func(name string, d time.Duration, want error) {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), d)
				defer cancel()
				if _, err := c.Submit(ctx, client.Task{Function: "f", Payload: []byte(name)}); !errors.Is(err, want) || (err == nil) != (want == nil) {
					t.Errorf("%s: %v, want %v", name, err, want)
				}
			})
			synctest.Wait() // keep their order
		}
		submit("first", time.Hour, nil)
		submit("in call 1", 500*time.Millisecond, client.ErrOutcomeUnknown)
		submit("stays", time.Hour, nil)
		submit("in call 2", 600*time.Millisecond, client.ErrOutcomeUnknown)
		for i := range 7 {
			submit(fmt.Sprint("queued ", i), 50*time.Millisecond, client.ErrNotSent)
		}
		wg.Wait()
		got := s.payloads()
		if got["first"] != 1 || got["stays"] != 1 || got["in call 1"] != 1 || len(got) != 4 {
			t.Errorf("stored: %v", got)
		}
		if again := s.calls[2]; !again.Retry || len(again.Tasks) != 3 {
			t.Errorf("the retry has %d tasks, want the same 3", len(again.Tasks))
		}
	})
}

// A storm of everything that can go wrong, from a seed: who got an id has its task once, who was told
// "not sent" has none, and nobody has two.
func TestStorm(t *testing.T) {
	seeds := uint64(40)
	if testing.Short() {
		seeds = 10
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			bubble(t, client.Config{MaxBatch: 20, CallTimeout: 300 * time.Millisecond}, func(t *testing.T, s *fakeServer, c *client.Client) {
				var mu sync.Mutex
				rng := rand.New(rand.NewPCG(seed, 1))
				draw := func(n int) int {
					mu.Lock()
					defer mu.Unlock()
					return rng.IntN(n)
				}
				partly := func(req *batchRequest) *batchResponse {
					return s.store(req, func(int, *headracev1.TaskSpec) *headracev1.SubmitError {
						switch draw(4) {
						case 0:
							return refusal(codes.Unavailable, "owner_moves", time.Duration(draw(100))*time.Millisecond)
						case 1:
							return refusal(codes.ResourceExhausted, "tenant_rate", time.Duration(draw(100)+1)*time.Millisecond)
						}
						return nil
					})
				}
				s.submit = func(_ int, req *batchRequest, commit func() *batchResponse) (*batchResponse, error) {
					faketime.Pass(time.Duration(draw(10)) * time.Millisecond)
					switch draw(10) {
					case 0: // stored, answer lost
						commit()
						s.cut(false)
						return nil, errors.New("lost")
					case 1: // lost before it was stored
						s.cut(false)
						return nil, errors.New("lost")
					case 2: // stored at last, but too late
						faketime.Pass(time.Duration(draw(1000)) * time.Millisecond)
						return commit(), nil
					case 3:
						return nil, grpcx.Info{Code: codes.ResourceExhausted, RetryAfter: 20 * time.Millisecond}.Err()
					case 4:
						return nil, grpcx.Info{Code: codes.Unavailable}.Err()
					case 5, 6:
						return partly(req), nil
					case 7:
						s.cut(true)
						time.AfterFunc(500*time.Millisecond, func() { s.cut(false) })
						return partly(req), nil
					}
					return commit(), nil
				}
				answers := map[string]error{}
				var wg sync.WaitGroup
				record := func(p string, err error) {
					mu.Lock()
					defer mu.Unlock()
					answers[p] = err
				}
				for caller := range 40 {
					wg.Go(func() {
						for i := range 10 {
							ctx, cancel := context.WithTimeout(t.Context(), time.Duration(20+draw(3000))*time.Millisecond)
							if draw(5) > 0 {
								p := fmt.Sprintf("%d/%d", caller, i)
								_, err := c.Submit(ctx, client.Task{Function: "f", Payload: []byte(p)})
								record(p, err)
							} else {
								var tasks []client.Task
								for k := range 5 {
									tasks = append(tasks, client.Task{Function: "f", Payload: fmt.Appendf(nil, "%d/%d/%d", caller, i, k)})
								}
								out, _ := c.SubmitBatch(ctx, tasks)
								for k, o := range out {
									record(string(tasks[k].Payload), o.Err)
								}
							}
							cancel()
						}
					})
				}
				wg.Wait()
				c.Close()
				s.stop() // what was under way at the server ends, too
				stored := s.payloads()
				var ok, none, unknown int
				for p, err := range answers {
					n := stored[p]
					switch {
					case n > 1:
						t.Errorf("%s is stored %d times", p, n)
					case err == nil:
						if ok++; n != 1 {
							t.Errorf("%s was answered OK and is lost", p)
						}
					case errors.Is(err, client.ErrNotSent):
						if none++; n != 0 {
							t.Errorf("%s is stored, but: %v", p, err)
						}
					case errors.Is(err, client.ErrOutcomeUnknown):
						unknown++
					default:
						t.Errorf("%s: %v", p, err)
					}
				}
				if ok == 0 {
					t.Errorf("ok %d, not sent %d, unknown %d: the storm shows too little", ok, none, unknown)
				}
			})
		})
	}
}

// Close ends submits and waits that are under way, says what is true of each, and leaves nothing behind.
func TestClose(t *testing.T) {
	bubble(t, client.Config{MaxInFlight: 1}, func(t *testing.T, s *fakeServer, c *client.Client) {
		s.submit = func(n int, _ *batchRequest, commit func() *batchResponse) (*batchResponse, error) {
			if n > 1 {
				faketime.Pass(time.Second)
			}
			return commit(), nil
		}
		waited, err := c.Submit(t.Context(), client.Task{Function: "f"})
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		expect := func(what string, kind error, f func() error) {
			wg.Go(func() {
				if err := f(); !errors.Is(err, client.ErrClosed) || kind != nil && !errors.Is(err, kind) {
					t.Errorf("%s: %v", what, err)
				}
			})
			synctest.Wait()
		}
		submit := func() error { _, err := c.Submit(t.Context(), client.Task{Function: "f"}); return err }
		expect("in call", client.ErrOutcomeUnknown, submit)
		expect("queued", client.ErrNotSent, submit)
		expect("batch", client.ErrOutcomeUnknown, func() error { _, err := c.SubmitBatch(t.Context(), make([]client.Task, 2)); return err })
		expect("wait", nil, func() error { _, err := c.Wait(t.Context(), client.ByID(waited.ID)); return err })
		c.Close()
		wg.Wait()
		expect("after", client.ErrNotSent, submit)
		expect("batch after", client.ErrNotSent, func() error { _, err := c.SubmitBatch(t.Context(), make([]client.Task, 2)); return err })
		expect("read after", nil, func() error { _, err := c.Get(t.Context(), client.ByID("x")); return err })
		c.Close()
		wg.Wait()
	})
}

// Half an hour without a server, callers come and give up all the time: goroutines at the end are as
// many as at minute 2, dials are rare (B121), and when the server is back, so are we.
func TestLongOutageLeaksNothing(t *testing.T) {
	bubble(t, client.Config{}, func(t *testing.T, s *fakeServer, c *client.Client) {
		s.cut(true)
		goroutines := func() int { synctest.Wait(); return runtime.NumGoroutine() }
		var early int
		start := time.Now()
		for i := 0; time.Since(start) < 30*time.Minute; i++ {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			var wg sync.WaitGroup
			for range 20 {
				wg.Go(func() {
					if _, err := c.Submit(ctx, client.Task{Function: "f"}); !errors.Is(err, client.ErrNotSent) {
						t.Errorf("submit: %v", err)
					}
				})
			}
			wg.Wait()
			cancel()
			if n := c.Queued(); n > 20 {
				t.Fatalf("%d submits are queued, though all callers have gone", n)
			}
			if i == 120 {
				early = goroutines()
			}
		}
		if late := goroutines(); late > early+early/20+1 {
			t.Errorf("%d goroutines after 2 minutes, %d after 30", early, late)
		}
		if s.dials > 30*60 {
			t.Errorf("%d dials in 30 minutes", s.dials)
		}
		s.cut(false)
		start = time.Now()
		if _, err := c.Submit(t.Context(), client.Task{Function: "f"}); err != nil || time.Since(start) > 7*time.Second {
			t.Errorf("the server is back: %v after %v", err, time.Since(start))
		}
		if n := s.callCount(); n != 1 {
			t.Errorf("%d calls: those that gave up were sent after all", n)
		}
	})
}

// A task that is waited for ends while the network is down; the waiter hears of it when it is back.
func TestWaitSurvivesReconnects(t *testing.T) {
	bubble(t, client.Config{}, func(t *testing.T, s *fakeServer, c *client.Client) {
		sub, err := c.Submit(t.Context(), client.Task{Function: "f"})
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan *client.TaskInfo)
		go func() {
			info, err := c.Wait(t.Context(), client.ByID(sub.ID))
			if err != nil {
				t.Error(err)
			}
			done <- info
		}()
		for range 5 {
			faketime.Pass(time.Minute)
			s.cut(false)
		}
		s.cut(true)
		s.change(sub.ID, func(t *headracev1.Task) {
			t.State, t.Result = headracev1.TaskState_TASK_STATE_SUCCEEDED, []byte("r")
		})
		faketime.Pass(time.Minute)
		s.cut(false)
		if info := <-done; info == nil || !info.Succeeded() || string(info.Result) != "r" {
			t.Errorf("got %+v", info)
		}
		if s.waits != 6 {
			t.Errorf("%d streams, want one per connection: 6", s.waits)
		}
	})
}

func TestWaitEnds(t *testing.T) {
	bubble(t, client.Config{}, func(t *testing.T, s *fakeServer, c *client.Client) {
		if _, err := c.Wait(t.Context(), client.ByClientID("none")); !errors.Is(err, client.ErrNotFound) || status.Code(err) != codes.NotFound {
			t.Errorf("unknown task: %v", err)
		}
		sub, err := c.Submit(t.Context(), client.Task{Function: "f"})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		start := time.Now()
		if _, err = c.Wait(ctx, client.ByID(sub.ID)); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Hour {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		var states []string
		for info, err := range c.Watch(t.Context(), client.ByID(sub.ID)) {
			if err != nil {
				t.Fatal(err)
			}
			states = append(states, info.State.String())
			s.change(sub.ID, func(t *headracev1.Task) {
				t.State = map[headracev1.TaskState]headracev1.TaskState{2: 3, 3: 6, 6: 6}[t.State]
			})
		}
		if got := strings.Join(states, " "); got != "queued running failed" {
			t.Errorf("states: %s", got)
		}
		s.polite = 3 // nodes that restart end watches without an error
		if info, err := c.Wait(t.Context(), client.ByID(sub.ID)); err != nil || info.State != task.Failed {
			t.Errorf("after three streams that ended early: %+v, %v", info, err)
		}
		for range c.Watch(t.Context(), client.ByID(sub.ID)) {
			break // ends the stream: the bubble would not end otherwise
		}
	})
}
