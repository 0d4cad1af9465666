// Package inproc runs a whole node in this process on a directory of its own, as `headrace dev` does: for
// the examples of the SDKs, so that they show what really happens.
package inproc

import (
	"context"
	"log"
	"os"

	"github.com/headrace/headrace/dispatcher"
	"github.com/headrace/headrace/executor"
)

// Start runs a node on a free port and, if register is not nil, an executor with what it registers. Stop ends
// both and removes the directory. It ends the program when the node doesn't start.
func Start(register func(*executor.Executor)) (addr string, stop func()) {
	dir, err := os.MkdirTemp("", "headrace-example-")
	if err != nil {
		log.Fatal(err)
	}
	node, err := dispatcher.New(dispatcher.Config{DataDir: dir, Listen: "127.0.0.1:0", HTTP: "off"})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- node.Run(ctx) }()
	select {
	case <-node.Ready():
	case err := <-ended:
		log.Fatal(err)
	}
	stopExecutor := func() {}
	if register != nil {
		stopExecutor = execute(node.Addr(), register)
	}
	return node.Addr(), func() {
		stopExecutor()
		cancel()
		<-ended
		os.RemoveAll(dir)
	}
}

func execute(addr string, register func(*executor.Executor)) (stop func()) {
	x, err := executor.New(executor.Config{Addr: addr})
	if err != nil {
		log.Fatal(err)
	}
	register(x)
	ended := make(chan error, 1)
	go func() { ended <- x.Run(context.Background()) }()
	return func() {
		_ = x.Shutdown(context.Background())
		<-ended
	}
}
