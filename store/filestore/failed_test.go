package filestore

import (
	"errors"
	"testing"

	"github.com/headrace/headrace/store"
)

// A write whose outcome is unknown stops the store: it says so once, and refuses all later writes as unknown.
func TestFailedWriteStopsTheStore(t *testing.T) {
	s, err := Open(Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	epoch, err := s.Acquire(t.Context(), 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-s.Failed():
		t.Fatal("failed before anything happened")
	default:
	}
	for range 2 {
		if err := s.breakDown(errors.New("the disk is gone")); !errors.Is(err, store.ErrUnknown) {
			t.Errorf("%v", err)
		}
	}
	<-s.Failed()
	if _, err := s.Commit(t.Context(), &store.Batch{Parts: []store.Part{{Partition: 1, Epoch: epoch, Floor: epoch}}}); !errors.Is(err, store.ErrUnknown) {
		t.Errorf("a commit after the failure: %v", err)
	}
	if _, err := s.Acquire(t.Context(), 2, 0); !errors.Is(err, store.ErrUnknown) {
		t.Errorf("an acquisition after the failure: %v", err)
	}
}
