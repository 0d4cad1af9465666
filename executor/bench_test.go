package executor_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/headrace/headrace/executor"
	"github.com/headrace/headrace/fn"
	"github.com/headrace/headrace/internal/grpcx"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

// The benchmark's node is another process, so that its CPU is not counted: this binary, started again.
const benchNode = "HEADRACE_BENCH_NODE"

func TestMain(m *testing.M) {
	if os.Getenv(benchNode) != "" {
		serveBench()
		return
	}
	os.Exit(m.Run())
}

// serveBench pushes no-ops in batches of up to 256 as long as there is credit, and commits what comes back.
func serveBench() {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	server := grpc.NewServer(grpcx.ServerOptions(0, 0)...)
	headracev1.RegisterExecutorServiceServer(server, &pusher{})
	fmt.Println(lis.Addr())
	go func() {
		io.Copy(io.Discard, os.Stdin) // ends with the parent
		os.Exit(0)
	}()
	server.Serve(lis)
}

type pusher struct {
	headracev1.UnimplementedExecutorServiceServer
}

func (*pusher) Session(st grpc.BidiStreamingServer[headracev1.SessionRequest, headracev1.SessionResponse]) error {
	in := make(chan *headracev1.SessionRequest, 64)
	go func() {
		defer close(in)
		for {
			m, err := st.Recv()
			if err != nil {
				return
			}
			in <- m
		}
	}()
	if err := st.Send(&headracev1.SessionResponse{Welcome: &headracev1.Welcome{Epochs: []*headracev1.PartitionEpoch{{Partition: 1, Epoch: 1}}}}); err != nil {
		return err
	}
	var beat, credit, sent uint64
	payload := make([]byte, 200)
	for m := range in {
		r := &headracev1.SessionResponse{}
		take := func(m *headracev1.SessionRequest) {
			if m.Beat != nil {
				beat = m.Beat.Number
				r.BeatAnswer = &headracev1.BeatAnswer{Number: beat, Partitions: []*headracev1.PartitionEpoch{{Partition: 1, Epoch: 1}}}
			}
			credit = max(credit, m.Credit)
			for _, o := range m.Outcomes {
				r.Committed = append(r.Committed, &headracev1.Committed{TaskId: o.TaskId, Token: o.Token})
			}
		}
		take(m)
		for len(in) > 0 {
			take(<-in)
		}
		for {
			for sent < credit && len(r.Pushes) < 256 {
				sent++
				id := task.NewID(1, sent, sent)
				r.Pushes = append(r.Pushes, &headracev1.Push{
					TaskId: id[:], Token: &headracev1.Token{Epoch: 1, Push: sent}, Tenant: "default", Function: "f", Attempt: 1,
					Payload: payload, ContentType: "application/octet-stream", Beat: beat, OrphanMicros: 30_000_000, CancelGraceMicros: 30_000_000,
				})
			}
			if err := st.Send(r); err != nil {
				return err
			}
			if sent == credit {
				break
			}
			r = &headracev1.SessionResponse{}
		}
	}
	return nil
}

// BenchmarkNoop is the executor's whole cost of a task over loopback TCP: its own process's CPU time a
// task, of which at most 5 µs are ours to spend.
func BenchmarkNoop(b *testing.B) {
	for _, slots := range []int{32, 256, 2048} {
		b.Run(fmt.Sprint("slots=", slots), func(b *testing.B) { benchmarkNoop(b, slots) })
	}
}

func benchmarkNoop(b *testing.B, slots int) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), benchNode+"=1")
	cmd.Stderr = os.Stderr
	stdin, _ := cmd.StdinPipe()
	stdout, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	defer cmd.Wait()
	defer stdin.Close()
	addr, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	x, err := executor.New(executor.Config{Addr: strings.TrimSpace(addr), Slots: slots, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	var n, most atomic.Int64
	most.Store(1000) // warm-up
	reached := make(chan struct{}, 1)
	x.HandleRaw("f", fn.Options{}, func(context.Context, *executor.Task) (executor.Result, error) {
		if n.Add(1) == most.Load() {
			reached <- struct{}{}
		}
		return executor.Result{}, nil
	})
	ran := make(chan error, 1)
	ctx, end := context.WithCancel(context.Background())
	go func() { ran <- x.Run(ctx) }()
	<-x.Ready()
	<-reached
	cpu, first := cpuTime(), n.Load()
	b.ReportAllocs()
	b.ResetTimer()
	most.Store(first + int64(b.N) + 1000)
	<-reached
	b.StopTimer()
	tasks := float64(n.Load() - first)
	b.ReportMetric(float64(cpuTime()-cpu)/tasks, "cpu-ns/task")
	b.ReportMetric(tasks/b.Elapsed().Seconds(), "tasks/s")
	end()
	if err := <-ran; err != nil {
		b.Error(err)
	}
}

func cpuTime() time.Duration {
	var r syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
