package testcluster_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/executor"
	"github.com/headrace/headrace/fn"
	"github.com/headrace/headrace/internal/faketime"
	"github.com/headrace/headrace/internal/testcluster"
	"github.com/headrace/headrace/proto/externalscaler"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

// scaledObject is what KEDA says of a ScaledObject with that metadata: "key=value …".
func scaledObject(metadata string) *externalscaler.ScaledObjectRef {
	ref := &externalscaler.ScaledObjectRef{Name: "mailer", Namespace: "prod", ScalerMetadata: map[string]string{"scalerAddress": "headrace:7070"}}
	for _, kv := range strings.Fields(metadata) {
		k, v, _ := strings.Cut(kv, "=")
		ref.ScalerMetadata[k] = v
	}
	return ref
}

// A backlog on several nodes activates a scaler that listens, wherever it is asked; the metric is what the formula says, of
// all nodes; executors are listed with what their end would cost; when nothing is left it says so, and only then.
func TestScalerSeesAllNodes(t *testing.T) {
	testcluster.RunSeveral(t, 3, 1, func(t *testing.T, c *testcluster.Several) {
		nodes := c.All()
		balanced(t, 1, 4, nodes...)
		ref := scaledObject("tenant=acme function=mail slots=10 activation=5")
		scaler := externalscaler.NewExternalScalerClient(nodes[2].Raw())
		stream, err := scaler.StreamIsActive(t.Context(), ref)
		if err != nil {
			t.Fatal(err)
		}
		pushed := func() bool {
			t.Helper()
			m, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			return m.Result
		}
		if pushed() {
			t.Fatal("active at once, with nothing to do")
		}
		spec, err := scaler.GetMetricSpec(t.Context(), ref)
		if err != nil || len(spec.MetricSpecs) != 1 || spec.MetricSpecs[0].TargetSizeFloat != 8 || spec.MetricSpecs[0].TargetSize != 8 || spec.MetricSpecs[0].MetricName != "headrace-acme-mail" {
			t.Fatalf("spec %v, %v", spec, err)
		}
		metric := func() float64 {
			t.Helper()
			a, err := scaler.IsActive(t.Context(), ref)
			if err != nil {
				t.Fatal(err)
			}
			m, err := scaler.GetMetrics(t.Context(), &externalscaler.GetMetricsRequest{ScaledObjectRef: ref, MetricName: "headrace-acme-mail"})
			if err != nil || len(m.MetricValues) != 1 || m.MetricValues[0].MetricName != "headrace-acme-mail" {
				t.Fatalf("metrics %v, %v", m, err)
			}
			v := m.MetricValues[0]
			if (v.MetricValueFloat > 0) != a.Result || float64(v.MetricValue) < v.MetricValueFloat {
				t.Fatalf("active %v, metric %v", a.Result, v)
			}
			return v.MetricValueFloat
		}
		if got := metric(); got != 0 {
			t.Errorf("metric %v with nothing to do", got)
		}

		cl := nodes[0].Client("acme")
		began := time.Now()
		for range 6 {
			submitBatch(t, cl, slicesOf(client.Task{Function: "mail"}, 1000))
		}
		if !pushed() {
			t.Error("not active with 6,000 tasks")
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("active after %v", took)
		}
		faketime.Pass(10 * time.Minute) // what came in is forgotten: 6000 · 1 s / 300 s
		if got := metric(); got < 20 || got > 20.1 {
			t.Errorf("metric %v for 6,000 tasks of a second, want 20", got)
		}

		release := make(chan struct{})
		for range 2 {
			nodes[0].Executor(10, "acme", func(x *executor.Executor) {
				raw(x, "mail", fn.Options{}, func(ctx context.Context, _ *executor.Task) ([]byte, error) {
					select {
					case <-release:
						return nil, nil
					case <-ctx.Done():
						return nil, context.Cause(ctx)
					}
				})
			})
		}
		pool := func() *headracev1.Pool {
			t.Helper()
			res, err := headracev1.NewPoolServiceClient(nodes[1].Raw()).ListPools(t.Context(), &headracev1.ListPoolsRequest{Tenant: "acme"})
			if err != nil || len(res.Pools) != 1 || len(res.MissingNodes) != 0 {
				t.Fatalf("pools %v, %v", res, err)
			}
			return res.Pools[0]
		}
		until(t, 10*time.Second, "both executors are full", func() bool { p := pool(); return p.Running == 20 && p.Slots == 20 })
		faketime.Pass(time.Minute)
		p := pool()
		// 5,980 tasks of a second need 20 slots, as many as run: 20/(10·0.8).
		if p.Name != "mail" || p.Waiting != 5980 || p.Desired != 3 || p.DesiredNow != 3 || p.Why != "running" || len(p.Executors) != 2 {
			t.Errorf("pool %v", p)
		}
		for i, x := range p.Executors {
			if x.Running != 10 || x.DrainOrder != uint32(i+1) || x.PodDeletionCost < 550 || x.PodDeletionCost > 800 {
				t.Errorf("executor %v, want ten tries of a minute", x)
			}
		}
		if _, err := headracev1.NewPoolServiceClient(nodes[1].Raw()).ListPools(t.Context(), &headracev1.ListPoolsRequest{PageSize: 1001}); grpcstatus.Code(err) != codes.InvalidArgument {
			t.Errorf("a page of 1,001: %v", err)
		}

		close(release)
		if pushed() {
			t.Error("told to be active twice")
		}
		if got := metric(); got != 0 {
			t.Errorf("metric %v after the last task", got)
		}
	})
}

func slicesOf(tk client.Task, n int) []client.Task {
	out := make([]client.Task, n)
	for i := range out {
		out[i] = tk
	}
	return out
}

// While a node that owns something is silent, the scaler does not answer 0: it does not answer.
func TestScalerDoesNotErrWhileANodeIsSilent(t *testing.T) {
	testcluster.RunSeveral(t, 2, 1, func(t *testing.T, c *testcluster.Several) {
		nodes := c.All()
		balanced(t, 2, 4, nodes...)
		scaler := externalscaler.NewExternalScalerClient(nodes[0].Raw())
		ref := scaledObject("function=mail slots=1")
		ask := func(as func(error) bool) bool { // both: one may be asked just before the node is heard, the other just after
			_, metrics := scaler.GetMetrics(t.Context(), &externalscaler.GetMetricsRequest{ScaledObjectRef: ref})
			_, active := scaler.IsActive(t.Context(), ref)
			return as(metrics) && as(active)
		}
		answered := func(err error) bool { return err == nil }
		until(t, 5*time.Second, "the scaler answers", func() bool { return ask(answered) })
		// Its lease goes with it, but with the registry out of reach for the other node too nobody takes over.
		heal := nodes[0].CutRegistry()
		nodes[1].Pause()
		until(t, 40*time.Second, "the scaler says that it does not know", func() bool {
			return ask(func(err error) bool {
				return grpcstatus.Code(err) == codes.Unavailable && strings.Contains(err.Error(), nodes[1].ID())
			})
		})
		nodes[1].Resume()
		heal()
		until(t, 20*time.Second, "the scaler answers again", func() bool { return ask(answered) })
	})
}

// Bad metadata is refused with the field and what it may be.
func TestScalerRefusesBadMetadata(t *testing.T) {
	testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
		scaler := externalscaler.NewExternalScalerClient(c.Raw())
		for _, s := range []struct{ metadata, want string }{
			{"slots=1", "function: want a function, or pool instead"},
			{"slots=1 function=a pool=b", `pool: "b" given, want none beside a function`},
			{"slots=1 function=A", `function: "A" given, want `},
			{"slots=1 function=a+b", `function: "a+b" given, want one name; pool takes several, joined by +`},
			{"slots=1 pool=a+B", `pool: "B" given, want `},
			{"slots=1 function=a tenant=..", `tenant: ".." given, want `},
			{"function=a", "slots: want 1 to 100000, a whole number"},
			{"function=a slots=0", `slots: "0" given, want 1 to 100000, a whole number`},
			{"function=a slots=1.5", `slots: "1.5" given, want 1 to 100000, a whole number`},
			{"function=a slots=many", `slots: "many" given, want 1 to 100000, a whole number`},
			{"function=a slots=1 targetDrainSeconds=0", `targetDrainSeconds: "0" given, want 1 to 86400`},
			{"function=a slots=1 targetDrainSeconds=NaN", `targetDrainSeconds: "NaN" given, want 1 to 86400`},
			{"function=a slots=1 utilization=80", `utilization: "80" given, want 0.05 to 1`},
			{"function=a slots=1 activation=-1", `activation: "-1" given, want 0 to 1000000000, a whole number`},
		} {
			ref := scaledObject(s.metadata)
			_, err1 := scaler.IsActive(t.Context(), ref)
			_, err2 := scaler.GetMetricSpec(t.Context(), ref)
			_, err3 := scaler.GetMetrics(t.Context(), &externalscaler.GetMetricsRequest{ScaledObjectRef: ref})
			stream, err4 := scaler.StreamIsActive(t.Context(), ref)
			if err4 == nil {
				_, err4 = stream.Recv()
			}
			for i, err := range []error{err1, err2, err3, err4} {
				if grpcstatus.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), s.want) {
					t.Errorf("%s: call %d: %v, want %s", s.metadata, i, err, s.want)
				}
			}
		}
		if _, err := scaler.GetMetrics(t.Context(), nil); grpcstatus.Code(err) != codes.InvalidArgument {
			t.Errorf("without anything: %v", err)
		}
		spec, err := scaler.GetMetricSpec(t.Context(), scaledObject("pool=b+a slots=1 utilization=0.5 targetDrainSeconds=1 activation=0"))
		if err != nil || spec.MetricSpecs[0].TargetSizeFloat != 0.5 || spec.MetricSpecs[0].TargetSize != 1 || spec.MetricSpecs[0].MetricName != "headrace-default-a-b" {
			t.Errorf("spec %v, %v", spec, err)
		}
	})
}

// A pool whose downstream throttles asks for no more executors, whatever waits.
func TestPoolLimitedByItsDownstream(t *testing.T) {
	testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
		s := &service{capacity: 10, after: 200 * time.Millisecond, until: map[task.ID]time.Time{}}
		c.Executor(20, "acme", func(x *executor.Executor) { raw(x, "pay", fn.Options{Downstream: "bank"}, s.call) })
		cl := c.Client("acme")
		for range 40 {
			submitBatch(t, cl, slicesOf(client.Task{Function: "pay"}, 1000))
		}
		faketime.Pass(time.Minute)
		list := func(drain time.Duration) string {
			t.Helper()
			req := &headracev1.ListPoolsRequest{Tenant: "acme", Function: "pay", TargetDrain: durationpb.New(drain)}
			res, err := headracev1.NewPoolServiceClient(c.Raw()).ListPools(t.Context(), req)
			if err != nil || len(res.Pools) != 1 {
				t.Fatalf("pools %v, %v", res, err)
			}
			return fmt.Sprint(res.Pools[0].DesiredNow, " ", res.Pools[0].Why)
		}
		// 34,000 tasks of 0.1 s in ten seconds would need 340 slots: 22 executors.
		if got := list(10 * time.Second); got != "1 downstream" {
			t.Errorf("%s, want 1 downstream", got)
		}
	})
}
