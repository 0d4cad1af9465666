package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/internal/ledger"
	"github.com/headrace/headrace/task"
)

// The executor's stream dies at the moment of the push, closed or silently. The task soon starts somewhere all
// the same, far below its own time-out, and nothing is counted against it (B002).
func TestScenarioStreamDiesAtThePush(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.start()
	const tenants, rounds, most = 5, 10, 10 * time.Second // twice the lease's life
	var wg sync.WaitGroup
	for i := range tenants {
		tenant := fmt.Sprint("t", i)
		wire := newWire(t, s.listen, 0)
		w := ledger.StartWorker(t, wire.addr, "behind-"+tenant, "HEADRACE_E2E_TENANT="+tenant)
		c := ledger.Dial(t, s.listen, tenant)
		wg.Go(func() {
			var slowest time.Duration
			for round := range rounds {
				took, err := pushAndCut(t, c, wire, round)
				if err != nil {
					t.Errorf("%s, round %d: %v", tenant, round, err)
					return
				}
				if slowest = max(slowest, took); took > most {
					t.Errorf("%s, round %d: done after %v", tenant, round, took)
				}
			}
			if l := ledger.Read(t, w); len(l) != rounds {
				t.Errorf("%s: %d tasks started", tenant, len(l))
			}
			made, _ := wire.counts()
			t.Logf("%s: %d connections, the slowest task took %v", tenant, made, slowest)
			if made <= rounds/2 {
				t.Errorf("%s: %d connections in %d rounds: the test shows nothing", tenant, made, rounds)
			}
		})
	}
	wg.Wait()
	nothingInUse(t, s)
}

// pushAndCut submits a task and cuts the executor's connections at about the time of its push; in every
// fifth round they go silent before instead, and the push goes nowhere.
func pushAndCut(t *testing.T, c *client.Client, wire *wire, round int) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	began := time.Now()
	cutAt := time.After(time.Duration(round*300) * time.Microsecond) // a push comes within some milliseconds
	cut := make(chan struct{})
	if round%5 == 4 {
		wire.hush()
		close(cut)
	} else {
		go func() {
			defer close(cut)
			<-cutAt
			wire.cut()
		}()
	}
	sub, err := c.Submit(ctx, client.Task{Function: "work", Options: client.Options{Timeout: 15 * time.Minute, MaxAttempts: 1}})
	<-cut
	if err != nil {
		return 0, err
	}
	info, err := c.Wait(ctx, client.ByID(sub.ID))
	if err != nil {
		stuck, _ := c.Get(t.Context(), client.ByID(sub.ID))
		return 0, fmt.Errorf("%w: %+v", err, stuck)
	}
	if info.State != task.Succeeded || info.Attempt != 1 {
		return 0, fmt.Errorf("%v at attempt %d, %v", info.State, info.Attempt, info.Error)
	}
	return time.Since(began), nil
}

// Nothing happens for 35 s behind a proxy that ends connections which are silent for 10 s: no connection of the
// executor or of an open wait is lost, nobody is punished for pings. A client that pings like mad is sent
// away with a reason, and disturbs nobody (B107, B002).
func TestScenarioIdleConnectionsLive(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.start()
	patient, strict := newWire(t, s.listen, 0), newWire(t, s.listen, 10*time.Second)
	w := ledger.StartWorker(t, strict.addr, "idle")
	c := ledger.Dial(t, patient.addr, "acme")
	running, err := c.Submit(ledger.Within(t, 10*time.Second), client.Task{Function: "hold"})
	if err != nil {
		t.Fatal(err)
	}
	ledger.Eventually(t, 20*time.Second, "it runs", func() bool { return len(ledger.Read(t, w)) == 1 })
	waited := make(chan error, 1)
	go func() {
		_, err := c.Wait(ledger.Within(t, 90*time.Second), client.ByID(running.ID))
		waited <- err
	}()
	began := time.Now()
	madeBefore, _ := strict.counts()
	waitsBefore, _ := patient.counts()
	if code := pingLikeMad(t, s.listen); code != 0xb {
		t.Errorf("the pinger was sent away with code %d, want 11 (ENHANCE_YOUR_CALM)", code)
	}
	ledger.Eventually(t, 60*time.Second, "35 s have passed", func() bool { return time.Since(began) > 35*time.Second })
	if made, idle := strict.counts(); made != madeBefore || idle != 0 {
		t.Errorf("the executor made %d connections, then %d; %d were silent for 10 s", madeBefore, made, idle)
	}
	if made, _ := patient.counts(); made != waitsBefore {
		t.Errorf("the client made %d connections, then %d", waitsBefore, made)
	}
	if text := s.log.String() + w.Log.String(); strings.Contains(strings.ToLower(text), "too_many_pings") {
		t.Errorf("somebody of ours was punished for pings:\n%s", text)
	}
	w.Release()
	if err := <-waited; err != nil {
		t.Error(err)
	}
	if r := ledger.Read(t, w)[running.ID]; r.Starts != 1 {
		t.Errorf("%d starts", r.Starts)
	}
	// The idle connections are as good as new.
	began = time.Now()
	sub, err := c.Submit(ledger.Within(t, 5*time.Second), client.Task{Function: "work"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Wait(ledger.Within(t, 5*time.Second), client.ByID(sub.ID)); err != nil || time.Since(began) > time.Second {
		t.Errorf("after the idle time: %v after %v", err, time.Since(began))
	}
}

// pingLikeMad speaks just enough HTTP/2 to send pings without pause, and returns the code of the GOAWAY.
func pingLikeMad(t *testing.T, addr string) uint32 {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"); err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			if _, err := io.WriteString(conn, "\x00\x00\x08\x06\x00\x00\x00\x00\x0012345678"); err != nil {
				return
			}
		}
	}()
	for {
		var head [9]byte
		if _, err := io.ReadFull(conn, head[:]); err != nil {
			t.Errorf("no GOAWAY: %v", err)
			return 0
		}
		body := make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
		if _, err := io.ReadFull(conn, body); err != nil {
			t.Errorf("no GOAWAY: %v", err)
			return 0
		}
		if head[3] == 7 && len(body) >= 8 {
			return uint32(body[4])<<24 | uint32(body[5])<<16 | uint32(body[6])<<8 | uint32(body[7])
		}
	}
}
