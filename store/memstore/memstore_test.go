package memstore_test

import (
	"testing"

	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/store/memstore"
	"github.com/headrace/headrace/store/storetest"
)

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		data := new(memstore.Data)
		return storetest.Harness{Open: func(*testing.T) store.Store { return memstore.Open(data) }}
	})
}
