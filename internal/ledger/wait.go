package ledger

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/headrace/headrace/client"
)

// Dial returns a client of the given tenant.
func Dial(t testing.TB, addr, tenant string) *client.Client {
	t.Helper()
	c, err := client.Dial(client.Config{Addr: addr, Tenant: tenant, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// Within returns a context that ends after d or with the test.
func Within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeoutCause(t.Context(), d, errors.New("the test's bound of "+d.String()))
	t.Cleanup(cancel)
	return ctx
}

// Eventually asks again until ok, at most for d.
func Eventually(t testing.TB, d time.Duration, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(d)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("not within %v: %s", d, what)
		}
	}
}

// SubmitAll submits n tasks in batches and returns their ids.
func SubmitAll(t testing.TB, c *client.Client, n int, make func(i int) client.Task) []string {
	t.Helper()
	ids := []string{}
	for len(ids) < n {
		batch := []client.Task{}
		for i := len(ids); i < min(n, len(ids)+1000); i++ {
			batch = append(batch, make(i))
		}
		outs, err := c.SubmitBatch(Within(t, time.Minute), batch)
		if err != nil {
			t.Fatalf("submit: %v", err)
		}
		for i, o := range outs {
			if o.Err != nil {
				t.Fatalf("submit item %d: %v", i, o.Err)
			}
			ids = append(ids, o.ID)
		}
	}
	return ids
}

// Tail keeps the last 256 KiB that a process printed.
type Tail struct {
	mu  sync.Mutex // guards buf
	buf []byte
}

func (w *Tail) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf = append(w.buf, p...)
	if over := len(w.buf) - 256<<10; over > 0 {
		w.buf = append(w.buf[:0], w.buf[over:]...)
	}
	return len(p), nil
}

func (w *Tail) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return string(w.buf)
}
