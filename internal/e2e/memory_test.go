package e2e

import (
	"testing"
	"time"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/internal/ledger"
)

// A million queued tasks of 200 bytes and then 2,000 of 1 MiB fit into 512 MB of the server's memory, also
// after a restart, and another tenant's task still starts at once.
func TestMemoryIsBounded(t *testing.T) {
	small, large := 1_000_000, 2_000
	if testing.Short() {
		small, large = 50_000, 200
	}
	const limit = 512 << 20
	s := newServer(t)
	s.start()
	flood, other := ledger.Dial(t, s.listen, "flood"), ledger.Dial(t, s.listen, "other")
	ledger.StartWorker(t, s.listen, "others", "HEADRACE_E2E_TENANT=other")

	probe := func(when string) {
		t.Helper()
		began := time.Now()
		sub, err := other.Submit(ledger.Within(t, 10*time.Second), client.Task{Function: "work"})
		if err != nil {
			t.Fatal(err)
		}
		info, err := other.Wait(ledger.Within(t, 10*time.Second), client.ByID(sub.ID))
		if err != nil {
			t.Fatal(err)
		}
		rss := s.peakRSS()
		t.Logf("%s: peak RSS %d MiB, another tenant's task started after %v", when, rss>>20, info.StartedAt.Sub(began))
		if rss > limit {
			t.Errorf("%s: peak RSS %d MiB, want at most 512", when, rss>>20)
		}
		if d := info.StartedAt.Sub(began); d > 100*time.Millisecond {
			t.Errorf("%s: another tenant's task started after %v, want 100 ms", when, d)
		}
	}
	ledger.Eventually(t, 20*time.Second, "the other tenant is served", func() bool {
		sub, err := other.Submit(ledger.Within(t, 10*time.Second), client.Task{Function: "work"})
		if err != nil {
			t.Fatal(err)
		}
		_, err = other.Wait(ledger.Within(t, 10*time.Second), client.ByID(sub.ID))
		return err == nil
	})
	payload := make([]byte, 200)
	ledger.SubmitAll(t, flood, small, func(int) client.Task { return client.Task{Function: "nobody", Payload: payload} })
	probe("a million of 200 bytes")
	mib := make([]byte, 1<<20)
	ledger.SubmitAll(t, flood, large, func(int) client.Task { return client.Task{Function: "nobody-large", Payload: mib} })
	probe("and 2,000 of 1 MiB")
	s.kill()
	s.start()
	probe("restarted")
}
