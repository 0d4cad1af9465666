package task

import "fmt"

// State says where a task is in its life. Its text is used in JSON, logs and metrics.
type State uint8

// The states. The last four are terminal.
const (
	StateUnspecified State = iota
	Scheduled              // waits for its due time
	Queued                 // due, waits for its turn
	Running                // a try was acknowledged by an executor
	Retrying               // waits for its next try after a failure, throttle, snooze or loss
	Succeeded
	Failed // a dead letter
	Cancelled
	Expired // its start TTL or deadline passed
)

var stateNames = [...]string{"unspecified", "scheduled", "queued", "running", "retrying", "succeeded", "failed", "cancelled", "expired"}

func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// Terminal reports whether a task in s has ended.
func (s State) Terminal() bool { return s >= Succeeded }

// ParseState reads a state's text. Its error is a *FieldError for the field "state".
func ParseState(name string) (State, error) {
	for i, n := range stateNames[1:] {
		if n == name {
			return State(i + 1), nil
		}
	}
	return 0, &FieldError{Field: "state", Value: name, Want: "one of scheduled, queued, running, retrying, succeeded, failed, cancelled, expired"}
}

// Band is the standing of a task inside its tenant: high 16 : normal 4 : low 1.
type Band uint8

// The bands, in the order in which ties between them are broken.
const (
	High Band = iota
	Normal
	Low
	Bands = 3 // how many there are
)

var bandNames = [Bands]string{"high", "normal", "low"}

func (b Band) String() string {
	if b < Bands {
		return bandNames[b]
	}
	return fmt.Sprintf("band(%d)", uint8(b))
}

// ParseBand reads a band's text; the empty text is normal. Its error is a *FieldError for "band".
func ParseBand(name string) (Band, error) {
	if name == "" {
		return Normal, nil
	}
	for i, n := range bandNames {
		if n == name {
			return Band(i), nil
		}
	}
	return 0, &FieldError{Field: "band", Value: name, Want: "high, normal or low"}
}

// Class says what kind of end a try had. It decides what happens next (see Policy).
type Class uint8

// The classes. Only Retryable, NonRetryable and Timeout spend an attempt.
const (
	ClassNone      Class = iota // success
	Retryable                   // spends an attempt; retried with back-off
	NonRetryable                // ends as a dead letter at once
	Throttled                   // the downstream said "too much"; no attempt spent
	Snoozed                     // the handler asked to be called later; no attempt spent
	CancelledClass              // the handler stopped because of a cancel
	Timeout                     // the attempt's time ran out; spends an attempt; retried
	ExecutorLost                // the executor died or was cut off; counted as a loss
	ExpiredClass                // start TTL or deadline passed
	Drained                     // the executor shut down and gave the try back; nothing is counted
	ClassCount     = 10
)

var classNames = [ClassCount]string{"", "retryable", "non_retryable", "throttled", "snooze", "cancelled", "timeout", "executor_lost", "expired", "drained"}

func (c Class) String() string {
	if c < ClassCount {
		return classNames[c]
	}
	return fmt.Sprintf("class(%d)", uint8(c))
}
