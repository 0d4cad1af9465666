package etcdshard

import (
	"net"
	"testing"
	"time"
)

// While etcd is away a client tries again each second, however long that lasts: when it is back nobody waits for its
// next attempt longer than a lease runs.
func TestReconnectsEachSecond(t *testing.T) {
	t.Parallel()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	attempts := make(chan time.Time)
	go func() {
		defer close(attempts)
		for {
			c, err := lis.Accept()
			if err != nil {
				return
			}
			c.Close()
			attempts <- time.Now()
		}
	}()
	kv, err := Dial(ClientConfig{Endpoints: []string{lis.Addr().String()}})
	if err != nil {
		t.Fatal(err)
	}
	defer kv.Close()
	go kv.client.Get(t.Context(), "x") // somebody wants it
	const want = 10                    // gRPC's own pauses would take more than a minute for as many
	limit := time.After(25 * time.Second)
	for n := 0; n < want; n++ {
		select {
		case <-attempts:
		case <-limit:
			t.Fatalf("%d attempts to connect in 25 s, want %d", n, want)
		}
	}
	lis.Close()
	for range attempts {
	}
}
