package testcluster_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/dispatcher"
	"github.com/headrace/headrace/internal/faketime"
	"github.com/headrace/headrace/internal/grpcx"
	"github.com/headrace/headrace/internal/testcluster"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/store/memstore"
)

// once submits one task in one call, as a client without our SDK would, and returns how long that took.
func once(t *testing.T, cc *grpc.ClientConn, tenant, id, requestID string, most time.Duration) (took time.Duration, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), most)
	defer cancel()
	began := time.Now()
	_, err = headracev1.NewTaskServiceClient(cc).Submit(ctx, &headracev1.SubmitRequest{Tenant: tenant, RequestId: []byte(requestID),
		Task: &headracev1.TaskSpec{Function: "f", ClientId: id}})
	return time.Since(began), err
}

// The only dispatcher is killed and started again: what is submitted meanwhile is held by the node that takes calls, and stored as soon
// as somebody can. One call is enough, also for a client without our SDK.
func TestSubmitsAreHeldDuringATakeover(t *testing.T) {
	testcluster.RunSeveral(t, 1, 1, func(t *testing.T, c *testcluster.Several) {
		b := c.All()[0]
		c.Config.Roles = []string{dispatcher.RoleAPI}
		cc := c.Start().Raw()
		for i := range 5 {
			if _, err := once(t, cc, "acme", fmt.Sprint("first-", i), "", 5*time.Second); err != nil {
				t.Fatal(err)
			}
		}
		b.Kill()
		faketime.Pass(100 * time.Millisecond) // what is sent before its connection is known to be broken has an unknown outcome
		type end struct {
			took time.Duration
			err  error
		}
		ends := make(chan end, 41)
		for i := range 40 {
			go func() {
				took, err := once(t, cc, "acme", []string{"", fmt.Sprint("id-", i)}[i%2], fmt.Sprintf("request-%08d", i), 15*time.Second)
				ends <- end{took, err}
			}()
		}
		short := make(chan error, 10) // they give up meanwhile, each at another point of a try
		for i := range cap(short) {
			go func() {
				most := 2*time.Second + time.Duration(i)*70*time.Millisecond
				took, err := once(t, cc, "acme", fmt.Sprint("short-", i), "", most)
				if grpcx.Read(err).Metadata[grpcx.MetaStored] == grpcx.StoredNo && took >= time.Second {
					err = nil
				} else {
					err = fmt.Errorf("a call of %v was answered after %v: %w", most, took, err)
				}
				short <- err
			}()
		}
		for range cap(short) {
			if err := <-short; err != nil {
				t.Error(err)
			}
		}
		c.Config.Roles = nil
		c.Restart(b)
		longest := time.Duration(0)
		for range 40 {
			e := <-ends
			if e.err != nil {
				t.Errorf("after %v: %v", e.took, e.err)
			}
			longest = max(longest, e.took)
		}
		t.Logf("the longest took %v", longest)
		if longest < 4*time.Second || longest > 8*time.Second {
			t.Errorf("one took %v: want about a lease", longest)
		}
	})
}

// One of two databases is away for a minute. What has a partition in the other goes there at once; what has none is
// answered soon, and told which database that is for. Reads are answered in time, and say so too.
func TestOneDatabaseAway(t *testing.T) {
	three(t, func(t *testing.T, c *testcluster.Several, a, b, d *testcluster.OneNode) {
		cc := d.Raw()
		for i := range 30 {
			if _, err := once(t, cc, "acme", "", fmt.Sprintf("before-%09d", i), time.Second); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := once(t, cc, "acme", "mine", "", time.Second); err != nil {
			t.Fatal(err)
		}
		home := placed(t, a, "acme").Placement.DirectoryDatabase
		page, err := d.Client("acme").List(t.Context(), client.ListOptions{PageSize: 100})
		if err != nil {
			t.Fatal(err)
		}
		in := databases(t, a)
		for _, n := range c.All() {
			n.Fault(func(database int, op string) memstore.Fault {
				if fmt.Sprint("db", database+1) == home {
					return memstore.Fault{Err: fmt.Errorf("connection refused: %w", store.ErrUnavailable)}
				}
				return memstore.Fault{}
			})
		}
		faketime.Pass(5 * time.Second)

		// Without the SDK: by one call, if its request id allows the other database, else told to take another id.
		stored, elsewhere := 0, 0
		for i := range 60 {
			took, err := once(t, cc, "acme", "", fmt.Sprintf("meanwhile-%06d", i), 10*time.Second)
			switch info := grpcx.Read(err); {
			case took > 500*time.Millisecond:
				t.Errorf("submit %d took %v: %v", i, took, err)
			case err == nil:
				stored++
			case info.Reason == "candidates_away" && info.Metadata[grpcx.MetaStored] == grpcx.StoredNo:
				elsewhere++
			default:
				t.Errorf("submit %d: %v", i, err)
			}
		}
		t.Logf("%d stored at once, %d told to take another id", stored, elsewhere)
		if stored < 30 || elsewhere == 0 {
			t.Errorf("%d stored, %d told to take another id", stored, elsewhere)
		}
		for i := range 30 { // no id at all: the node takes another
			if took, err := once(t, cc, "acme", "", "", 10*time.Second); err != nil || took > 500*time.Millisecond {
				t.Errorf("submit %d without an id took %v: %v", i, took, err)
			}
		}
		cl := d.Client("acme")
		for i := range 60 {
			began := time.Now()
			submit(t, cl, client.Task{Function: "f"})
			if took := time.Since(began); took > 500*time.Millisecond {
				t.Errorf("submit %d through the SDK took %v", i, took)
			}
		}
		names := func(what string, most time.Duration, call func(context.Context) error) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			began := time.Now()
			info := grpcx.Read(call(ctx))
			if took := time.Since(began); took > most || info.Reason != "database_unavailable" || info.Metadata[grpcx.MetaDatabase] != home ||
				!strings.Contains(info.Message, home) {
				t.Errorf("%s: after %v: %+v", what, took, info)
			}
		}
		tasks := headracev1.NewTaskServiceClient(cc)
		names("a task with the client's id", time.Second, func(ctx context.Context) error {
			_, err := tasks.Submit(ctx, &headracev1.SubmitRequest{Tenant: "acme", Task: &headracev1.TaskSpec{Function: "f", ClientId: "another"}})
			return err
		})
		byID := func(id string) *headracev1.TaskRef { return &headracev1.TaskRef{Ref: &headracev1.TaskRef_Id{Id: id}} }
		mine := &headracev1.TaskRef{Ref: &headracev1.TaskRef_ClientId{ClientId: "mine"}}
		looked := 0
		for _, info := range page.Tasks {
			if in[info.Partition] != home || looked > 2 {
				continue
			}
			looked++
			names("get", 4*time.Second, func(ctx context.Context) error {
				_, err := tasks.Get(ctx, &headracev1.GetRequest{Tenant: "acme", Task: byID(info.ID)})
				return err
			})
			names("cancel", 5*time.Second, func(ctx context.Context) error {
				_, err := tasks.Cancel(ctx, &headracev1.CancelRequest{Tenant: "acme", Task: byID(info.ID)})
				return err
			})
		}
		if looked == 0 {
			t.Error("the tenant has no task in the database")
		}
		names("get by the client's id", 4*time.Second, func(ctx context.Context) error {
			_, err := tasks.Get(ctx, &headracev1.GetRequest{Tenant: "acme", Task: mine})
			return err
		})
		began := time.Now()
		some, err := cl.List(t.Context(), client.ListOptions{PageSize: 1000})
		if err != nil || len(some.Tasks) == 0 || !strings.Contains(strings.Join(some.Unreachable, " "), "database "+home) || time.Since(began) > 4*time.Second {
			t.Errorf("a list after %v: without %v, %v", time.Since(began), some.Unreachable, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		res, err := headracev1.NewPauseServiceClient(cc).Pause(ctx, &headracev1.PauseRequest{Tenant: "acme", Function: "f"})
		if err != nil || len(res.Missing) == 0 {
			t.Errorf("a pause: %v, %v", res, err)
		} else {
			for _, m := range res.Missing {
				for _, p := range m.Partitions {
					if in[p] != home || !strings.Contains(m.Why, home) {
						t.Errorf("partition %d of %s is missing: %s", p, in[p], m.Why)
					}
				}
			}
		}
		for _, n := range c.All() {
			n.Fault(nil)
		}
		until(t, 20*time.Second, "everything is there again", func() bool {
			page, err := cl.List(t.Context(), client.ListOptions{PageSize: 1000})
			return err == nil && len(page.Unreachable) == 0 && len(page.Tasks) == 31+stored+30+60
		})
	})
}
