package headracev1

// Versions of the protocol between executors and nodes. A version is for what the other side must understand to
// work rightly; a field that it may ignore needs none. Nodes speak every version from OldestProtocol on: those
// of executors two releases back at least.
const (
	Protocol       = 1
	OldestProtocol = 1
)

// Speak returns the version that a session is held in with a peer that says theirs (0: 1, it is of a build that did
// not say), and whether this build speaks it.
func Speak(theirs uint32) (version uint32, ok bool) {
	version = min(max(theirs, 1), Protocol)
	return version, version >= OldestProtocol
}
