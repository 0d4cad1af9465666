package testcluster_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/headrace/headrace/executor"
	"github.com/headrace/headrace/fn"
	"github.com/headrace/headrace/internal/faketime"
	"github.com/headrace/headrace/internal/testcluster"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
)

// One floods at five times what is done, with a drain_max of 10 s; ten others and a batch beside him are never refused; his backlog
// stays where he wants it; his limit goes within two intervals of his end.
func TestFloodIsHeldAtTheDoor(t *testing.T) {
	testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
		l := newLimits(t, c)
		l.set(&headracev1.SetTenantRequest{Tenant: "flood", DrainMaxMillis: proto.Int64(10_000)})
		c.Executor(10, "flood", func(x *executor.Executor) { // 100 tasks a second
			work := func(context.Context, *executor.Task) (executor.Result, error) {
				faketime.Pass(100 * time.Millisecond)
				return executor.Result{}, nil
			}
			x.HandleRaw("f", fn.Options{}, work)
			for i := range 10 {
				x.HandleRawTenant(fmt.Sprint("light-", i), "f", fn.Options{}, work)
			}
		})
		if got, refused := l.batch("night", "", 1000, false); len(got) != 1000 {
			t.Fatalf("an overnight batch is refused: %v", refused)
		}
		worst, settled, accepted, limited := int64(0), int64(0), 0, false
		for tick := range 800 { // of 100 ms
			got, _ := l.batch("flood", "", 50, false)
			if tick >= 600 { // he fills up while he has 100/s for himself; that is gone by now
				accepted += len(got)
			}
			if tick%2 == 0 { // 5 a second each: half of all there is
				for i := range 10 {
					if _, refused := l.batch(fmt.Sprint("light-", i), "", 1, false); len(refused) > 0 {
						t.Fatalf("light-%d is refused: %v", i, refused[0])
					}
				}
			}
			faketime.Pass(100 * time.Millisecond)
			if tick%10 == 0 {
				s, err := l.tenants.GetTenant(t.Context(), &headracev1.GetTenantRequest{Tenant: "flood"})
				if err != nil {
					t.Fatal(err)
				}
				if worst = max(worst, s.Tenant.Ready); tick >= 600 {
					settled = max(settled, s.Tenant.Ready)
				}
				limited = limited || s.Tenant.Limit.GetReason() == "tenant_drain"
			}
		}
		rate := float64(accepted) / 20
		t.Logf("worst backlog %d, %d at the end, with %.1f/s accepted", worst, settled, rate)
		if !limited || worst > 1250 || settled > 1000 || rate < 42.5 || rate > 57.5 {
			t.Errorf("limited: %v; worst backlog %d, %d at the end, want about 10 s of 50/s; accepted %.1f/s, want 50", limited, worst, settled, rate)
		}
		faketime.Pass(10 * time.Second)
		if s, err := l.tenants.GetTenant(t.Context(), &headracev1.GetTenantRequest{Tenant: "flood"}); err != nil || s.Tenant.Limit != nil {
			t.Errorf("two intervals after the end: %v, %v", s, err)
		}
	})
}
