package store

import (
	"bytes"
	"reflect"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	storev1 "github.com/headrace/headrace/proto/headrace/store/v1"
	"github.com/headrace/headrace/task"
)

func sample() *Task {
	at := time.Date(2026, 3, 1, 12, 0, 0, 123456000, time.UTC)
	return &Task{
		ID: task.NewID(7, 8, 9), Tenant: "acme", Function: "f", ClientID: "ä", RequestID: "\x00\xff", Payload: []byte{0},
		PayloadSize: 1, Labels: map[string]string{"b": "2", "a": "1", "c": ""}, CreatedAt: at, DueAt: at, FirstDueAt: at,
		Deadline: at.AddDate(8000, 0, 0), State: task.Retrying, Band: task.Low, Priority: 9, Attempt: 2,
		Record: &Record{Executor: "\xff", StartedAt: at}, Cancel: &Cancel{Reason: "r"},
		Tries: []Try{{Attempt: 1, Message: "\xffno UTF-8", LogLines: []string{"", "x"}}}, Fingerprint: 1 << 63, ErrMessage: "m",
	}
}

// Equal tasks have equal bytes: no map order gets into them.
func TestEncodeIsDeterministic(t *testing.T) {
	t.Parallel()
	want := Encode(nil, sample())
	for range 50 {
		if got := Encode([]byte("dst"), sample()); !bytes.Equal(got[3:], want) {
			t.Fatalf("%x, then %x", want, got[3:])
		}
	}
	got, err := Decode(want)
	if err != nil || !reflect.DeepEqual(got, sample()) {
		t.Fatalf("decoded %+v, %v", got, err)
	}
}

// A row is a message that any protobuf library reads.
func TestRowIsProtobuf(t *testing.T) {
	t.Parallel()
	var m storev1.Task
	if err := proto.Unmarshal(Encode(nil, sample()), &m); err != nil || m.Tenant != "acme" || len(m.Labels) != 3 {
		t.Fatalf("%v, %v", &m, err)
	}
}

// What a newer version wrote into a row survives a change by this one.
func TestUnknownFieldsAreKept(t *testing.T) {
	t.Parallel()
	newer := protowire.AppendTag(Encode(nil, sample()), 5000, protowire.BytesType)
	newer = protowire.AppendString(newer, "from the future")
	got, err := Decode(newer)
	if err != nil {
		t.Fatal(err)
	}
	changed := *got
	changed.Attempt++
	var m storev1.Task
	if err := proto.Unmarshal(Encode(nil, &changed), &m); err != nil {
		t.Fatal(err)
	}
	if u := m.ProtoReflect().GetUnknown(); !bytes.Contains(u, []byte("from the future")) || m.Attempt != 3 {
		t.Fatalf("unknown fields %q, attempt %d", u, m.Attempt)
	}
}

// The zero time, 1970 and times beyond all calendars.
func TestTimes(t *testing.T) {
	t.Parallel()
	for _, at := range []time.Time{
		{}, time.Unix(0, 0), time.Unix(-1, 999_999_000), time.Unix(1<<40, 0), time.Unix(-1<<42, 0),
		time.Date(290000, 12, 31, 23, 59, 59, 999_999_000, time.UTC), time.Date(-290000, 1, 1, 0, 0, 0, 0, time.UTC),
	} {
		if got := instant(micros(at)); !got.Equal(at) || got.IsZero() != at.IsZero() || got.Location() != time.UTC {
			t.Errorf("%v came back as %v", at, got)
		}
	}
	// Beyond what fits they stay as far as it goes, on their side.
	if got := instant(micros(time.Unix(1<<60, 0))); got.Year() < 200_000 {
		t.Errorf("the far future came back as %v", got)
	}
	if got := instant(micros(time.Unix(-1<<60, 0))); got.Year() > -200_000 {
		t.Errorf("the far past came back as %v", got)
	}
}

// Bytes that are no row are an error, never a panic; those that are come back the same.
func FuzzDecode(f *testing.F) {
	f.Add(Encode(nil, sample()))
	f.Add([]byte{})
	f.Add([]byte{0x0a, 0x10})
	f.Fuzz(func(t *testing.T, data []byte) {
		first, err := Decode(bytes.Clone(data))
		if err != nil {
			return
		}
		again, err := Decode(Encode(nil, first))
		if err != nil || !bytes.Equal(Encode(nil, again), Encode(nil, first)) {
			t.Fatalf("%+v came back as %+v, %v", first, again, err)
		}
	})
}

func BenchmarkEncode(b *testing.B) {
	row, buf := sample(), []byte(nil)
	b.ReportAllocs()
	for b.Loop() {
		buf = Encode(buf[:0], row)
	}
}

func BenchmarkDecode(b *testing.B) {
	data := Encode(nil, sample())
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Decode(data); err != nil {
			b.Fatal(err)
		}
	}
}

// The shorter forms are what Encode writes of a task that has less, whatever was encoded before: messages are used again.
func TestShorterForms(t *testing.T) {
	full, small := sample(), &Task{ID: sample().ID, Tenant: "t", Function: "f"}
	without := func(row *Task, change func(*Task)) []byte {
		u := *row
		change(&u)
		return Encode(nil, &u)
	}
	const id = 2 + len(task.ID{})
	for range 3 {
		for _, row := range []*Task{full, small} {
			ended := without(row, func(u *Task) { u.Payload = nil })
			if got := EncodeEnded(nil, row); !bytes.Equal(got, ended) {
				t.Errorf("EncodeEnded: % x, want % x", got, ended)
			}
			bare := without(row, func(u *Task) { u.Payload, u.Result = nil, nil })
			if got := EncodeKeyed(nil, row, true); !bytes.Equal(got, bare[id:]) {
				t.Errorf("EncodeKeyed with times: % x, want % x", got, bare[id:])
			}
			timeless := without(row, func(u *Task) {
				u.Payload, u.Result, u.CreatedAt, u.DueAt, u.FirstDueAt = nil, nil, time.Time{}, time.Time{}, time.Time{}
			})
			if got := EncodeKeyed(nil, row, false); !bytes.Equal(got, timeless[id:]) {
				t.Errorf("EncodeKeyed without times: % x, want % x", got, timeless[id:])
			}
		}
	}
}
