package dispatcher

import (
	"os"
	"runtime/debug"
)

// gcPercent is how much garbage the heap may gather over what lives, as long as the memory limit allows
// it. A node's live heap is small (windows, tables) and its garbage is short-lived rows: with the
// usual 100 the collector would run several times a second under load, for little.
const gcPercent = 200

// tune sets the collector for a process that is one node. Who sets GOGC or GOMEMLIMIT knows better.
func tune(memory int64) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memory)
	}
}
