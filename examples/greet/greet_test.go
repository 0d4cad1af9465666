package greet

import (
	"context"
	"fmt"
	"log"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/executor"
	"github.com/headrace/headrace/fn"
)

// Greet is defined once, in a package that both sides import.
var Greet = fn.Define[string, string]("greet", fn.Options{MaxAttempts: 5})

func Example() {
	addr, stop := startServer() // in your world: `headrace dev` runs, and addr is 127.0.0.1:7070
	defer stop()

	x, err := executor.New(executor.Config{Addr: addr})
	if err != nil {
		log.Fatal(err)
	}
	executor.Handle(x, Greet, func(ctx context.Context, name string) (string, error) {
		return "hello " + name, nil // an error is retried with back-off
	})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go x.Run(ctx)

	c, err := client.Dial(client.Config{Addr: addr})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	h, err := client.Submit(ctx, c, Greet, "world", client.Options{}) // on disk when it returns
	if err != nil {
		log.Fatal(err)
	}
	out, err := h.Wait(ctx)
	fmt.Println(out, err)
	// Output: hello world <nil>
}
