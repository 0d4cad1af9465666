package filestore

import (
	"testing"

	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/store/storetest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		dir := t.TempDir()
		return storetest.Harness{Open: func(t *testing.T) store.Store {
			s, err := Open(Config{Dir: dir})
			if err != nil {
				t.Fatal(err)
			}
			return s
		}}
	})
}
