package dispatcher

import (
	"os"
	"runtime/debug"
	"sync"
)

// gcPercent is how much garbage the heap may gather over what lives, as long as the memory limit allows
// it. A node's live heap is small (windows, tables) and its garbage is short-lived rows: with the
// usual 100 the collector would run several times a second under load, for little.
const gcPercent = 200

// ballast lets a small heap gather as much garbage as a larger one would: 96 MiB more. Nothing touches it, so it is not in
// memory, and what the collector counts for it is added to its limit.
var ballast []byte

const ballastBytes = 48 << 20

var tuned sync.Once

// tune sets the collector for a process that is one node: of several, as tests have them, the first decides. Who sets GOGC or
// GOMEMLIMIT knows better.
func tune(memory int64) { tuned.Do(func() { setCollector(memory) }) }

func setCollector(memory int64) {
	if os.Getenv("GOMEMLIMIT") == "" {
		if os.Getenv("GOGC") == "" {
			ballast = make([]byte, ballastBytes)
		}
		debug.SetMemoryLimit(memory + int64(len(ballast)))
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
}
