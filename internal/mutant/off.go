//go:build !mutant

package mutant

// Enabled reports whether this build can be made faulty.
const Enabled = false

// On reports whether the named fault is switched on: never, in this build.
func On(string) bool { return false }
