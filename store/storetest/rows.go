package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// A row with every field set comes back equal, hot and finished.
func testEveryFieldComesBack(t *testing.T, e *env) {
	e.acquire(1)
	e.seqs[1]++
	a := fullTask(task.NewID(1, 1, 1<<55), rand.New(rand.NewPCG(1, 2)))
	a.State = task.Retrying
	b := *a
	b.Payload = a.Payload
	e.commit(1, insert(&b))
	same(t, "hot", e.get(a.ID), a)
	done := *a
	done.State, done.FinishedAt, done.Result, done.ResultType = task.Failed, base.Add(time.Minute), []byte{0, 1, 0}, "x/y"
	e.commit(1, finish(a, &done))
	same(t, "finished", e.get(a.ID), &done)
	e.reopen()
	same(t, "after a crash", e.get(a.ID), &done)
}

// fullTask sets every field of a hot row.
func fullTask(id task.ID, r *rand.Rand) *store.Task {
	at := func() time.Time { return base.Add(time.Duration(r.Int64N(1e12)) * time.Microsecond) }
	t := &store.Task{
		ID: id, Tenant: "acme", Function: "resize", ClientID: "order-" + id.String(), RequestID: "\x00\xff23456789abcdef",
		Payload: []byte{0, 0xff, 'a', 0}, PayloadSize: 4, PayloadHash: "\x80hash", ContentType: "text/plain",
		Labels:   map[string]string{"a": "1", "b": "", "ä": "ö=ü"},
		Priority: uint8(r.IntN(10)), Band: task.Band(r.IntN(task.Bands)),
		CreatedAt: at(), DueAt: at(), FirstDueAt: at(), StartTTL: time.Hour, Deadline: at(), MaxAttempts: 9, Timeout: time.Minute,
		TraceParent: "00-1-2-01", TraceState: "k=v",
		State: task.Queued, Attempt: 3, Losses: 1, Undelivered: 2, Throttles: 4, Snoozes: 5, Suspect: true,
		LastToken: task.Token{Epoch: 8, Push: 1 << 40}, StartedAt: at(),
		Record:     &store.Record{Token: task.Token{Epoch: 9, Push: 7}, Executor: "\x00executor-id-xyz", StartedAt: at(), Announced: true, Silent: 7 * time.Second, SilentBy: 8},
		Cancel:     &store.Cancel{At: at(), Reason: "no longer needed"},
		Checkpoint: []byte("step 3\x00"), TriesTotal: 40,
		ErrClass: task.Throttled, ErrMessage: "too much: \\x00", Fingerprint: 1 << 63,
	}
	for i := range 2 {
		t.Tries = append(t.Tries, store.Try{
			Attempt: i + 1, Token: task.Token{Epoch: 8, Push: uint64(i)}, Executor: "host-1", ChosenAt: at(), PushedAt: at(),
			AckedAt: at(), EndedAt: at(), CommittedAt: at(), Class: task.Timeout, Message: "late", LogLines: []string{"one", "", "three"},
			LogTruncated: true,
		})
	}
	return t
}

// Times of any age and the zero time come back; what is below a microsecond is cut.
func testExtremeTimes(t *testing.T, e *env) {
	e.acquire(1)
	times := []time.Time{
		time.Date(1, 1, 1, 0, 0, 0, 1000, time.UTC), time.Date(1969, 12, 31, 23, 59, 59, 999999000, time.UTC),
		time.Unix(0, 0).UTC(), time.Unix(0, 1999).UTC(), base, time.Date(9999, 12, 31, 23, 59, 59, 999999999, time.UTC),
		time.Date(100000, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	var want []*store.Task
	for _, at := range times {
		for _, state := range []task.State{task.Queued, task.Scheduled} {
			a := e.newTask(1, "acme", "f")
			a.CreatedAt, a.DueAt, a.FirstDueAt, a.Deadline, a.StartedAt, a.State = at, at, time.Time{}, at, at, state
			e.commit(1, insert(a))
			w := *a
			w.CreatedAt = at.Truncate(time.Microsecond)
			w.DueAt, w.Deadline, w.StartedAt = w.CreatedAt, w.CreatedAt, w.CreatedAt
			same(t, at.String(), e.get(a.ID), &w)
			want = append(want, &w)
		}
	}
	var ready, due, listed []*store.Task
	for i, w := range want {
		if i%2 == 0 {
			ready = append(ready, w)
		} else {
			due = append(due, w)
		}
		listed = append([]*store.Task{bare(w)}, listed...)
	}
	rows, more, err := e.s.Ready(t.Context(), 1, ready[0].Flow(), store.Key{}, 100, 1<<20, 1<<20)
	if err != nil || more {
		t.Fatalf("ready = more %v, %v", more, err)
	}
	sameRows(t, "ready", rows, ready)
	rows, more, err = e.s.Due(t.Context(), 1, store.Key{}, time.Date(20000, 1, 1, 0, 0, 0, 0, time.UTC), 100, 1<<20, 1<<20)
	if err != nil || more {
		t.Fatalf("due = more %v, %v", more, err)
	}
	sameRows(t, "due", rows, due[:len(due)-1])
	rows, _, err = e.s.List(t.Context(), store.Filter{Tenant: "acme"}, store.Cursor{}, 100)
	if err != nil {
		t.Fatal(err)
	}
	sameRows(t, "list", rows, listed)
}

// Payloads and results are opaque: every byte, every size around the limits of engines.
func testBytesComeBack(t *testing.T, e *env) {
	e.acquire(1)
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	values := [][]byte{
		[]byte("null"), []byte(`""`), []byte("[]"), []byte("{}"), []byte(" "), []byte("0"), []byte("false"), {0}, {0xff},
		[]byte("\xef\xbb\xbf"), []byte("{\"a\":\"\\u0000\",\"\\u0000\":[1]}"), []byte("a\x00b"), all,
	}
	for _, n := range []int{4095, 4096, 4097, 65536, 65537, 1 << 20, 3 << 20} {
		values = append(values, bytes.Repeat([]byte{0, 1, 0xff, 'x'}, n/4+1)[:n])
	}
	for _, v := range values {
		for _, state := range []task.State{task.Succeeded, task.Failed} {
			a := e.newTask(1, "acme", "f")
			a.Payload, a.PayloadSize = v, len(v)
			e.commit(1, insert(a))
			if got := e.get(a.ID); !bytes.Equal(got.Payload, v) || got.PayloadSize != len(v) {
				t.Fatalf("payload of %d bytes came back as %d bytes", len(v), len(got.Payload))
			}
			done := ended(a, state)
			done.Result = v
			e.commit(1, finish(a, done))
			if got := e.get(a.ID); !bytes.Equal(got.Result, v) {
				t.Fatalf("result of %d bytes came back as %d bytes", len(v), len(got.Result))
			}
		}
	}
}

// Absent and empty are the same: nil of size 0.
func testEmptyPayload(t *testing.T, e *env) {
	e.acquire(1)
	for _, v := range [][]byte{nil, {}} {
		a := e.newTask(1, "acme", "f")
		a.Payload, a.PayloadSize, a.Labels, a.Tries, a.Checkpoint = v, 0, map[string]string{}, []store.Try{}, []byte{}
		e.commit(1, insert(a))
		got := e.get(a.ID)
		if got.Payload != nil || got.PayloadSize != 0 || got.Labels != nil || got.Tries != nil || got.Checkpoint != nil {
			t.Fatalf("%#v came back as %+v", v, got)
		}
		done := ended(a, task.Failed)
		done.Result = v
		e.commit(1, finish(a, done))
		if got := e.get(a.ID); got.Payload != nil || got.Result != nil {
			t.Fatalf("finished with %#v came back as %+v", v, got)
		}
	}
}

// An id must match in its random bits too: they are what can't be guessed.
func testUnknownID(t *testing.T, e *env) {
	e.acquire(1)
	a := e.newTask(1, "acme", "f")
	e.commit(1, insert(a))
	for _, id := range []task.ID{{}, task.NewID(1, 2, 0), task.NewID(2, 1, 7919), task.NewID(1, 1, 7920)} {
		if got, err := e.s.Get(t.Context(), id); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("get %s = %v, %v; want not found", id, got, err)
		}
	}
	e.commit(1, finish(a, ended(a, task.Succeeded)))
	if got, err := e.s.Get(t.Context(), task.NewID(1, 1, 7920)); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("get of a finished task by a wrong id = %v, %v; want not found", got, err)
	}
}

var sizes = []int{7, 4096, 4097, 1 << 20}

// A dead letter can be redriven, so its payload stays; of what else has ended only the size stays.
func testFinishPayload(t *testing.T, e *env) {
	e.acquire(1)
	for _, size := range sizes {
		for state := task.Succeeded; state <= task.Expired; state++ {
			for _, inMemory := range []bool{false, true} {
				a := e.newTask(1, "acme", "f")
				a.Payload, a.PayloadSize = bytes.Repeat([]byte{'p'}, size), size
				e.commit(1, insert(a))
				done := ended(a, state)
				if inMemory {
					done.Payload = a.Payload
				}
				e.commit(1, finish(a, done))
				got := e.get(a.ID)
				if want := map[bool]int{true: size}[state == task.Failed]; len(got.Payload) != want || got.PayloadSize != size {
					t.Fatalf("%v with %d bytes: %d kept, size %d", state, size, len(got.Payload), got.PayloadSize)
				}
			}
		}
	}
}

// KeepPayload says whether an update brings the payload or leaves it.
func testUpdatePayload(t *testing.T, e *env) {
	e.acquire(1)
	for _, size := range sizes {
		a := e.newTask(1, "acme", "f")
		a.Payload, a.PayloadSize = bytes.Repeat([]byte{'p'}, size), size
		e.commit(1, insert(a))
		old := a
		for i := range 3 {
			b := with(old, func(b *store.Task) { b.Attempt++; b.DueAt = b.DueAt.Add(time.Second) })
			e.commit(1, update(old, b))
			want := *b
			want.Payload = a.Payload
			same(t, fmt.Sprintf("%d bytes, update %d", size, i), e.get(a.ID), &want)
			old = b
		}
		full := *old
		full.Payload, full.Attempt = a.Payload, 99
		e.commit(1, store.Change{Op: store.Update, Old: old, Task: &full})
		same(t, "brought along", e.get(a.ID), &full)
	}
}

// Changes of a batch apply in order: a task may be made, changed and ended in one.
func testTwiceInABatch(t *testing.T, e *env) {
	e.acquire(1)
	for _, size := range sizes {
		a := e.newTask(1, "acme", "f")
		a.ClientID, a.Payload, a.PayloadSize = fmt.Sprint("c", size), bytes.Repeat([]byte{'p'}, size), size
		again := e.newTask(1, "acme", "f")
		again.ClientID = a.ClientID
		b := with(a, func(b *store.Task) { b.State, b.DueAt = task.Retrying, b.DueAt.Add(time.Hour) })
		c := ended(b, task.Failed)
		r := e.commit(1, insert(a), update(a, b), insert(again), finish(b, c))
		same(t, "holder", r.Existing[2], bare(b))
		want := *c
		want.Payload = a.Payload
		same(t, "at the end", e.get(a.ID), &want)
	}
	st := partitionOf(t, e, 1)
	if st.Ready != 0 || st.Due != 0 || st.Bytes != 0 {
		t.Errorf("counters at the end: %+v", st)
	}
}

// A task that comes and ends in one batch is in no index after it, whatever number was given before.
func testInsertAndFinish(t *testing.T, e *env) {
	e.acquire(1)
	for _, seq := range []uint64{0, 1 << 40} {
		e.commitPart(store.Part{Partition: 1, Epoch: 1, Seq: seq})
		a, b := e.newTask(1, "acme", "f"), e.newTask(1, "acme", "f")
		b.State = task.Scheduled
		e.commit(1, insert(a), insert(b), finish(a, ended(a, task.Cancelled)), finish(b, ended(b, task.Cancelled)))
		ready, _, err := e.s.Ready(t.Context(), 1, a.Flow(), store.Key{}, 9, 0, 0)
		if err != nil || len(ready) != 0 {
			t.Errorf("ready: %v, %v", ids(ready), err)
		}
		due, _, err := e.s.Due(t.Context(), 1, store.Key{}, base.AddDate(1, 0, 0), 9, 0, 0)
		if err != nil || len(due) != 0 {
			t.Errorf("due: %v, %v", ids(due), err)
		}
		live, _, err := e.s.List(t.Context(), store.Filter{Tenant: "acme", State: task.Queued}, store.Cursor{}, 9)
		if err != nil || len(live) != 0 {
			t.Errorf("queued: %v, %v", ids(live), err)
		}
	}
}

func partitionOf(t *testing.T, e *env, id uint32) store.Partition {
	t.Helper()
	ps, err := e.s.Partitions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range ps {
		if p.ID == id {
			return p
		}
	}
	t.Fatalf("partition %d is not there", id)
	return store.Partition{}
}
