//go:build !failpoint

package failpoint

// Enabled reports whether the binary was built with failpoints.
const Enabled = false

// Label is the label of a task that names the failpoint that handling the task hits.
const Label = "headrace-failpoint"

// Hit does nothing in this build.
func Hit(string) {}
