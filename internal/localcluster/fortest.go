package localcluster

import (
	"context"
	"os"
	"testing"
	"time"
)

// ForTest starts a cluster for a test, which ends with it; opt.EtcdServer is built when it is empty. On a failure the
// test's output has the last lines of each process; with HEADRACE_KEEP in the environment all its files stay.
func ForTest(tb testing.TB, opt Options) *Cluster {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute) // the build of etcd, on a cold cache
	defer cancel()
	if opt.EtcdServer == "" {
		root, err := Root()
		if err != nil {
			tb.Fatal(err)
		}
		if opt.EtcdServer, err = BuildEtcd(ctx, root); err != nil {
			tb.Fatal(err)
		}
	}
	dir, err := os.MkdirTemp("", "headrace-cluster-")
	if err != nil {
		tb.Fatal(err)
	}
	if os.Getenv("HEADRACE_KEEP") != "" {
		tb.Logf("the cluster's files stay in %s", dir)
	} else {
		tb.Cleanup(func() { os.RemoveAll(dir) })
	}
	if err := os.Chmod(dir, 0o755); err != nil { // user postgres must enter it
		tb.Fatal(err)
	}
	c, err := Start(ctx, dir, opt)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := c.Close(); err != nil {
			tb.Errorf("end the cluster: %v", err)
		}
		if tb.Failed() {
			c.logTails(tb)
		}
	})
	return c
}

func (c *Cluster) logTails(tb testing.TB) {
	for _, s := range c.services() {
		tb.Logf("%s's last lines:\n%s", s.Name, s.Tail(4<<10))
	}
}
