package chaos

import (
	"errors"
	"testing"
	"time"

	"github.com/headrace/headrace/internal/localcluster"
)

// One of two databases stops for a minute. Every tenant has partitions in the other: it goes on submitting and finishing,
// and what waited is finished when the database is back.
func TestDatabaseStops(t *testing.T) {
	onlyLong(t)
	t.Parallel()
	w := newWorld(t, localcluster.Options{})
	w.worker("x1", 100)
	w.submitAll(2000, w.c.Nodes, nap) // some wait in the database that stops
	f := w.flow(150, w.c.Nodes, nap)
	w.goOn(2 * time.Second)
	from := time.Now()
	if err := w.c.Postgres[1].Stop(); err != nil {
		t.Fatal(err)
	}
	w.goOn(time.Minute)
	to := time.Now()
	if err := w.c.Postgres[1].Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.goOn(3 * time.Second)
	f.stop()
	f.report("the flow")
	f.between("the flow, while the database was away", from.Add(5*time.Second), to.Add(-5*time.Second))
	runs := w.settle(2 * time.Minute)
	w.steady("with one database of two", runs, from, to, 3*time.Second)
	w.nothingTwice()
	if n := again(runs); n > 0 {
		t.Errorf("%d tasks started more than once", n)
	}
}

// Databases restart as after a crash, and their connections are killed, under load. Nothing is lost, and nobody sees an error.
func TestDatabasesRestart(t *testing.T) {
	onlyLong(t)
	t.Parallel()
	w := newWorld(t, localcluster.Options{})
	w.worker("x1", 100)
	f := w.flow(200, w.c.Nodes, nap)
	from := time.Now()
	for range 3 {
		for _, db := range w.c.Postgres {
			w.goOn(3 * time.Second)
			if err := errors.Join(db.Kill(), db.Start(t.Context())); err != nil {
				t.Fatal(err)
			}
			w.goOn(3 * time.Second)
			n, err := db.KillBackends(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if n == 0 {
				t.Errorf("%s had no connections to kill", db.Name)
			}
		}
	}
	w.goOn(3 * time.Second)
	f.stop()
	f.report("the flow")
	w.steady("while databases restart", w.settle(time.Minute), from, time.Now(), 0)
	w.nothingTwice()
}
