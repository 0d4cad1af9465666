package client_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/internal/grpcx"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
)

// quick is a server that stores nothing and answers at once.
type quick struct {
	headracev1.UnimplementedTaskServiceServer
	calls atomic.Int64
}

func (q *quick) SubmitBatch(_ context.Context, req *headracev1.SubmitBatchRequest) (*headracev1.SubmitBatchResponse, error) {
	q.calls.Add(1)
	res := &headracev1.SubmitBatchResponse{Outcomes: make([]*headracev1.SubmitOutcome, len(req.Tasks))}
	for i := range res.Outcomes {
		res.Outcomes[i] = &headracev1.SubmitOutcome{Id: "22222222222222222222222222"}
	}
	return res, nil
}

// BenchmarkSubmitCoalesced has callers that each submit one 200-byte task after the other, over loopback
// TCP, to a server in the same process. cpu-µs/op is of both ends together.
func BenchmarkSubmitCoalesced(b *testing.B) {
	for _, callers := range []int{1, 16, 256, 1000} {
		for _, inFlight := range []int{1, 2, 4} {
			b.Run(fmt.Sprintf("callers=%d/inflight=%d", callers, inFlight), func(b *testing.B) {
				lis, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					b.Fatal(err)
				}
				q := &quick{}
				srv := grpc.NewServer(grpcx.ServerOptions(0, 0)...)
				headracev1.RegisterTaskServiceServer(srv, q)
				go srv.Serve(lis)
				defer srv.Stop()
				c, err := client.Dial(client.Config{Addr: lis.Addr().String(), MaxInFlight: inFlight})
				if err != nil {
					b.Fatal(err)
				}
				defer c.Close()
				t := client.Task{Function: "f", Payload: make([]byte, 200)}
				if _, err := c.Submit(b.Context(), t); err != nil { // connect
					b.Fatal(err)
				}
				var left atomic.Int64
				left.Store(int64(b.N))
				q.calls.Store(0)
				b.ReportAllocs()
				b.ResetTimer()
				before := cpuTime()
				var wg sync.WaitGroup
				for range callers {
					wg.Go(func() {
						for left.Add(-1) >= 0 {
							if _, err := c.Submit(b.Context(), t); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
				b.ReportMetric(float64((cpuTime()-before).Nanoseconds())/1e3/float64(b.N), "cpu-µs/op")
				b.ReportMetric(float64(b.N)/float64(q.calls.Load()), "tasks/call")
			})
		}
	}
}

// cpuTime returns what the process has used.
func cpuTime() time.Duration {
	var r syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
