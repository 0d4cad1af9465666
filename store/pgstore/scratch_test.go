package pgstore

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/headrace/headrace/internal/proctree"
)

// A scratch database is one of its own, whose server's processes can be found, and is gone in the end.
func TestScratch(t *testing.T) {
	t.Parallel()
	s, err := NewScratch(t.Context(), server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	open(t, s.DSN)
	if got := server.Must(t, s.Name, "SELECT count(*) FROM headrace.hot"); got != "0" {
		t.Errorf("tables in %s: %q", s.Name, got)
	}
	if err := s.Backend(t.Context(), func(pid int) error {
		line, err := proctree.Command(pid)
		if !strings.Contains(line, s.Name) {
			t.Errorf("process %d is %q, want one that names %s", pid, line, s.Name)
		}
		return err
	}); err != nil && !errors.Is(err, os.ErrNotExist) { // no /proc
		t.Error(err)
	}
	if err := s.Drop(t.Context()); err != nil { // although a store is connected
		t.Fatal(err)
	}
	if got := server.Must(t, "postgres", "SELECT count(*) FROM pg_database WHERE datname = '"+s.Name+"'"); got != "0" {
		t.Error("it is still there")
	}
}

// What is wrong with a URL or a server is said in words, without the password.
func TestScratchErrors(t *testing.T) {
	t.Setenv("PGDATABASE", "")
	server.Must(t, "postgres", "CREATE ROLE humble LOGIN")
	for dsn, want := range map[string]string{
		"file2":                              "want postgres://",
		"mysql://u:geheim@h/d":               "want postgres://",
		"postgres://u:geheim@h:99999/db":     "want postgres://",
		"postgres://u:geheim@127.0.0.1:1":    "names no database",
		"postgres://u:geheim@127.0.0.1:1/db": "refused",
		strings.Replace(server.DSN("postgres"), "postgres@", "humble:geheim@", 1): "CREATEDB",
		server.DSN("nosuch"): `"nosuch" does not exist`,
	} {
		_, err := NewScratch(t.Context(), dsn)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "geheim") {
			t.Errorf("%s: %v, want %q", dsn, err, want)
		}
		if want == "refused" && !errors.Is(err, ErrUnavailable) {
			t.Errorf("%v is not ErrUnavailable", err)
		}
	}
}
