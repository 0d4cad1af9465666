package testcluster_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/executor"
	"github.com/headrace/headrace/fn"
	"github.com/headrace/headrace/internal/faketime"
	"github.com/headrace/headrace/internal/grpcx"
	"github.com/headrace/headrace/internal/testcluster"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

var other = fn.DefineCodec("other", fn.Text(), fn.Text(), fn.Options{})

// pauseAt makes a rule for acme that must be in force everywhere, and returns when it was.
func pauseAt(t *testing.T, cc *grpc.ClientConn, function string) time.Time {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	res, err := headracev1.NewPauseServiceClient(cc).Pause(ctx, &headracev1.PauseRequest{Tenant: "acme", Function: function, Reason: "test"})
	if err != nil || len(res.Missing) > 0 {
		t.Fatalf("pause: %v, %v", res, err)
	}
	return time.Now()
}

func resumeAt(t *testing.T, cc *grpc.ClientConn, function string) *headracev1.ResumeResponse {
	t.Helper()
	res, err := headracev1.NewPauseServiceClient(cc).Resume(t.Context(), &headracev1.ResumeRequest{Tenant: "acme", Function: function})
	if err != nil {
		t.Fatalf("resume: %v", err)
	}
	return res
}

// between counts the starts in a time, its ends not among them.
func between(j *journal, from, to time.Time) (n int) {
	for _, e := range j.notes() {
		if e.at.After(from) && e.at.Before(to) {
			n++
		}
	}
	return n
}

// One node: a paused function starts nothing, whatever comes, ends, retries and expires; another goes on; and so
// after a crash and after an orderly restart.
func TestPause(t *testing.T) {
	testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
		var starts journal
		hold := make(chan struct{})
		register := func(x *executor.Executor) {
			executor.Handle(x, upper, func(ctx context.Context, in string) (string, error) {
				starts.add(in)
				switch in {
				case "held":
					<-hold
				case "again":
					if executor.Attempt(ctx) == 1 {
						<-hold
						return "", executor.RetryAfter(fmt.Errorf("not now"), time.Second)
					}
				}
				return in, nil
			})
			executor.Handle(x, other, func(_ context.Context, in string) (string, error) { return in, nil })
		}
		c.Executor(10, "acme", register)
		cl := c.Client("acme")
		held := submit(t, cl, client.Task{Function: "upper", Payload: []byte("held")})
		again := submit(t, cl, client.Task{Function: "upper", Payload: []byte("again")})
		until(t, 5*time.Second, "two run", func() bool { return len(starts.notes()) == 2 })

		paused := pauseAt(t, c.Raw(), "upper")
		if took := time.Since(paused); took > 0 {
			t.Error(took)
		}
		var ids []string
		for i := range 400 { // more than a window
			ids = append(ids, submit(t, cl, client.Task{Function: "upper", Payload: fmt.Append(nil, i)}))
		}
		expiring := submit(t, cl, client.Task{Function: "upper", Payload: []byte("too late"), Options: client.Options{StartTTL: 3 * time.Second}})
		if info := wait(t, cl, submit(t, cl, client.Task{Function: "other", Payload: []byte("x")})); info.State != task.Succeeded {
			t.Errorf("the other function: %v", info.State)
		}
		for _, id := range []string{ids[0], ids[399]} {
			if info := get(t, cl, id); info.WaitReason != "paused by acme/upper/* (test)" || info.State != task.Queued {
				t.Errorf("%v, waits: %q", info.State, info.WaitReason)
			}
		}
		close(hold)
		if info := wait(t, cl, held); info.State != task.Succeeded {
			t.Errorf("what ran: %v", info.State)
		}
		until(t, 5*time.Second, "the retry is paused", func() bool { return get(t, cl, again).WaitReason == "paused by acme/upper/* (test)" })
		if info := wait(t, cl, expiring); info.State != task.Expired || time.Since(info.CreatedAt) > 6*time.Second {
			t.Errorf("what expires: %v after %v", info.State, time.Since(info.CreatedAt))
		}
		c.Kill()
		c.Start()
		faketime.Pass(10 * time.Second)
		c.Stop()
		c.Start()
		faketime.Pass(10 * time.Second)
		if n := between(&starts, paused, time.Now()); n != 0 {
			t.Errorf("%d starts while paused", n)
		}
		list, err := headracev1.NewPauseServiceClient(c.Raw()).ListPauses(t.Context(), &headracev1.ListPausesRequest{})
		if err != nil || len(list.Rules) != 1 || list.Rules[0].Name != "acme/upper/*" || list.Rules[0].Reason != "test" {
			t.Errorf("list: %v, %v", list, err)
		}
		res := resumeAt(t, c.Raw(), "upper")
		if len(res.Removed) != 1 || len(res.Remaining) != 0 {
			t.Errorf("resumed: %v", res)
		}
		resumed := time.Now()
		for _, id := range append(ids, again) {
			if info := wait(t, cl, id); info.State != task.Succeeded {
				t.Fatalf("after resume: %v", info.State)
			}
		}
		if took := time.Since(resumed); took > 2*time.Second {
			t.Errorf("all ran after %v", took)
		}
	})
}

// A rule that was answered holds for whoever takes over: killed, frozen and woken, cut off from the registry,
// or stopped in an orderly way.
func TestPauseHoldsAfterTakeover(t *testing.T) {
	for _, how := range []string{"kill", "freeze", "cut", "stop"} {
		t.Run(how, func(t *testing.T) {
			three(t, func(t *testing.T, c *testcluster.Several, a, b, d *testcluster.OneNode) {
				var starts journal
				a.Executor(4, "acme", func(x *executor.Executor) {
					executor.Handle(x, upper, func(_ context.Context, in string) (string, error) {
						starts.add(in)
						faketime.Pass(50 * time.Millisecond)
						return in, nil
					})
				})
				cl := b.Client("acme")
				ids := submitBatch(t, cl, slices.Repeat([]client.Task{{Function: "upper", Payload: []byte("x")}}, 600))
				until(t, 5*time.Second, "some run", func() bool { return len(starts.notes()) > 20 })
				paused := pauseAt(t, b.Raw(), "")
				wake := func() {}
				switch how {
				case "kill":
					a.Kill()
				case "freeze":
					a.Pause()
					wake = a.Resume
				case "cut":
					wake = a.CutRegistry()
				case "stop":
					a.Stop()
				}
				faketime.Pass(15 * time.Second)
				wake()
				faketime.Pass(10 * time.Second)
				if n := between(&starts, paused, time.Now()); n != 0 {
					t.Errorf("%d starts while paused", n)
				}
				ids = append(ids, submitBatch(t, cl, slices.Repeat([]client.Task{{Function: "upper", Payload: []byte("x")}}, 50))...)
				resumeAt(t, d.Raw(), "")
				for _, id := range ids {
					if info := wait(t, cl, id); info.State != task.Succeeded {
						t.Fatalf("after resume: %v", info.State)
					}
				}
			})
		})
	}
}

// An owner that does not answer keeps the answer waiting until it is certainly out of trust and somebody else
// owns its partitions; nothing starts after the answer. A caller that can't wait so long is told who is missing.
func TestPauseWaitsForOwners(t *testing.T) {
	for _, how := range []string{"freeze", "cut", "kill"} {
		t.Run(how, func(t *testing.T) {
			three(t, func(t *testing.T, c *testcluster.Several, a, b, d *testcluster.OneNode) {
				var starts journal
				b.Executor(4, "acme", func(x *executor.Executor) {
					executor.Handle(x, upper, func(_ context.Context, in string) (string, error) {
						starts.add(in)
						faketime.Pass(50 * time.Millisecond)
						return in, nil
					})
				})
				cl := b.Client("acme")
				submitBatch(t, cl, slices.Repeat([]client.Task{{Function: "upper", Payload: []byte("x")}}, 900))
				until(t, 5*time.Second, "some run", func() bool { return len(starts.notes()) > 20 })
				wake := func() {}
				switch how {
				case "freeze":
					a.Pause()
					wake = a.Resume
				case "cut":
					wake = a.CutRegistry()
				case "kill":
					a.Kill()
				}
				if how != "cut" { // that one answers its peers
					began := time.Now()
					res, err := headracev1.NewPauseServiceClient(d.Raw()).Pause(t.Context(), &headracev1.PauseRequest{Tenant: "acme", Timeout: durationpb.New(time.Second)})
					if err != nil || len(res.Missing) == 0 || res.Missing[0].NodeId != a.ID() || res.Missing[0].Address != a.Addr || len(res.Missing[0].Partitions) == 0 {
						t.Errorf("a short wait: %v, %v", res, err)
					}
					if took := time.Since(began); took > 2*time.Second {
						t.Errorf("a wait of 1 s took %v", took)
					}
				}
				began := time.Now()
				paused := pauseAt(t, d.Raw(), "")
				if took := paused.Sub(began); took > 12*time.Second {
					t.Errorf("answered after %v", took)
				} else {
					t.Logf("%s: answered after %v", how, took)
				}
				faketime.Pass(15 * time.Second)
				wake()
				faketime.Pass(10 * time.Second)
				if n := between(&starts, paused, time.Now()); n != 0 {
					t.Errorf("%d starts while paused", n)
				}
			})
		})
	}
}

// Without a registry no rule can be made, and those that are there hold.
func TestPauseWithoutRegistry(t *testing.T) {
	three(t, func(t *testing.T, c *testcluster.Several, a, b, d *testcluster.OneNode) {
		var starts journal
		b.Executor(4, "acme", func(x *executor.Executor) {
			executor.Handle(x, upper, func(_ context.Context, in string) (string, error) {
				starts.add(in)
				return in, nil
			})
			executor.Handle(x, other, func(_ context.Context, in string) (string, error) { return in, nil })
		})
		cl := b.Client("acme")
		paused := pauseAt(t, b.Raw(), "upper")
		for _, n := range c.All() {
			defer n.CutRegistry()()
		}
		submitBatch(t, cl, slices.Repeat([]client.Task{{Function: "upper"}}, 20))
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		_, err := headracev1.NewPauseServiceClient(b.Raw()).Pause(ctx, &headracev1.PauseRequest{Tenant: "acme"})
		if err == nil || !strings.Contains(err.Error(), "the registry does not answer") {
			t.Errorf("pause: %v", err)
		}
		list, err := headracev1.NewPauseServiceClient(b.Raw()).ListPauses(t.Context(), &headracev1.ListPausesRequest{Tenant: "acme"})
		if err != nil || len(list.Rules) != 1 {
			t.Errorf("list: %v, %v", list, err)
		}
		if info := wait(t, cl, submit(t, cl, client.Task{Function: "other"})); info.State != task.Succeeded {
			t.Errorf("the other function: %v", info.State)
		}
		if n := between(&starts, paused, time.Now()); n != 0 {
			t.Errorf("%d starts while paused", n)
		}
	})
}

// B076: sequences of pause (waiting, and not) and resume by three nodes at once, on empty and full queues; they end
// with a resume. What is listed is what happens, and work flows within 2 s of the last resume.
func TestB076PauseAndResumeFromAllNodes(t *testing.T) {
	three(t, func(t *testing.T, c *testcluster.Several, a, b, d *testcluster.OneNode) {
		var starts journal
		a.Executor(20, "acme", func(x *executor.Executor) {
			executor.Handle(x, upper, func(_ context.Context, in string) (string, error) {
				starts.add(in)
				return in, nil
			})
		})
		conns := []*grpc.ClientConn{a.Raw(), b.Raw(), d.Raw()}
		cl := b.Client("acme")
		r := rand.New(rand.NewPCG(76, 76))
		for round := range 60 {
			var ids []string
			if round%3 > 0 {
				ids = submitBatch(t, cl, slices.Repeat([]client.Task{{Function: "upper", Payload: []byte("x")}}, 1+r.IntN(60)))
			}
			var wg sync.WaitGroup
			for i, cc := range conns {
				steps := make([]int, 1+r.IntN(5))
				for k := range steps {
					steps[k] = r.IntN(3)
				}
				wg.Go(func() {
					for _, step := range steps {
						var err error
						switch step {
						case 0:
							_, err = headracev1.NewPauseServiceClient(cc).Pause(t.Context(), &headracev1.PauseRequest{Tenant: "acme", Reason: fmt.Sprint(i)})
						case 1:
							_, err = headracev1.NewPauseServiceClient(cc).Pause(t.Context(), &headracev1.PauseRequest{Tenant: "acme", Timeout: durationpb.New(time.Millisecond)})
						case 2:
							_, err = headracev1.NewPauseServiceClient(cc).Resume(t.Context(), &headracev1.ResumeRequest{Tenant: "acme"})
						}
						if err != nil {
							t.Errorf("step %d: %v", step, err)
						}
					}
				})
			}
			wg.Wait()
			if round%2 == 0 { // paused for sure
				paused := pauseAt(t, conns[r.IntN(3)], "")
				ids = append(ids, submitBatch(t, cl, slices.Repeat([]client.Task{{Function: "upper", Payload: []byte("x")}}, 5))...)
				faketime.Pass(500 * time.Millisecond)
				if n := between(&starts, paused, time.Now()); n != 0 {
					t.Fatalf("round %d: %d starts while paused", round, n)
				}
			}
			resumeAt(t, conns[r.IntN(3)], "")
			resumeAt(t, conns[r.IntN(3)], "") // once more is no error
			resumed := time.Now()
			for i, cc := range conns {
				list, err := headracev1.NewPauseServiceClient(cc).ListPauses(t.Context(), &headracev1.ListPausesRequest{Tenant: "acme"})
				if err != nil || len(list.Rules) != 0 {
					t.Errorf("round %d: node %d lists %v, %v", round, i, list, err)
				}
			}
			for _, id := range append(ids, submit(t, cl, client.Task{Function: "upper", Payload: []byte("x")})) {
				if info := wait(t, cl, id); info.State != task.Succeeded {
					t.Fatalf("round %d: after resume: %v", round, info.State)
				}
			}
			if took := time.Since(resumed); took > 2*time.Second {
				t.Errorf("round %d: work flows after %v", round, took)
			}
		}
	})
}

// Wrong rules are refused with the field's name, and change nothing.
func TestPauseRefuses(t *testing.T) {
	testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
		cc := headracev1.NewPauseServiceClient(c.Raw())
		past := timestamppb.New(time.Now().Add(-time.Second))
		for field, req := range map[string]*headracev1.PauseRequest{
			"tenant":      {Tenant: "*"},
			"function":    {Tenant: "acme", Function: "*"},
			"band":        {Tenant: "acme", Band: 4},
			"reason":      {Tenant: "acme", Reason: "a\nb"},
			"until_time":  {Tenant: "acme", UntilTime: past},
			"until_time ": {Tenant: "acme", UntilTime: &timestamppb.Timestamp{Nanos: -1}},
			"timeout":     {Tenant: "acme", Timeout: durationpb.New(time.Hour)},
		} {
			_, err := cc.Pause(t.Context(), req)
			if info := grpcx.Read(err); info.Code != codes.InvalidArgument || info.Metadata[grpcx.MetaField] != strings.TrimSpace(field) || info.Metadata[grpcx.MetaWant] == "" {
				t.Errorf("%s: %+v", field, info)
			}
		}
		for field, req := range map[string]*headracev1.ResumeRequest{
			"tenant":   {},
			"function": {Tenant: "acme", Function: "*"},
			"band":     {Tenant: "acme", Band: -1},
			"all":      {Tenant: "acme", Function: "f", All: true},
		} {
			_, err := cc.Resume(t.Context(), req)
			if info := grpcx.Read(err); info.Code != codes.InvalidArgument || info.Metadata[grpcx.MetaField] != field {
				t.Errorf("resume, %s: %+v", field, info)
			}
		}
		if list, err := cc.ListPauses(t.Context(), &headracev1.ListPausesRequest{}); err != nil || len(list.Rules) != 0 {
			t.Errorf("there are rules: %v, %v", list, err)
		}
	})
}
