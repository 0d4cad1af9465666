package storetest

import (
	"errors"
	"reflect"
	"testing"

	"github.com/headrace/headrace/store"
)

// The epoch of a database that was restored is raised above one that it has forgotten.
func testAcquireAbove(t *testing.T, e *env) {
	ctx := t.Context()
	for _, tt := range []struct{ from, above, want store.Epoch }{{0, 7, 8}, {8, 3, 9}, {9, 9, 10}, {10, 12, 13}} {
		if epoch, err := e.s.AcquireAbove(ctx, 5, tt.from, tt.above); epoch != tt.want || err != nil {
			t.Fatalf("acquire from %d above %d = %d, %v; want %d", tt.from, tt.above, epoch, err, tt.want)
		}
	}
	if _, err := e.s.AcquireAbove(ctx, 5, 12, 40); !errors.Is(err, store.ErrFenced) {
		t.Fatalf("acquire from an old epoch above all = %v, want fenced", err)
	}
	e.reopen()
	if epoch, err := e.s.Epoch(ctx, 5); epoch != 13 || err != nil {
		t.Fatalf("epoch after a crash = %d, %v; want 13", epoch, err)
	}
}

// Copies go from version to version, by one writer at a time, and what was seen only rises.
func testConfiguration(t *testing.T, e *env) {
	ctx := t.Context()
	equal := func(what string, got, want *store.Configuration) {
		t.Helper()
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%s = %+v, want %+v", what, got, want)
		}
	}
	look := func(seen, copied uint64, copies ...store.Configured) {
		t.Helper()
		c, err := e.s.Configuration(ctx, true)
		if err != nil {
			t.Fatal(err)
		}
		if len(copies) == 0 {
			copies = nil
		}
		equal("the configuration", c, &store.Configuration{Seen: seen, Copied: copied, Copies: copies})
		short, err := e.s.Configuration(ctx, false)
		if err != nil {
			t.Fatal(err)
		}
		equal("without its copies", short, &store.Configuration{Seen: seen, Copied: copied})
	}
	put := func(from, to uint64, changes ...store.Configured) error {
		t.Helper()
		return e.s.CopyConfiguration(ctx, from, to, changes)
	}
	look(0, 0)
	a := store.Configured{Key: "/a", Value: []byte("1"), Version: 3}
	b := store.Configured{Key: "/a/b", Value: []byte{}, Version: 3}
	z := store.Configured{Key: "/Z\u00e9", Value: []byte("\x00\xff"), Version: 3}
	if err := put(0, 3, b, a, z); err != nil {
		t.Fatal(err)
	}
	look(3, 3, z, a, b)
	for _, from := range []uint64{0, 2, 4} {
		if err := put(from, 9, store.Configured{Key: "/a", Deleted: true}); !errors.Is(err, store.ErrFenced) {
			t.Errorf("copy from version %d = %v, want fenced", from, err)
		}
	}
	if err := put(3, 2, store.Configured{Key: "/a", Deleted: true}); !errors.Is(err, store.ErrFenced) {
		t.Errorf("copy backwards = %v, want fenced", err)
	}
	if err := e.s.SawConfiguration(ctx, 8); err != nil {
		t.Fatal(err)
	}
	if err := e.s.SawConfiguration(ctx, 5); err != nil {
		t.Fatal(err)
	}
	look(8, 3, z, a, b)
	a.Value, a.Version = []byte("two"), 5
	if err := put(3, 5, a, store.Configured{Key: "/a/b", Deleted: true}, store.Configured{Key: "/none", Deleted: true}); err != nil {
		t.Fatal(err)
	}
	look(8, 5, z, a)
	if err := put(5, 5); err != nil {
		t.Errorf("copy nothing: %v", err)
	}
	e.reopen()
	look(8, 5, z, a)
	if err := put(5, 10); err != nil {
		t.Fatal(err)
	}
	look(10, 10, z, a)
}
