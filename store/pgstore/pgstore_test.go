package pgstore

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/headrace/headrace/internal/pgtest"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/store/storetest"
)

// server is shared by the tests that don't break it.
var server *pgtest.Server

func TestMain(m *testing.M) {
	s, err := pgtest.New("max_connections=300", "shared_buffers=256MB", "max_wal_size=4GB", "log_min_messages=warning")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	server = s
	code := m.Run()
	s.Close()
	os.Exit(code)
}

// open opens a store on a database.
func open(tb testing.TB, dsn string) *Store {
	tb.Helper()
	s, err := Open(tb.Context(), Config{DSN: dsn})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { s.Close() })
	return s
}

func TestConformance(t *testing.T) {
	t.Parallel()
	if f := flag.Lookup("storetest.steps"); f.Value.String() == "0" {
		if err := f.Value.Set("60"); err != nil { // a step asks some 40 questions over the network
			t.Fatal(err)
		}
	}
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		dsn := server.DSN(server.Database(t))
		return storetest.Harness{Open: func(t *testing.T) store.Store {
			s, err := Open(t.Context(), Config{DSN: dsn})
			if err != nil {
				t.Fatal(err)
			}
			return s
		}}
	})
}
