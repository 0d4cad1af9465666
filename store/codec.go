package store

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"unsafe"

	storev1 "github.com/headrace/headrace/proto/headrace/store/v1"
	"github.com/headrace/headrace/task"
)

// forms lends messages to Encode: a commit encodes thousands of rows, each for a moment.
var forms = sync.Pool{New: func() any { return new(form) }}

// form is a message with those within, all empty.
type form struct {
	storev1.Task
	tries []*storev1.Try
}

// Encode appends the stored form of a task to dst and returns the longer slice. Equal tasks have
// equal bytes. Fields that Decode did not know come out again as they were.
func Encode(dst []byte, t *Task) []byte {
	return encode(dst, t, parts{payload: t.Payload, result: t.Result})
}

// EncodeBare is Encode without payload and result, for engines that keep them elsewhere.
func EncodeBare(dst []byte, t *Task) []byte { return encode(dst, t, parts{}) }

// EncodeEnded is Encode without payload, for history.
func EncodeEnded(dst []byte, t *Task) []byte { return encode(dst, t, parts{result: t.Result}) }

// EncodeKeyed is EncodeBare without the id, and without CreatedAt, DueAt and FirstDueAt unless times is set: for engines
// that have them in columns of their own.
func EncodeKeyed(dst []byte, t *Task, times bool) []byte {
	return encode(dst, t, parts{noID: true, noTimes: !times})
}

// parts says what of a task is encoded besides its numbers and names.
type parts struct {
	payload, result []byte
	noID, noTimes   bool
}

func encode(dst []byte, t *Task, p parts) []byte {
	m := forms.Get().(*form)
	fill(m, t)
	m.Payload, m.Result = p.payload, p.result
	if p.noID {
		m.Id = nil
	}
	if p.noTimes {
		m.CreatedAt, m.DueAt, m.FirstDueAt, m.NoFirstDue = 0, 0, 0, false
	}
	n := m.SizeVT()
	at := len(dst)
	dst = slices.Grow(dst, n+len(t.unknown))[:at+n]
	if _, err := m.MarshalToSizedBufferVT(dst[at:]); err != nil {
		panic(err) // it has no error but that of a size that SizeVT got wrong
	}
	for _, y := range m.Tries {
		y.Reset()
	}
	m.Reset()
	forms.Put(m)
	return append(dst, t.unknown...)
}

// Decode reads what Encode wrote. The task shares the memory of data, which must not change afterwards.
func Decode(data []byte) (*Task, error) {
	var m storev1.Task
	if err := m.UnmarshalVTUnsafe(data); err != nil {
		return nil, fmt.Errorf("decode a task: %w", err)
	}
	if len(m.Id) != len(task.ID{}) {
		return nil, fmt.Errorf("decode a task: its id has %d bytes", len(m.Id))
	}
	if m.Band >= task.Bands || m.Priority > 255 || m.State > 255 || m.ErrClass > 255 {
		return nil, fmt.Errorf("decode task %s: a number is out of range", task.ID(m.Id))
	}
	t := &Task{
		ID:          task.ID(m.Id),
		Tenant:      m.Tenant,
		Function:    m.Function,
		ClientID:    m.ClientId,
		RequestID:   text(m.RequestId),
		Payload:     filled(m.Payload),
		PayloadSize: int(m.PayloadSize),
		PayloadHash: text(m.PayloadHash),
		ContentType: m.ContentType,
		Priority:    uint8(m.Priority),
		Band:        task.Band(m.Band),
		CreatedAt:   instant(m.CreatedAt),
		DueAt:       instant(m.DueAt),
		StartTTL:    duration(m.StartTtl),
		Deadline:    instant(m.Deadline),
		MaxAttempts: int(m.MaxAttempts),
		Timeout:     duration(m.Timeout),
		TraceParent: m.TraceParent,
		TraceState:  m.TraceState,
		State:       task.State(m.State),
		Attempt:     int(m.Attempt),
		Losses:      int(m.Losses),
		Undelivered: int(m.Undelivered),
		Throttles:   int(m.Throttles),
		Snoozes:     int(m.Snoozes),
		Suspect:     m.Suspect,
		LastToken:   task.Token{Epoch: m.LastEpoch, Push: m.LastPush},
		Checkpoint:  filled(m.Checkpoint),
		TriesTotal:  int(m.TriesTotal),
		StartedAt:   instant(m.StartedAt),
		FinishedAt:  instant(m.FinishedAt),
		Result:      filled(m.Result),
		ResultType:  m.ResultType,
		ErrClass:    task.Class(m.ErrClass),
		ErrMessage:  text(m.ErrMessage),
		Fingerprint: m.Fingerprint,
		unknown:     m.ProtoReflect().GetUnknown(),
	}
	switch {
	case m.FirstDueAt != 0:
		t.FirstDueAt = instant(m.FirstDueAt)
	case !m.NoFirstDue:
		t.FirstDueAt = t.DueAt
	}
	if len(m.Labels) > 0 {
		t.Labels = make(map[string]string, len(m.Labels))
		for _, l := range m.Labels {
			t.Labels[l.Key] = l.Value
		}
	}
	if r := m.Record; r != nil {
		t.Record = &Record{Token: task.Token{Epoch: r.Epoch, Push: r.Push}, Executor: text(r.Executor), StartedAt: instant(r.StartedAt),
			Announced: r.Announced, Silent: duration(r.Silent), SilentBy: r.SilentBy}
	}
	if c := m.Cancel; c != nil {
		t.Cancel = &Cancel{instant(c.At), text(c.Reason)}
	}
	if len(m.Tries) > 0 {
		t.Tries = make([]Try, len(m.Tries))
		for i, y := range m.Tries {
			t.Tries[i] = readTry(y)
		}
	}
	return t, nil
}

func fill(m *form, t *Task) {
	m.Id = t.ID[:]
	m.Tenant = t.Tenant
	m.Function = t.Function
	m.ClientId = t.ClientID
	m.RequestId = raw(t.RequestID)
	m.PayloadSize = uint64(t.PayloadSize)
	m.PayloadHash = raw(t.PayloadHash)
	m.ContentType = t.ContentType
	m.Priority = uint32(t.Priority)
	m.Band = uint32(t.Band)
	m.CreatedAt = micros(t.CreatedAt)
	m.DueAt = micros(t.DueAt)
	if first := micros(t.FirstDueAt); first != m.DueAt {
		m.FirstDueAt, m.NoFirstDue = first, first == 0
	}
	m.StartTtl = int64(t.StartTTL)
	m.Deadline = micros(t.Deadline)
	m.MaxAttempts = int64(t.MaxAttempts)
	m.Timeout = int64(t.Timeout)
	m.TraceParent = t.TraceParent
	m.TraceState = t.TraceState
	m.State = uint32(t.State)
	m.Attempt = int64(t.Attempt)
	m.Losses = int64(t.Losses)
	m.Undelivered = int64(t.Undelivered)
	m.Throttles = int64(t.Throttles)
	m.Snoozes = int64(t.Snoozes)
	m.Suspect = t.Suspect
	m.LastEpoch, m.LastPush = t.LastToken.Epoch, t.LastToken.Push
	m.Checkpoint = t.Checkpoint
	m.TriesTotal = int64(t.TriesTotal)
	m.StartedAt = micros(t.StartedAt)
	m.FinishedAt = micros(t.FinishedAt)
	m.ResultType = t.ResultType
	m.ErrClass = uint32(t.ErrClass)
	m.ErrMessage = raw(t.ErrMessage)
	m.Fingerprint = t.Fingerprint
	if len(t.Labels) > 0 {
		for _, k := range slices.Sorted(maps.Keys(t.Labels)) {
			m.Labels = append(m.Labels, &storev1.Label{Key: k, Value: t.Labels[k]})
		}
	}
	if r := t.Record; r != nil {
		m.Record = &storev1.Record{Epoch: r.Token.Epoch, Push: r.Token.Push, Executor: raw(r.Executor),
			StartedAt: micros(r.StartedAt), Announced: r.Announced, Silent: int64(r.Silent), SilentBy: r.SilentBy}
	}
	if c := t.Cancel; c != nil {
		m.Cancel = &storev1.Cancel{At: micros(c.At), Reason: raw(c.Reason)}
	}
	for i := range t.Tries {
		if i == len(m.tries) {
			m.tries = append(m.tries, new(storev1.Try))
		}
		writeTry(m.tries[i], &t.Tries[i])
	}
	m.Tries = m.tries[:len(t.Tries)]
}

func writeTry(m *storev1.Try, y *Try) {
	m.Attempt, m.Epoch, m.Push, m.Executor = int64(y.Attempt), y.Token.Epoch, y.Token.Push, raw(y.Executor)
	m.ChosenAt, m.PushedAt, m.AckedAt = micros(y.ChosenAt), micros(y.PushedAt), micros(y.AckedAt)
	m.EndedAt, m.CommittedAt = micros(y.EndedAt), micros(y.CommittedAt)
	m.Class, m.Message, m.LogTruncated = uint32(y.Class), raw(y.Message), y.LogTruncated
	for _, l := range y.LogLines {
		m.LogLines = append(m.LogLines, raw(l))
	}
}

func readTry(m *storev1.Try) Try {
	y := Try{
		Attempt: int(m.Attempt), Token: task.Token{Epoch: m.Epoch, Push: m.Push}, Executor: text(m.Executor),
		ChosenAt: instant(m.ChosenAt), PushedAt: instant(m.PushedAt), AckedAt: instant(m.AckedAt),
		EndedAt: instant(m.EndedAt), CommittedAt: instant(m.CommittedAt),
		Class: task.Class(m.Class), Message: text(m.Message), LogTruncated: m.LogTruncated,
	}
	for _, l := range m.LogLines {
		y.LogLines = append(y.LogLines, text(l))
	}
	return y
}

// raw lends a string's bytes to the encoder, which only reads them.
func raw(s string) []byte {
	if s == "" {
		return nil
	}
	return unsafe.Slice(unsafe.StringData(s), len(s))
}

// text shares the memory of b, as Decode's result does.
func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// filled returns b, nil if it is empty.
func filled(b []byte) []byte {
	if len(b) == 0 {
		return nil
	}
	return b
}
