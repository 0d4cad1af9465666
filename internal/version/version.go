// Package version says which build this is.
package version

import (
	"runtime/debug"
	"strings"
)

// Version is the release, set by the release build with -ldflags "-X …/internal/version.Version=v1.2.3".
// Empty: String asks the module's build information.
var Version string

// String returns the release, or what the Go tool recorded: the module's version for `go install`, the
// commit for a build of a checkout, "devel" for neither.
func String() string {
	if Version != "" {
		return Version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "devel"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	commit, dirty := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			commit = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "+changes"
		}
	}
	if commit == "" {
		return "devel"
	}
	return strings.TrimSpace("devel-" + commit[:min(12, len(commit))] + dirty)
}
