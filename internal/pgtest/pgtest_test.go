package pgtest

import (
	"os"
	"testing"
)

// A server keeps what it answered over kill and restart, and leaves nothing behind at its end.
func TestServerSurvivesKillAndIsRemoved(t *testing.T) {
	s, err := New("max_connections=10")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	db := s.Database(t)
	s.Must(t, db, "CREATE TABLE a (n int); INSERT INTO a VALUES (42)")
	s.Kill()
	if _, err := s.SQL(db, "SELECT 1"); err == nil {
		t.Fatal("a killed server answers")
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	if got := s.Must(t, db, "SELECT n, current_setting('fsync'), current_setting('max_connections') FROM a"); got != "42|on|10" {
		t.Fatalf("after the kill: %q", got)
	}
	if s.CPU() <= 0 {
		t.Error("it used no CPU")
	}
	s.Close()
	if _, err := os.Stat(s.Dir); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", s.Dir, err)
	}
	if s.cmd != nil {
		t.Error("it still runs")
	}
}
