package poolrun

import (
	"context"
	"os"
	"sync/atomic"
	"testing"
	"time"
)

// The idle one leaves, whatever its age; who is busy in reserved slots is not idle. One that works and does not end is killed when its drain time is over, and not
// before.
func TestIdleLeaveFirstAndNobodyIsKilledEarly(t *testing.T) {
	const drain = 1500 * time.Millisecond
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var desired atomic.Int64
	desired.Store(2)
	type seen struct {
		Event
		at time.Time
	}
	events := make(chan seen, 1000) // written by Run only
	ended := make(chan error, 1)
	go func() {
		ended <- Run(ctx, Config{
			Path: "/bin/sh", Args: []string{"-c", `trap "" TERM; >"$DIR/$HEADRACE_EXECUTOR_NAME"; while :; do sleep 0.1; done`}, Env: []string{"DIR=" + dir},
			Out: null, Err: null, Name: "x", Min: 0, Max: 2, Drain: drain,
			Ask: func(context.Context) (Answer, error) {
				n := int(desired.Load())
				for _, name := range []string{"x-1", "x-2"} {
					if _, err := os.Stat(dir + "/" + name); err != nil { // it does not know SIGTERM yet
						n = 2
					}
				}
				return Answer{Desired: n, Order: []Executor{{"x-1", true}, {"x-2", true}, {"x-1:high", false}}}, nil
			},
			Event: func(e Event) { events <- seen{e, time.Now()} },
		})
	}()
	next := func(event, name string) time.Time {
		t.Helper()
		for {
			select {
			case e := <-events:
				switch {
				case e.Event.Event == "desired":
				case e.Event.Event != event || e.Name != name:
					t.Fatalf("%+v, want %s of %s", e.Event, event, name)
				default:
					return e.at
				}
			case <-ctx.Done():
				t.Fatalf("no %s of %s", event, name)
			}
		}
	}
	next("started", "x-1")
	next("started", "x-2")
	desired.Store(1)
	at := next("draining", "x-2")
	if took := next("killed", "x-2").Sub(at); took < drain {
		t.Errorf("killed after %v", took)
	}
	cancel()
	ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	at = next("draining", "x-1")
	if took := next("killed", "x-1").Sub(at); took < drain {
		t.Errorf("killed after %v", took)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
