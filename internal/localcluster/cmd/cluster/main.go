// Command cluster starts and ends the local cluster of `make cluster`.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/headrace/headrace/internal/localcluster"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) != 1 || args[0] != "up" && args[0] != "down" {
		return errors.New("usage: cluster up|down, in the repository")
	}
	root, err := localcluster.Root()
	if err != nil {
		return err
	}
	dir := filepath.Join(root, ".cluster")
	if args[0] == "down" {
		n, err := localcluster.Down(dir)
		if n == 0 && err == nil {
			fmt.Println("no local cluster runs here")
		} else {
			fmt.Printf("ended %d processes; the data stay in .cluster (make clean removes them)\n", n)
		}
		return err
	}
	return up(ctx, root, dir)
}

func up(ctx context.Context, root, dir string) error {
	if s, err := localcluster.ReadState(dir); err == nil && s.Running() {
		fmt.Print("The local cluster is running already.\n\n")
		usage(s)
		return nil
	}
	fmt.Println("building etcd's server (once), then starting etcd, Postgres and the nodes ...")
	etcd, err := localcluster.BuildEtcd(ctx, root)
	if err != nil {
		return err
	}
	c, err := localcluster.Start(ctx, dir, localcluster.Options{
		Headrace: filepath.Join(root, "bin", "headrace"), EtcdServer: etcd, Detached: true,
	})
	if err != nil {
		return err
	}
	usage(c.State())
	return nil
}

// usage prints what runs where and what to do with it.
func usage(s localcluster.State) {
	for _, m := range s.Etcd {
		fmt.Printf("etcd      %-4s pid %-8d client %s\n", m.Name, m.PID, m.Client)
	}
	for _, db := range s.Postgres {
		fmt.Printf("postgres  %-4s pid %-8d %s\n", db.Name, db.PID, db.DSN)
	}
	for _, n := range s.Nodes {
		fmt.Printf("node      %-4s pid %-8d gRPC %s, pages http://%s/debug/dump\n", n.Name, n.PID, n.GRPC, n.HTTP)
	}
	first := s.Nodes[0].GRPC
	fmt.Printf(`
Any node takes any request:
  export HEADRACE_ADDR=%s
  bin/headrace worker --function upper -- tr a-z A-Z      in another terminal
  bin/headrace submit upper --payload hello --wait
  bin/headrace node list
  bin/headrace partition list
Break it: kill -9 a pid above, and 'make cluster' starts it again. Logs: .cluster/log. All of this for programs:
.cluster/state.json. The end, with the data kept: make cluster-down.
`, first)
}
