package testcluster_test

import (
	"bytes"
	"context"
	"embed"
	"encoding/hex"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/executor"
	"github.com/headrace/headrace/internal/testcluster"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/shard"
	"github.com/headrace/headrace/task"
)

// levelOf is the cluster's level as the node sees it.
func levelOf(t *testing.T, n *testcluster.OneNode) (level uint32, nodes []*headracev1.Node) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	res, err := headracev1.NewClusterServiceClient(n.Raw()).ListNodes(ctx, &headracev1.ListNodesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return res.Level, res.Nodes
}

// A node of the version before is in the cluster: it works with the others, and the level stays where it reads it.
// When it is replaced the level rises.
func TestClusterOfTwoVersions(t *testing.T) {
	testcluster.RunSeveral(t, 0, 2, func(t *testing.T, c *testcluster.Several) {
		newest := uint32(shard.NewestLevel)
		c.Config.Levels = &shard.Levels{Min: 1, Max: shard.NewestLevel - 1}
		old := c.Start()
		c.Config.Levels = nil
		a, b := c.Start(), c.Start()
		balanced(t, 2, 8, old, a, b)
		for _, n := range c.All() {
			level, nodes := levelOf(t, n)
			if level != newest-1 || len(nodes) != 3 {
				t.Errorf("level %d among %d nodes", level, len(nodes))
			}
			for _, m := range nodes {
				if want := newest - uint32(bit(m.Id == old.ID())); m.MinLevel != 1 || m.MaxLevel != want {
					t.Errorf("node %s reads %d to %d", m.Address, m.MinLevel, m.MaxLevel)
				}
			}
		}
		a.Executor(4, "acme", func(x *executor.Executor) {
			executor.Handle(x, upper, func(_ context.Context, in string) (string, error) { return in + "!", nil })
		})
		run := func(nodes ...*testcluster.OneNode) {
			t.Helper()
			for _, n := range nodes {
				cl := n.Client("acme")
				for i := range 20 {
					id := submit(t, cl, client.Task{Function: "upper", Payload: fmt.Appendf(nil, "%d", i)})
					if info := wait(t, cl, id); info.State != task.Succeeded || string(info.Result) != fmt.Sprint(i, "!") {
						t.Fatalf("task %d: %v %q", i, info.State, info.Result)
					}
				}
			}
		}
		run(old, a, b)
		old.Stop()
		until(t, 10*time.Second, "the level rises", func() bool { level, _ := levelOf(t, b); return level == newest })
		run(a, b)
	})
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

//go:embed testdata/wire
var wire embed.FS

// golden is a message as a build of the first version sent it.
func golden(t *testing.T, name string, m proto.Message) {
	t.Helper()
	text, err := wire.ReadFile("testdata/wire/" + name)
	if err != nil {
		t.Fatal(err)
	}
	b, err := hex.DecodeString(string(bytes.TrimSpace(text)))
	if err != nil {
		t.Fatal(err)
	}
	if err := proto.Unmarshal(b, m); err != nil {
		t.Fatal(err)
	}
	if again, err := (proto.MarshalOptions{Deterministic: true}).Marshal(m); err != nil || !bytes.Equal(again, b) || len(m.ProtoReflect().GetUnknown()) > 0 {
		t.Errorf("%s reads as %v (%v): a field that the first version sent means something else now", name, m, err)
	}
}

// A client and an executor of the first version, byte by byte: a task of theirs is run and ends.
func TestFirstVersionsMessages(t *testing.T) {
	testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		var submit headracev1.SubmitBatchRequest
		golden(t, "submit_batch.hex", &submit)
		var hello headracev1.SessionRequest
		golden(t, "hello.hex", &hello)

		s, err := headracev1.NewExecutorServiceClient(c.Raw()).Session(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Send(&hello); err != nil {
			t.Fatal(err)
		}
		tasks := headracev1.NewTaskServiceClient(c.Raw())
		res, err := tasks.SubmitBatch(ctx, &submit)
		if err != nil || len(res.Outcomes) != 1 || res.Outcomes[0].Error != nil {
			t.Fatalf("%v, %v", res, err)
		}
		say := make(chan *headracev1.SessionRequest)
		go func() { // the stream's only sender
			for beat := uint64(1); ; beat++ {
				select {
				case m := <-say:
					_ = s.Send(m)
				case <-time.After(200 * time.Millisecond): // of the bubble
					_ = s.Send(&headracev1.SessionRequest{Beat: &headracev1.Beat{Number: beat}})
				case <-ctx.Done():
					return
				}
			}
		}()
		for done := false; !done; {
			m, err := s.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if m.Welcome != nil && m.Welcome.Protocol != 1 {
				t.Errorf("the session is held in version %d of the protocol", m.Welcome.Protocol)
			}
			for _, p := range m.Pushes {
				if p.Function != "greet" || string(p.Payload) != "hello" || p.ClientId != "order-1" || p.Labels["team"] != "blue" {
					t.Errorf("pushed: %v", p)
				}
				say <- &headracev1.SessionRequest{
					Acks:     []*headracev1.Ack{{TaskId: p.TaskId, Token: p.Token}},
					Outcomes: []*headracev1.Outcome{{TaskId: p.TaskId, Token: p.Token, Result: []byte("hello yourself")}},
				}
			}
			done = len(m.Committed) > 0
		}
		got, err := tasks.Get(ctx, &headracev1.GetRequest{Tenant: "acme", Task: &headracev1.TaskRef{Ref: &headracev1.TaskRef_Id{Id: res.Outcomes[0].Id}}})
		if err != nil || got.Task.State != headracev1.TaskState_TASK_STATE_SUCCEEDED || string(got.Task.Result) != "hello yourself" {
			t.Errorf("%v, %v", got, err)
		}
		cancel()
	})
}
