// Command headrace is the platform in one binary: a server for one machine, a worker that runs any
// program as a handler, and the operator's commands. `headrace help` lists them.
package main

import (
	"os"

	"github.com/headrace/headrace/internal/cli"
)

func main() {
	os.Exit(cli.Main(os.Args[1:], cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}))
}
