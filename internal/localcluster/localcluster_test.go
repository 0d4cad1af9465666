package localcluster

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// binaries builds what a cluster needs.
func binaries(t *testing.T) (headrace, etcd string) {
	t.Helper()
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	if etcd, err = BuildEtcd(t.Context(), root); err != nil {
		t.Fatal(err)
	}
	headrace = filepath.Join(t.TempDir(), "headrace")
	if err := BuildHeadrace(t.Context(), root, headrace); err != nil {
		t.Fatal(err)
	}
	return headrace, etcd
}

// A cluster starts, what was killed starts again in its place, a second start finds it running, and Down ends what
// was started and nobody else, as often as one likes.
func TestUpAndDown(t *testing.T) {
	headrace, etcd := binaries(t)
	dir, err := os.MkdirTemp("", "headrace-cluster-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	opt := Options{Nodes: 2, Etcd: 1, Postgres: 1, Headrace: headrace, EtcdServer: etcd, Detached: true}
	c, err := Start(t.Context(), dir, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { Down(dir) })
	first, err := ReadState(dir)
	if err != nil || !first.Running() {
		t.Fatalf("after the start: %+v, %v", first, err)
	}
	if m, err := c.Leader(t.Context()); err != nil || m != c.Etcd[0] {
		t.Errorf("etcd's leader: %v, %v", m, err)
	}
	if out, err := c.Postgres[0].SQL(t.Context(), "SELECT current_database()"); err != nil || out != databaseName {
		t.Errorf("the database: %q, %v", out, err)
	}

	if err := c.Nodes[0].Kill(); err != nil || c.Nodes[0].Alive() || c.State().Running() {
		t.Fatalf("after kill -9: %v, alive %t", err, c.Nodes[0].Alive())
	}
	if _, err := Start(t.Context(), dir, opt); err != nil {
		t.Fatal(err)
	}
	second, err := ReadState(dir)
	if err != nil || !second.Running() || second.Nodes[0].PID == first.Nodes[0].PID || second.Nodes[0].GRPC != first.Nodes[0].GRPC {
		t.Fatalf("after the second start: %+v, %v; before %+v", second, err, first)
	}
	if second.Nodes[1] != first.Nodes[1] || second.Etcd[0] != first.Etcd[0] || second.Postgres[0] != first.Postgres[0] {
		t.Errorf("the second start touched what ran: %+v, before %+v", second, first)
	}

	// A stranger has the process id of the first node.
	stranger := exec.Command("sleep", "600")
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stranger.Process.Kill(); stranger.Wait() })
	if err := second.Nodes[0].end(c.Nodes[0].kill, time.Second); err != nil {
		t.Fatal(err)
	}
	forged := second
	forged.Nodes[0].PID = stranger.Process.Pid
	if err := forged.write(filepath.Join(dir, stateFile)); err != nil {
		t.Fatal(err)
	}
	if n, err := Down(dir); n != 3 || err != nil {
		t.Errorf("Down ended %d processes, %v; want 3: the other node, etcd and Postgres", n, err)
	}
	if _, state, ok := stat(stranger.Process.Pid); !ok || state == 'Z' {
		t.Error("Down ended a stranger")
	}
	if n, err := Down(dir); n != 0 || err != nil {
		t.Errorf("the second Down ended %d processes, %v", n, err)
	}
	for _, p := range second.processes() {
		if p.Alive() {
			t.Errorf("%+v is still there", *p)
		}
	}
	if _, err := ReadState(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after Down state.json: %v", err)
	}
}

// With proxies a node is cut off from one thing at a time, and its connections are told from others'.
func TestLinksBreakApart(t *testing.T) {
	headrace, etcd := binaries(t)
	c := ForTest(t, Options{Nodes: 2, Etcd: 1, Postgres: 1, Headrace: headrace, EtcdServer: etcd, Proxied: true})
	n := c.Nodes[0]
	if n.Links.Etcd[0].Made() == 0 || n.Links.Postgres[0].Made() == 0 {
		t.Fatalf("the node went round its proxies: %d connections to etcd, %d to Postgres", n.Links.Etcd[0].Made(), n.Links.Postgres[0].Made())
	}
	stranger, err := net.Dial("tcp", n.GRPC)
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	n.Links.Front.Cut(FromOthers)
	if err := reads(stranger, 10*time.Second); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a stranger's connection after the cut: %v", err)
	}
	n.Links.Front.Heal()
	n.Links.Front.Cut(FromNodes)
	again, err := net.Dial("tcp", n.GRPC)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if err := reads(again, 10*time.Second); err != nil { // a gRPC server greets
		t.Errorf("a stranger's connection while nodes are cut off: %v", err)
	}
	n.Links.Heal()

	// The other node connects again, and is known as one.
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !n.Links.Front.Seen(FromNodes) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("no connection of the other node within 30 s")
		}
	}
}

// reads waits for a byte.
func reads(c net.Conn, within time.Duration) error {
	_ = c.SetReadDeadline(time.Now().Add(within))
	_, err := c.Read(make([]byte, 1))
	return err
}
