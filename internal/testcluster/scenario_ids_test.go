package testcluster_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/executor"
	"github.com/headrace/headrace/fn"
	"github.com/headrace/headrace/internal/faketime"
	"github.com/headrace/headrace/internal/grpcx"
	"github.com/headrace/headrace/internal/testcluster"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

// A client id is taken in every state of its task, and leads to it; with another payload the answer names it
// (B054). A retry is no second submit: it keeps its id and runs (B025). All also after a crash of the node.
func TestScenarioClientIDInEveryState(t *testing.T) {
	testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
		quick := fn.Options{Backoff: fn.Backoff{Base: time.Second, Max: time.Second}}
		hourly := fn.Options{Backoff: fn.Backoff{Base: time.Hour, Max: time.Hour}}
		var flaky atomic.Int32
		c.Executor(10, "acme", func(x *executor.Executor) {
			raw(x, "ok", quick, func(context.Context, *executor.Task) ([]byte, error) { return nil, nil })
			raw(x, "fails", quick, func(context.Context, *executor.Task) ([]byte, error) { return nil, executor.NonRetryable(errCustom) })
			raw(x, "hourly", hourly, func(context.Context, *executor.Task) ([]byte, error) { return nil, errCustom })
			raw(x, "runs", quick, func(ctx context.Context, _ *executor.Task) ([]byte, error) { <-ctx.Done(); return nil, ctx.Err() })
			raw(x, "flaky", quick, func(context.Context, *executor.Task) ([]byte, error) {
				if flaky.Add(1) < 3 {
					return nil, errCustom
				}
				return nil, nil
			})
		})
		cl := c.Client("acme")
		first := map[task.State]string{}
		again := map[task.State]client.Task{}
		for state, tk := range map[task.State]client.Task{
			task.Scheduled: {Function: "ok", Options: client.Options{Delay: time.Hour}},
			task.Queued:    {Function: "nobody"},
			task.Running:   {Function: "runs"},
			task.Retrying:  {Function: "hourly"},
			task.Succeeded: {Function: "flaky", Options: client.Options{MaxAttempts: 5}},
			task.Failed:    {Function: "fails"},
			task.Cancelled: {Function: "nobody"},
			task.Expired:   {Function: "nobody", Options: client.Options{StartTTL: time.Second}},
		} {
			tk.ID, tk.Payload = "key of "+state.String(), []byte("p")
			first[state], again[state] = submit(t, cl, tk), tk
			if state == task.Cancelled {
				if _, _, err := cl.Cancel(t.Context(), client.ByID(first[state]), ""); err != nil {
					t.Fatal(err)
				}
			}
		}
		faketime.Pass(5 * time.Second) // of the bubble
		for round := range 2 {
			for state, id := range first {
				if info, err := cl.Get(t.Context(), client.ByClientID(again[state].ID)); err != nil || info.State != state || info.ID != id {
					t.Fatalf("round %d: %v is %+v, %v", round, state, info, err)
				}
				s, err := cl.Submit(t.Context(), again[state])
				if err != nil || s.ID != id || !s.Deduplicated {
					t.Errorf("round %d: again while %v: %+v, %v", round, state, s, err)
				}
				for what, change := range map[string]func(*client.Task){
					"payload": func(tk *client.Task) { tk.Payload = []byte("q") }, "function": func(tk *client.Task) { tk.Function = "other" },
				} {
					tk := again[state]
					change(&tk)
					var dup *client.DuplicateError
					if s, err := cl.Submit(t.Context(), tk); !errors.As(err, &dup) || dup.ExistingID != id {
						t.Errorf("round %d: another %s while %v: %+v, %v", round, what, state, s, err)
					}
				}
			}
			if round == 0 {
				c.Kill()
				c.Start()
				faketime.Pass(5 * time.Second) // of the bubble
			}
		}
		if n := flaky.Load(); n != 3 {
			t.Errorf("the flaky one started %d times", n)
		}
		n := 0
		for _, err := range cl.ListAll(t.Context(), client.ListOptions{}) {
			if err != nil {
				t.Fatal(err)
			}
			n++
		}
		if n != len(first) {
			t.Errorf("%d tasks of %d ids", n, len(first))
		}
	})
}

// Five callers at once use one id, the node is killed amid it, again and again: there is one task, and who got
// an id can read it (B005).
func TestScenarioOneIDOfManyCallers(t *testing.T) {
	testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
		for round := range 40 {
			key := fmt.Sprint("k", round)
			var wg sync.WaitGroup
			ids := make([]string, 5)
			for i := range ids {
				cl := c.Client("acme")
				wg.Go(func() {
					faketime.Pass(time.Duration(i*round) * time.Millisecond / 20) // of the bubble
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					s, err := cl.Submit(ctx, client.Task{Function: "f", Options: client.Options{ID: key}})
					if err != nil {
						t.Errorf("round %d: %v", round, err)
					}
					ids[i] = s.ID
				})
			}
			faketime.Pass(time.Duration(round) * time.Millisecond / 10) // of the bubble
			c.Kill()
			c.Start()
			wg.Wait()
			cl := c.Client("acme")
			for _, id := range ids {
				if info := get(t, cl, id); id != ids[0] || info.ClientID != key {
					t.Fatalf("round %d: ids %v, %+v", round, ids, info)
				}
			}
		}
	})
}

// Ids are bytes: what looks alike, or is reserved elsewhere, names its own task in every call (B084, B086).
// Names of functions and tenants have one narrow pattern.
func TestScenarioIDsAreBytes(t *testing.T) {
	testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
		cl := c.Client("acme")
		names := []string{"a/b", "a%2Fb", "a%252Fb", "a b", "a+b", "a#b?c=d", "it's", "..", ".", "%", "+", "a//b", "(x) (y)", "\U0001F600", "a\u200f", "a ", "a", " a",
			"null", "0", "caf\u00e9", "cafe\u0301", "Straße", "STRASSE", "K", "\u212a", "I", "\u0131", "i", "A", "a\u200d", "\ufeff", "*", "'; --", "../../etc", "=1+1", "<b>",
			strings.Repeat("x", 256), strings.Repeat("é", 128)}
		ids := map[string]string{}
		for _, name := range names {
			ids[name] = submit(t, cl, client.Task{Function: "f", Payload: []byte(name), Options: client.Options{ID: name, Labels: map[string]string{"k": name[:min(len(name), 254)]}}})
		}
		for _, name := range names {
			info, err := cl.Get(t.Context(), client.ByClientID(name))
			if err != nil || info.ID != ids[name] || info.ClientID != name || string(info.Payload) != name {
				t.Errorf("get %q: %+v, %v", name, info, err)
			}
			var found []string
			for info, err := range cl.ListAll(t.Context(), client.ListOptions{Label: "k=" + name[:min(len(name), 254)]}) {
				if err != nil {
					t.Fatal(err)
				}
				found = append(found, info.ID)
			}
			if len(found) != 1 || found[0] != ids[name] {
				t.Errorf("label %q finds %v, want %s", name, found, ids[name])
			}
		}
		for i, name := range names {
			if _, info, err := cl.Cancel(t.Context(), client.ByClientID(name), ""); err != nil || info.ID != ids[name] {
				t.Errorf("cancel %q: %+v, %v", name, info, err)
			}
			if p, err := cl.List(t.Context(), client.ListOptions{State: task.Cancelled, PageSize: 1000}); err != nil || len(p.Tasks) != i+1 {
				t.Fatalf("after the cancel of %q %d are cancelled, %v", name, len(p.Tasks), err)
			}
		}
		for _, bad := range []string{strings.Repeat("x", 257), strings.Repeat("é", 128) + "x", "a\x00", "\xff", "a\n"} {
			var field *task.FieldError
			if _, err := cl.Submit(t.Context(), client.Task{Function: "f", Options: client.Options{ID: bad}}); !errors.As(err, &field) {
				t.Errorf("id %.20q: %v", bad, err)
			}
		}
		for _, name := range []string{"a/b", "A", "caf\u00e9", "\u212a", "a ", "a\x00", "..", ".a", strings.Repeat("f", 64), "*"} {
			var field *task.FieldError
			if _, err := cl.Submit(t.Context(), client.Task{Function: name}); !errors.As(err, &field) {
				t.Errorf("function %.20q: %v", name, err)
			}
		}
	})
}

// A page token is good for its tenant and filter only, and not when somebody changed it (B088).
func TestScenarioPageTokens(t *testing.T) {
	testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
		cl := c.Client("acme")
		tasks := make([]client.Task, 300)
		for i := range tasks {
			tasks[i] = client.Task{Function: "f", Options: client.Options{Labels: map[string]string{"even": fmt.Sprint(i%2 == 0)}}}
		}
		want := map[string]bool{}
		for _, id := range submitBatch(t, cl, tasks) {
			want[id] = true
		}
		for _, o := range []client.ListOptions{{PageSize: 1}, {PageSize: 7, Function: "f"}, {PageSize: 100, State: task.Queued}, {PageSize: 49, Label: "even=true"}} {
			n := len(want)
			if o.Label != "" {
				n /= 2
			}
			seen := map[string]bool{}
			for info, err := range cl.ListAll(t.Context(), o) {
				if err != nil {
					t.Fatal(err)
				}
				if seen[info.ID] || !want[info.ID] {
					t.Fatalf("%+v: %s again or unknown", o, info.ID)
				}
				seen[info.ID] = true
			}
			if len(seen) != n {
				t.Errorf("%+v: %d tasks, want %d", o, len(seen), n)
			}
		}
		p, err := cl.List(t.Context(), client.ListOptions{PageSize: 10})
		if err != nil || p.Next == "" {
			t.Fatal(err)
		}
		refused := func(what string, cl *client.Client, o client.ListOptions) {
			t.Helper()
			var field *task.FieldError
			if p, err := cl.List(t.Context(), o); !errors.As(err, &field) || field.Field != "page_token" {
				t.Errorf("%s: %d tasks, %v", what, len(p.Tasks), err)
			}
		}
		refused("another tenant", c.Client("other"), client.ListOptions{PageToken: p.Next})
		refused("another filter", cl, client.ListOptions{PageToken: p.Next, Function: "f"})
		refused("cut", cl, client.ListOptions{PageToken: p.Next[:len(p.Next)-2]})
		for i := range len(p.Next) {
			b := []byte(p.Next)
			b[i] = "AB"[min(1, int(b[i]^'B'))&1]
			if changed := string(b); changed != p.Next && !sameBytes(changed, p.Next) {
				refused(fmt.Sprint("changed at ", i), cl, client.ListOptions{PageToken: changed})
			}
		}
	})
}

// sameBytes reports whether two texts of base64 differ in unused bits only.
func sameBytes(a, b string) bool {
	for _, enc := range []*base64.Encoding{base64.RawURLEncoding, base64.RawStdEncoding, base64.URLEncoding, base64.StdEncoding} {
		x, err1 := enc.DecodeString(a)
		y, err2 := enc.DecodeString(b)
		if err1 == nil && err2 == nil && string(x) == string(y) {
			return true
		}
	}
	return false
}

// Every call that names a tenant, also one that is added tomorrow, refuses an empty or odd one instead of
// falling back to another (B147).
func TestScenarioEveryCallNeedsItsTenant(t *testing.T) {
	testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
		cc := c.Raw()
		calls := 0
		for _, file := range []protoreflect.FileDescriptor{headracev1.File_headrace_v1_task_service_proto, headracev1.File_headrace_v1_executor_service_proto, headracev1.File_headrace_v1_cluster_service_proto} {
			for i := range file.Services().Len() {
				methods := file.Services().Get(i).Methods()
				for j := range methods.Len() {
					m := methods.Get(j)
					if m.Input().Fields().ByName("tenant") == nil {
						continue
					}
					calls++
					for _, tenant := range []string{"", " ", "*", "ACME", "acme ", "acme/other", "acme,other", "..", strings.Repeat("t", 64)} {
						if info := grpcx.Read(call(t, cc, m, tenant)); info.Code != codes.InvalidArgument || info.Metadata[grpcx.MetaField] != "tenant" {
							t.Errorf("%s of tenant %q: %+v", m.FullName(), tenant, info)
						}
					}
				}
			}
		}
		if calls < 9 {
			t.Errorf("%d calls name a tenant: the test looks at too few", calls)
		}
		// A session names tenants in its declarations.
		for _, tenant := range []string{"", "*", "ACME"} {
			s, err := headracev1.NewExecutorServiceClient(cc).Session(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Send(&headracev1.SessionRequest{Hello: &headracev1.Hello{ExecutorId: make([]byte, 16), Slots: 1, Functions: []*headracev1.FunctionDeclaration{{Tenant: tenant, Name: "f"}}}}); err != nil {
				t.Fatal(err)
			}
			if _, err = s.Recv(); grpcx.Read(err).Code != codes.InvalidArgument {
				t.Errorf("a session for tenant %q: %v", tenant, err)
			}
		}
	})
}

// call makes a call with a request that is empty but for its tenant.
func call(t *testing.T, cc *grpc.ClientConn, m protoreflect.MethodDescriptor, tenant string) error {
	t.Helper()
	build := func(d protoreflect.MessageDescriptor) proto.Message {
		mt, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
		if err != nil {
			t.Fatal(err)
		}
		return mt.New().Interface()
	}
	in, out := build(m.Input()), build(m.Output())
	in.ProtoReflect().Set(m.Input().Fields().ByName("tenant"), protoreflect.ValueOfString(tenant))
	path := fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
	if !m.IsStreamingServer() {
		return cc.Invoke(t.Context(), path, in, out)
	}
	s, err := cc.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, path)
	if err == nil {
		err = s.SendMsg(in)
	}
	if err == nil {
		err = s.RecvMsg(out)
	}
	return err
}

// Two tenants have everything alike: ids, functions, labels. Each one's executors get its own tasks only, and
// its lists show its own only (B009).
func TestScenarioTenantsShareNames(t *testing.T) {
	testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
		tenants := []string{"a", "b", "a.b"}
		var strays atomic.Int32
		for _, tenant := range tenants {
			c.Executor(2, tenant, func(x *executor.Executor) {
				raw(x, "f", fn.Options{}, func(_ context.Context, tk *executor.Task) ([]byte, error) {
					if tk.Tenant != tenant || !strings.HasPrefix(string(tk.Payload), tenant+" ") {
						strays.Add(1)
					}
					return tk.Payload, nil
				})
			})
		}
		for i := range 50 {
			for _, tenant := range tenants {
				submit(t, c.Client(tenant), client.Task{Function: "f", Payload: fmt.Append(nil, tenant, " ", i), Options: client.Options{ID: fmt.Sprint("order-", i), Labels: map[string]string{"k": "v"}}})
			}
		}
		for _, tenant := range tenants {
			cl := c.Client(tenant)
			for i := range 50 {
				info, err := cl.Wait(t.Context(), client.ByClientID(fmt.Sprint("order-", i)))
				if err != nil || string(info.Result) != fmt.Sprint(tenant, " ", i) {
					t.Errorf("%s: %q, %v", tenant, info.Result, err)
				}
			}
			n := 0
			for info, err := range cl.ListAll(t.Context(), client.ListOptions{Label: "k=v"}) {
				if err != nil || info.Tenant != tenant {
					t.Fatalf("%s lists %+v, %v", tenant, info, err)
				}
				n++
			}
			if n != 50 || strays.Load() != 0 {
				t.Errorf("%s lists %d, %d strays", tenant, n, strays.Load())
			}
		}
	})
}
