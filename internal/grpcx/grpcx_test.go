package grpcx_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/headrace/headrace/internal/grpcx"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
)

// What our codec writes, stock protobuf reads, and the reverse: below and above the size from which
// buffers are pooled, for generated and for foreign messages.
func TestCodecIsPlainProtobuf(t *testing.T) {
	c := grpcx.Codec()
	for _, size := range []int{0, 1, 900, 1200, 1 << 20} {
		for _, m := range []proto.Message{
			&headracev1.SubmitRequest{Tenant: "t", RequestId: []byte("0123456789abcdef"), Task: &headracev1.TaskSpec{
				Function: "f", Payload: bytes.Repeat([]byte{0xff}, size), Delay: durationpb.New(time.Second),
				Labels: map[string]string{"k": "v"}, Priority: proto.Uint32(0),
			}},
			&healthpb.HealthCheckRequest{Service: strings.Repeat("s", size)},
		} {
			name := fmt.Sprintf("%T of %d bytes", m, size)
			data, err := c.Marshal(m)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			wire := data.Materialize()
			viaStock := m.ProtoReflect().New().Interface()
			if err := proto.Unmarshal(wire, viaStock); err != nil || !proto.Equal(m, viaStock) {
				t.Errorf("%s: stock protobuf reads %v, %v", name, viaStock, err)
			}
			viaUs := m.ProtoReflect().New().Interface()
			if err := c.Unmarshal(data, viaUs); err != nil || !proto.Equal(m, viaUs) {
				t.Errorf("%s: the codec reads %v, %v", name, viaUs, err)
			}
			data.Free()
		}
	}
	if _, err := c.Marshal("text"); err == nil {
		t.Error("a string was encoded")
	}
}

// A message that is decoded into twice holds the second content only, and owns it.
func TestDecodeReplacesAndCopies(t *testing.T) {
	c := grpcx.Codec()
	encode := func(ids ...string) []byte {
		m := &headracev1.SubmitBatchResponse{}
		for _, id := range ids {
			m.Outcomes = append(m.Outcomes, &headracev1.SubmitOutcome{Id: id})
		}
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	var got headracev1.SubmitBatchResponse
	first, second := encode("a", "b"), encode("c")
	for _, b := range [][]byte{first, second} {
		if err := c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(b)}, &got); err != nil {
			t.Fatal(err)
		}
		clear(b)
	}
	if len(got.Outcomes) != 1 || got.Outcomes[0].Id != "c" {
		t.Errorf("decoded %v, want c alone", got.Outcomes)
	}
}

// An unknown field of a newer peer survives decode and encode.
func TestUnknownFieldsSurvive(t *testing.T) {
	c := grpcx.Codec()
	wire := append([]byte{0x0a, 1, 'x'}, 0xba, 0x3e, 3, 'n', 'e', 'w') // id, then field 999
	var m headracev1.SubmitOutcome
	if err := c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(wire)}, &m); err != nil {
		t.Fatal(err)
	}
	out, err := c.Marshal(&m)
	if err != nil || !slices.Equal(out.Materialize(), wire) {
		t.Errorf("got % x, %v; want % x", out.Materialize(), err, wire)
	}
}

// server serves health and a TaskService over an in-memory connection, with our options.
func server(t *testing.T, tasks headracev1.TaskServiceServer, opts ...grpc.ServerOption) *bufconn.Listener {
	t.Helper()
	lis := bufconn.Listen(1 << 20)
	s := grpc.NewServer(opts...)
	healthpb.RegisterHealthServer(s, health.NewServer())
	if tasks != nil {
		headracev1.RegisterTaskServiceServer(s, tasks)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(lis) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return lis
}

func dial(t *testing.T, lis *bufconn.Listener, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	cc, err := grpc.NewClient("passthrough:///buf", append(opts,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	return cc
}

type taskService struct {
	headracev1.UnimplementedTaskServiceServer
}

func (taskService) Submit(_ context.Context, req *headracev1.SubmitRequest) (*headracev1.SubmitResponse, error) {
	if req.Tenant == "full" {
		return nil, grpcx.Info{Code: codes.ResourceExhausted, Reason: "tenant_rate", Message: "slow down",
			Metadata: map[string]string{"limit": "5"}, RetryAfter: 1500 * time.Millisecond}.Err()
	}
	return &headracev1.SubmitResponse{Id: string(req.Task.Payload)}, nil
}

// Stock clients work with our server, our clients with a stock server: calls, errors with details,
// and services whose messages have no vtproto methods.
func TestBothEndsWorkWithStockOnes(t *testing.T) {
	stock := []grpc.DialOption{}
	for _, end := range []struct {
		name   string
		dial   []grpc.DialOption
		server []grpc.ServerOption
	}{
		{"ours and ours", grpcx.DialOptions(0), grpcx.ServerOptions(0, 0)},
		{"stock client", stock, grpcx.ServerOptions(0, 0)},
		{"stock server", grpcx.DialOptions(0), nil},
	} {
		t.Run(end.name, func(t *testing.T) {
			cc := dial(t, server(t, taskService{}, end.server...), end.dial...)
			client := headracev1.NewTaskServiceClient(cc)
			res, err := client.Submit(t.Context(), &headracev1.SubmitRequest{Task: &headracev1.TaskSpec{Payload: []byte("p")}})
			if err != nil || res.Id != "p" {
				t.Errorf("submit = %v, %v", res, err)
			}
			_, err = client.Submit(t.Context(), &headracev1.SubmitRequest{Tenant: "full"})
			got := grpcx.Read(err)
			if got.Code != codes.ResourceExhausted || got.Reason != "tenant_rate" || got.Message != "slow down" ||
				got.RetryAfter != 1500*time.Millisecond || got.Metadata["limit"] != "5" {
				t.Errorf("error carries %+v", got)
			}
			if _, err := healthpb.NewHealthClient(cc).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
				t.Errorf("health: %v", err)
			}
		})
	}
}

// A message over the limit is refused with its own code; the connection and its other calls live on.
func TestMessageLimit(t *testing.T) {
	cc := dial(t, server(t, taskService{}, grpcx.ServerOptions(1000, 0)...), grpcx.DialOptions(0)...)
	client := headracev1.NewTaskServiceClient(cc)
	_, err := client.Submit(t.Context(), &headracev1.SubmitRequest{Task: &headracev1.TaskSpec{Payload: make([]byte, 1001)}})
	if grpcx.Read(err).Code != codes.ResourceExhausted {
		t.Errorf("too large: %v", err)
	}
	if _, err = client.Submit(t.Context(), &headracev1.SubmitRequest{Task: &headracev1.TaskSpec{}}); err != nil {
		t.Errorf("next call: %v", err)
	}
}

// Half an hour idle and half an hour with an open stream, at the defaults of both ends and with a
// foreign client that pings as often as gRPC lets it: the connection is never closed (B107).
func TestKeepAliveIsNeverAbuse(t *testing.T) {
	for name, opts := range map[string][]grpc.DialOption{
		"ours":       grpcx.DialOptions(0),
		"aggressive": {grpc.WithKeepaliveParams(grpcx.AggressivePings)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cc := dial(t, server(t, nil, grpcx.ServerOptions(0, 0)...), append(opts, grpc.WithIdleTimeout(0))...)
				client := healthpb.NewHealthClient(cc)
				if _, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
				defer cancel()
				if cc.WaitForStateChange(ctx, connectivity.Ready) {
					t.Fatalf("idle: the connection became %v", cc.GetState())
				}
				ctx, cancel = context.WithTimeout(t.Context(), 30*time.Minute)
				defer cancel()
				watch, err := client.Watch(ctx, &healthpb.HealthCheckRequest{})
				if err != nil {
					t.Fatal(err)
				}
				for err == nil {
					_, err = watch.Recv()
				}
				if ctx.Err() == nil || status.Code(err) != codes.DeadlineExceeded {
					t.Errorf("busy: the stream ended with %v", err)
				}
			})
		})
	}
}

func TestReadOfForeignErrors(t *testing.T) {
	for _, c := range []struct {
		err  error
		code codes.Code
	}{
		{nil, codes.OK},
		{errors.New("boom"), codes.Unknown},
		{context.DeadlineExceeded, codes.DeadlineExceeded},
		{fmt.Errorf("call: %w", status.Error(codes.Unavailable, "gone")), codes.Unavailable},
	} {
		if got := grpcx.Read(c.err); got.Code != c.code || got.RetryAfter != 0 || got.Reason != "" {
			t.Errorf("Read(%v) = %+v", c.err, got)
		}
	}
}
