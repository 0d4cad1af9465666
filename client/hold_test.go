package client_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/internal/faketime"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
)

// A proxy without a server behind it answers that. A hundred callers go on to want something: few calls are made, who gives up
// is told why, and when the server is up all are served within seconds. Without the throttle there are many.
func TestHoldsBackFromADownServer(t *testing.T) {
	for _, off := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := newFake()
			var down atomic.Bool
			down.Store(true)
			s.submit = func(_ int, _ *headracev1.SubmitBatchRequest, commit func() *headracev1.SubmitBatchResponse) (*headracev1.SubmitBatchResponse, error) {
				if down.Load() {
					return nil, status.Error(codes.Unavailable, "no healthy upstream")
				}
				return commit(), nil
			}
			c := s.dial(t, client.Config{NeverHoldBack: off})
			calls := func() int {
				s.mu.Lock()
				defer s.mu.Unlock()
				return len(s.calls)
			}
			var wg sync.WaitGroup
			for range 100 {
				wg.Go(func() {
					out, err := c.SubmitBatch(t.Context(), []client.Task{{Function: "f"}, {Function: "f"}})
					if err != nil || out[0].Err != nil {
						t.Errorf("%v, %v", out, err)
					}
				})
			}
			faketime.Pass(3 * time.Minute)
			before := calls()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := c.Submit(ctx, client.Task{Function: "f"})
			n := calls() - before
			t.Logf("never hold back: %v: %d calls in a minute, %v", off, n, err)
			var held *client.HeldBackError
			if errors.As(err, &held) == off || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("never hold back: %v, and the error is %v", off, err)
			}
			if off && n < 1000 || !off && (n < 30 || n > 150) {
				t.Errorf("never hold back: %v, and %d calls in a minute", off, n)
			}
			down.Store(false)
			up := time.Now()
			wg.Wait()
			if d := time.Since(up); d > 15*time.Second {
				t.Errorf("never hold back: %v, and the last was served %v after the server was up", off, d)
			}
		})
	}
}
