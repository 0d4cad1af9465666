//go:build !failpoint

package failpoint

// Enabled reports whether the binary was built with failpoints.
const Enabled = false

// Hit does nothing in this build.
func Hit(string) {}
