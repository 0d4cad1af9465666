package greet

import (
	"context"
	"log"
	"os"

	"github.com/headrace/headrace/dispatcher"
)

// startServer runs a node in this process, on a directory that stop removes.
func startServer() (addr string, stop func()) {
	dir, err := os.MkdirTemp("", "greet-")
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
	return node.Addr(), func() {
		cancel()
		<-ended
		os.RemoveAll(dir)
	}
}
