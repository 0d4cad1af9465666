package store

import "context"

// Alarm is something wrong with a database that a person must put right.
type Alarm struct {
	Kind    string // one of the Alarm constants
	Message string // one line: who or what
}

// The kinds of alarms that stores raise.
const (
	AlarmDisk = "disk"        // there is little or no room on the disk
	AlarmXmin = "xmin_pinned" // somebody's old transaction keeps dead rows in place
)

// Watched is a Store that knows what is wrong with it. Alarms asks the database, so its error says that it does not
// answer. It may be called every second or two.
type Watched interface {
	Alarms(ctx context.Context) ([]Alarm, error)
}
