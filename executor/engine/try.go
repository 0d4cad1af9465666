package engine

import (
	"time"

	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

// A Try is one push that was taken. Exported fields but Data are set before its Start and never change.
type Try struct {
	ID    task.ID
	Token task.Token
	// Push is the message as it came; read only.
	Push *headracev1.Push
	// Session brought it: payloads are fetched from that node.
	Session SessionID
	// Function is the index of its declaration in Config.Functions.
	Function  int
	StartedAt time.Time
	// TimeoutAt is when the attempt's time is over; zero: never.
	TimeoutAt time.Time

	Data any // the shell's own; the engine never looks at it

	part     *partition
	slots    int // that it holds while it runs
	state    tryState
	home     *session // where its outcome is told, or waits to be; nil: nowhere yet
	void     bool     // running, but nobody wants its outcome
	recorded bool     // its record is on disk, so its own orphan timeout counts (R9)
	cause    Cause
	beatAt   time.Time // when the beat that its push named was sent
	orphan   time.Duration
	grace    time.Duration
	outcome  *headracev1.Outcome // state ended
	sentAt   time.Time           // of the outcome, in the newest session; zero: it waits in a queue or for a session

	wakeAt time.Time // in the timer heap while heapAt > 0
	heapAt int       // index in the heap + 1

	report *report // log lines and progress that wait; nil for most tries
}

type tryState uint8

const (
	running tryState = iota
	ended            // its outcome waits to be committed
	done             // forgotten but for its token
)

// Cause says why a handler was cancelled.
type Cause uint8

// The causes.
const (
	CauseNone      Cause = iota
	CauseCancelled       // somebody cancelled the task
	CauseStale           // the try is not the current one any more; its outcome is not wanted
	CauseOrphaned        // the owner could not be reached for too long (R7)
	CauseTimeout         // the attempt's time or the task's deadline ran out
	CauseDrained         // this executor shuts down
)

var causeNames = [...]string{"none", "cancelled", "stale", "orphaned", "timeout", "drained"}

func (c Cause) String() string { return causeNames[c] }

// Result is how a handler ended.
type Result struct {
	Class       task.Class // ClassNone: success
	Body        []byte     // of a success
	ContentType string
	Message     string // of a failure; at most task.MaxErrorText bytes
	RetryAfter  time.Duration
	Downstream  string
	// Explicit says that the handler chose the class itself, by one of the wrapper errors.
	Explicit bool
	// Interrupted says that the error is, or wraps, that of a cancelled context.
	Interrupted bool
}

// settle is what the owner is told: the handler's own word, unless it was stopped and did not succeed.
// A handler that was stopped by a timeout or drain and says something definite of its own, not just
// that it was stopped, is believed.
func (t *Try) settle(now time.Time, r Result) (task.Class, string) {
	if r.Class == task.ClassNone {
		return task.ClassNone, ""
	}
	cause := t.cause
	if cause == CauseNone && !t.TimeoutAt.IsZero() && !now.Before(t.TimeoutAt) {
		cause = CauseTimeout
	}
	var class task.Class
	var why string
	definite := r.Explicit && !r.Interrupted
	switch {
	case cause == CauseCancelled:
		class, why = task.CancelledClass, "stopped by a cancel"
	case cause == CauseOrphaned:
		class, why = task.ExecutorLost, "stopped by its executor, which could not reach the owner"
	case cause == CauseTimeout && !definite:
		class, why = task.Timeout, "the attempt's time ran out"
	case cause == CauseDrained && !definite:
		class, why = task.Drained, "given back by its executor, which shut down"
	default:
		return r.Class, r.Message
	}
	if !r.Interrupted && r.Message != "" { // "context canceled" would only confuse
		why = task.CutError(why + ": " + r.Message)
	}
	return class, why
}

// report holds what a handler has said and the owner has not been sent.
type report struct {
	listed     bool      // in Engine.reporting
	progressAt time.Time // no progress before this
	logAt      time.Time // no log lines before this

	progress   bool // fraction and message are news
	fraction   float64
	message    string
	checkpoint []byte // the newest, kept for the outcome
	checked    bool   // checkpoint is news

	lines     []*headracev1.LogEntry
	lineBytes int
	dropped   int
}
