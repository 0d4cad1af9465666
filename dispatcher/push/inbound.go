package push

import (
	"fmt"
	"iter"
	"strings"
	"unicode/utf8"

	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

// Limits of a hello.
const (
	maxSlots       = 100_000
	maxFunctions   = 10_000
	maxClaims      = 2 * maxSlots // running ones, and outcomes that are not confirmed yet
	maxEpochs      = 1 << 16
	maxSDKVersion  = 63
	maxProgressLen = 255
)

// checkFirst checks the message that opens a session. Its error is a *task.FieldError. The policies
// and what claims say of tries are for the core to check against what it knows.
func checkFirst(m *headracev1.SessionRequest) error {
	if m.Hello == nil {
		return &task.FieldError{Field: "hello", Want: "a hello in the first message of a session"}
	}
	return checkHello(m.Hello)
}

// checkHello checks what an executor says of itself, also when a new owner asks it again (R14).
func checkHello(h *headracev1.Hello) error {
	if len(h.ExecutorId) != 16 {
		return &task.FieldError{Field: "hello.executor_id", Value: fmt.Sprintf("%d bytes", len(h.ExecutorId)), Want: "16 random bytes"}
	}
	if len(h.Name) > task.MaxNameLen || !plain(h.Name) {
		return &task.FieldError{Field: "hello.name", Value: h.Name, Want: "at most 63 bytes of UTF-8 without control characters"}
	}
	if len(h.SdkVersion) > maxSDKVersion || !plain(h.SdkVersion) {
		return &task.FieldError{Field: "hello.sdk_version", Value: h.SdkVersion, Want: "at most 63 bytes of UTF-8 without control characters"}
	}
	if _, ok := headracev1.Speak(h.Protocol); !ok {
		return &task.FieldError{Field: "hello.protocol", Value: fmt.Sprint(h.Protocol), Want: fmt.Sprintf("%d or newer: this node speaks %[1]d to %d", headracev1.OldestProtocol, headracev1.Protocol)}
	}
	if h.Slots < 1 || h.Slots > maxSlots {
		return &task.FieldError{Field: "hello.slots", Value: fmt.Sprint(h.Slots), Want: "1 to 100000"}
	}
	if n := len(h.Functions); n < 1 || n > maxFunctions {
		return &task.FieldError{Field: "hello.functions", Value: fmt.Sprintf("%d functions", n), Want: "1 to 10000"}
	}
	seen := make(map[[2]string]bool, len(h.Functions))
	for i, f := range h.Functions {
		at := fmt.Sprintf("hello.functions[%d].", i)
		if err := checkFunction(at, f); err != nil {
			return err
		}
		if key := [2]string{f.Tenant, f.Name}; seen[key] {
			return &task.FieldError{Field: at + "name", Value: f.Name, Want: "each function of a tenant once"}
		} else {
			seen[key] = true
		}
	}
	if n := len(h.Claims); n > maxClaims {
		return &task.FieldError{Field: "hello.claims", Value: fmt.Sprintf("%d claims", n), Want: "at most 200000"}
	}
	for i, c := range h.Claims {
		at := fmt.Sprintf("hello.claims[%d].", i)
		if len(c.TaskId) != 16 || c.Token == nil {
			return &task.FieldError{Field: at + "task_id", Want: "16 bytes, and a token beside it"}
		}
		if err := task.Name(at+"tenant", c.Tenant); err != nil {
			return err
		}
		if err := task.Name(at+"function", c.Function); err != nil {
			return err
		}
	}
	if n := len(h.Epochs); n > maxEpochs {
		return &task.FieldError{Field: "hello.epochs", Value: fmt.Sprintf("%d epochs", n), Want: "at most 65536"}
	}
	return nil
}

func checkFunction(at string, f *headracev1.FunctionDeclaration) error {
	if err := task.Name(at+"tenant", f.Tenant); err != nil {
		return err
	}
	if err := task.Name(at+"name", f.Name); err != nil {
		return err
	}
	p := task.Policy{
		Version: f.Version, Timeout: f.Timeout.AsDuration(), MaxAttempts: int(f.MaxAttempts),
		Backoff:       task.Backoff{Base: f.BackoffBase.AsDuration(), Factor: f.BackoffFactor, Max: f.BackoffMax.AsDuration()},
		OrphanTimeout: f.OrphanTimeout.AsDuration(), CancelGrace: f.CancelGrace.AsDuration(),
		Exclusive: f.Exclusive, Downstream: f.Downstream, Cost: int(min(f.Cost, 1<<30)), Requires: f.Requires, Prefers: f.Prefers,
	}
	if err := p.Validate(); err != nil {
		if field, ok := err.(*task.FieldError); ok {
			return &task.FieldError{Field: at + strings.TrimPrefix(field.Field, "policy."), Value: field.Value, Want: field.Want}
		}
		return err
	}
	return nil
}

// plain reports whether s is UTF-8 without control characters.
func plain(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return r < 0x20 || r >= 0x7f && r < 0xa0 || r == 0x2028 || r == 0x2029 })
}

// text returns s as one line of valid UTF-8, at most most bytes long.
func text(s string, most int) string {
	if len(s) <= most && plain(s) {
		return s
	}
	if len(s) > 4*most {
		s = s[:4*most]
	}
	s = strings.Map(func(r rune) rune {
		if plain(string(r)) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(s, "\ufffd"))
	if len(s) > most {
		for most > 0 && !utf8.RuneStart(s[most]) {
			most--
		}
		s = s[:most]
	}
	return s
}

// clean brings what handlers say into its limits. Our SDK keeps them; a report of any other must not
// be lost for them: the work is done.
func clean(m *headracev1.SessionRequest, maxResult int) {
	if m.Hello != nil {
		for _, c := range m.Hello.Claims {
			if c.Outcome != nil {
				cleanOutcome(c.Outcome, maxResult)
			}
		}
	}
	for _, o := range m.Outcomes {
		cleanOutcome(o, maxResult)
	}
	for _, p := range m.Progress {
		p.Message = text(p.Message, maxProgressLen)
		if !(p.Fraction >= 0 && p.Fraction <= 1) { // NaN too
			p.Fraction = 0
		}
		if len(p.Checkpoint) > task.MaxCheckpoint {
			p.Checkpoint = nil
		}
	}
	for _, r := range m.Logs {
		for _, e := range r.Entries {
			e.Level = text(e.Level, 16)
			e.Message = strings.ReplaceAll(strings.ToValidUTF8(cut(e.Message, task.MaxLogBytes), "\ufffd"), "\x00", `\x00`)
		}
	}
}

func cleanOutcome(o *headracev1.Outcome, maxResult int) {
	if len(o.Result) > maxResult {
		o.ErrorClass = headracev1.ErrorClass_ERROR_CLASS_NON_RETRYABLE
		o.Message = fmt.Sprintf("the result has %d bytes, the limit is %d", len(o.Result), maxResult)
		o.Result = nil
	}
	if len(o.Message) > 0 {
		o.Message = task.CutError(o.Message)
	}
	if o.ErrorClass < 0 || int(o.ErrorClass) >= task.ClassCount {
		o.ErrorClass = headracev1.ErrorClass_ERROR_CLASS_RETRYABLE // of a newer SDK: a failure of some kind
	}
	o.ResultContentType = text(o.ResultContentType, task.MaxContentTypeLen)
	o.RetryAfterMicros = max(o.RetryAfterMicros, 0)
	o.RunMicros = max(o.RunMicros, 0)
	if o.Downstream != "" && task.Name("downstream", o.Downstream) != nil {
		o.Downstream = ""
	}
	if len(o.Checkpoint) > task.MaxCheckpoint {
		o.Checkpoint = nil
	}
}

func cut(s string, most int) string {
	if len(s) > most {
		return s[:most]
	}
	return s
}

// sliceItems bounds what one message hands to the core: a call of it must stay short.
const sliceItems = 256

// split yields m in parts of at most sliceItems acks, outcomes and so on. Acks go before outcomes, a hello
// with the first, and
// credit and beat ride with the last part: a beat covers all that was sent before it.
func split(m *headracev1.SessionRequest) iter.Seq[*headracev1.SessionRequest] {
	return func(yield func(*headracev1.SessionRequest) bool) {
		for len(m.Acks)+len(m.Outcomes)+len(m.Progress)+len(m.Logs) > sliceItems {
			part, room := &headracev1.SessionRequest{Hello: m.Hello}, sliceItems
			m.Hello = nil
			part.Acks, m.Acks, room = take(m.Acks, room)
			part.Outcomes, m.Outcomes, room = take(m.Outcomes, room)
			part.Progress, m.Progress, room = take(m.Progress, room)
			part.Logs, m.Logs, _ = take(m.Logs, room)
			if !yield(part) {
				return
			}
		}
		if m.Hello != nil || len(m.Acks)+len(m.Outcomes)+len(m.Progress)+len(m.Logs) > 0 || m.Beat != nil || m.Credit != 0 || m.Recall != 0 || m.Draining {
			yield(m)
		}
	}
}

func take[T any](from []T, room int) (part, rest []T, left int) {
	n := min(len(from), room)
	return from[:n:n], from[n:], room - n
}
