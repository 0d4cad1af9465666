package dispatcher

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/headrace/headrace/store"
)

// A server without keys can't be made to listen where others reach it; each wrong field is named.
func TestConfigNamesWhatIsWrong(t *testing.T) {
	good := Config{DataDir: "x"}
	if err := good.Validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	for _, c := range []struct {
		want string
		set  func(*Config)
	}{
		{"data directory", func(c *Config) { c.DataDir = "" }},
		{"data directory", func(c *Config) { c.EtcdDir = "y" }},
		{"data directory", func(c *Config) { c.DataDir, c.EtcdDir = "", "y" }},
		{"Listen", func(c *Config) { c.Listen = "0.0.0.0:7070" }},
		{"Listen", func(c *Config) { c.Listen = "[::]:7070" }},
		{"Listen", func(c *Config) { c.Listen = "10.0.0.1:7070" }},
		{"Listen", func(c *Config) { c.Listen = "7070" }},
		{"HTTP", func(c *Config) { c.HTTP = "192.168.1.1:80" }},
		{"Partitions", func(c *Config) { c.Partitions = 1025 }},
		{"MaxPayload", func(c *Config) { c.MaxPayload = 16<<20 + 1 }},
		{"Drain", func(c *Config) { c.Drain = -1 }},
	} {
		cfg := good
		c.set(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "want") {
			t.Errorf("%s: %v", c.want, err)
		}
	}
	for _, ok := range []string{":0", "127.0.0.1:1", "[::1]:1", "localhost:1"} {
		if err := loopback("Listen", ok); err != nil {
			t.Errorf("%s: %v", ok, err)
		}
	}
}

// start runs a node on a real directory and returns it with a function that stops it.
func start(t *testing.T, dir string) (n *Node, stop func() error) {
	t.Helper()
	n, err := New(Config{DataDir: dir, Listen: "127.0.0.1:0", HTTP: "127.0.0.1:0", MemoryBytes: -1})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	select {
	case <-n.Ready():
	case err := <-ended:
		t.Fatalf("the node has ended: %v", err)
	case <-time.After(30 * time.Second):
		t.Fatal("not ready after 30 s")
	}
	return n, func() error { cancel(); return <-ended }
}

// A node on a directory of its own: ready, pages served, a second process refused with words, stopped, and
// started again as another node on the same state.
func TestNodeOnADirectory(t *testing.T) {
	dir := t.TempDir()
	began := time.Now()
	n, stop := start(t, dir)
	cold := time.Since(began)
	for page, want := range map[string]string{"/healthz": "ok", "/readyz": "ok", "/debug/dump": n.ID(), "/debug/pprof/": "goroutine"} {
		res, err := http.Get("http://" + n.HTTPAddr() + page)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != 200 || !strings.Contains(string(body), want) {
			t.Errorf("%s: %d %.200s", page, res.StatusCode, body)
		}
	}
	second, err := New(Config{DataDir: dir, Listen: "127.0.0.1:0", HTTP: "off", MemoryBytes: -1})
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Run(t.Context()); !errors.Is(err, store.ErrLocked) || !strings.Contains(err.Error(), "in use by another headrace process") {
		t.Errorf("a second process: %v", err)
	}
	began = time.Now()
	if err := stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	stopped := time.Since(began)
	began = time.Now()
	again, stop := start(t, dir)
	warm := time.Since(began)
	if again.ID() == n.ID() {
		t.Error("the same id after a restart")
	}
	if err := stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	t.Logf("ready %v after a cold start, %v after a warm one, stopped in %v", cold, warm, stopped)
	if cold > 3*time.Second || warm > 3*time.Second {
		t.Errorf("a start took %v, then %v", cold, warm)
	}
}
