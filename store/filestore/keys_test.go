package filestore

import (
	"bytes"
	"cmp"
	"strings"
	"testing"
	"time"

	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// Texts come back from keys, are ordered as they are, and none is the start of another.
func FuzzText(f *testing.F) {
	f.Add("", "a", "x")
	f.Add("a", "a\x00", "\x00\xff")
	f.Add("a\x00\x01", "a\x00\xff", "\x01")
	f.Fuzz(func(t *testing.T, a, b, rest string) {
		ka, kb := appendText(nil, a), appendText(nil, b)
		got, left, err := cutText(append(bytes.Clone(ka), rest...))
		if err != nil || got != a || string(left) != rest {
			t.Fatalf("%q came back as %q and %q, %v", a, got, left, err)
		}
		if bytes.Compare(append(ka, rest...), kb) != strings.Compare(a, b) && a != b {
			t.Fatalf("%q and %q are ordered otherwise", a, b)
		}
		if a != b && bytes.HasPrefix(kb, ka) {
			t.Fatalf("%q is the start of %q", a, b)
		}
		_, _, _ = cutText([]byte(rest)) // any bytes: no panic
	})
}

// Places in indexes and lists are ordered as the contract says, whatever the numbers.
func FuzzPlaces(f *testing.F) {
	f.Add(int64(0), uint64(1), int64(-1), uint64(2), uint32(3), uint32(0))
	f.Add(int64(1<<62), uint64(1<<48-1), int64(-1<<62), uint64(0), uint32(1<<24-1), uint32(1))
	f.Fuzz(func(t *testing.T, s1 int64, q1 uint64, s2 int64, q2 uint64, p1, p2 uint32) {
		a, b := store.Key{Sort: s1, Seq: q1 & task.MaxSeq}, store.Key{Sort: s2, Seq: q2 & task.MaxSeq}
		ka, kb := appendIndex(nil, a), appendIndex(nil, b)
		if len(ka) != indexPlaceLen || readIndex(ka) != a || bytes.Compare(ka, kb) != a.Compare(b) {
			t.Fatalf("%v and %v in an index", a, b)
		}
		// Instants of the years that fit.
		const most = 1 << 60
		t1, t2 := time.UnixMicro(s1%most), time.UnixMicro(s2%most)
		i1 := task.NewID(p1&task.MaxPartition, a.Seq, 1)
		i2 := task.NewID(p2&task.MaxPartition, b.Seq, 1)
		l1, l2 := appendPlace(nil, t1, i1), appendPlace(nil, t2, i2)
		want := cmp.Or(t2.Compare(t1), i2.Compare(i1))
		if len(l1) != placeLen || bytes.Compare(l1, l2) != want {
			t.Fatalf("%v %v and %v %v in a list", t1, i1, t2, i2)
		}
		if p, seq := readPlace(l1); p != i1.Partition() || seq != i1.Seq() {
			t.Fatalf("%v came back as %d, %d", i1, p, seq)
		}
	})
}

// after is the end of all keys with a prefix.
func TestAfter(t *testing.T) {
	t.Parallel()
	for prefix, want := range map[string]string{"a": "b", "a\xff": "b", "\x00": "\x01", "a\xff\xff": "b", "ab": "ac"} {
		if got := string(after([]byte(prefix))); got != want {
			t.Errorf("after %q = %q, want %q", prefix, got, want)
		}
	}
	if got := after([]byte{0xff}); got != nil {
		t.Errorf("after the last = %q", got)
	}
}

// Minutes are whole before 1970 too.
func TestMinute(t *testing.T) {
	t.Parallel()
	for sec, want := range map[int64]int64{0: 0, 59: 0, 60: 1, -1: -1, -60: -1, -61: -2} {
		if got := minute(time.Unix(sec, 0)); got != want {
			t.Errorf("minute of %d s = %d, want %d", sec, got, want)
		}
	}
}
