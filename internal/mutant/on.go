//go:build mutant

package mutant

// Enabled reports whether this build can be made faulty.
const Enabled = true

var current string // set between simulations, on their goroutine

// On reports whether the named fault is switched on.
func On(name string) bool { return current == name }

// Set switches the named fault on and all others off; "" is none. Not while a simulation runs.
func Set(name string) { current = name }
