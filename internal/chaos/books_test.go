package chaos

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/internal/ledger"
	"github.com/headrace/headrace/task"
)

// What rows look at when the books are settled.

// epochs asks the databases for the epoch of each partition.
func (w *world) epochs() map[uint32]uint64 {
	w.t.Helper()
	out := map[uint32]uint64{}
	for _, db := range w.c.Postgres {
		text, err := db.SQL(ledger.Within(w.t, 10*time.Second), "SELECT id, epoch FROM headrace.partitions")
		if err != nil {
			w.t.Fatal(err)
		}
		for line := range strings.Lines(text) {
			id, epoch, _ := strings.Cut(strings.TrimSpace(line), "|")
			p, _ := strconv.ParseUint(id, 10, 32)
			e, err := strconv.ParseUint(epoch, 10, 64)
			if err != nil {
				w.t.Fatalf("epochs of %s: %q", db.Name, line)
			}
			out[uint32(p)] = max(out[uint32(p)], e)
		}
	}
	return out
}

// onlyNewestCounts looks at each task that started more than once: the try that ended it is the one with the newest token. It returns how
// many there were.
func (w *world) onlyNewestCounts(runs map[string]*ledger.Runs) (looked int) {
	w.t.Helper()
	for _, a := range w.books() {
		r := runs[a.id]
		if r == nil || r.Starts < 2 {
			continue
		}
		newest := task.Token{}
		for _, text := range r.Tokens {
			if token, err := task.ParseToken(text); err == nil && token.Compare(newest) > 0 {
				newest = token
			}
		}
		info, err := w.client(w.c.Nodes[0], a.tenant).Get(ledger.Within(w.t, 10*time.Second), client.ByID(a.id))
		if err != nil {
			w.t.Fatal(err)
		}
		if info.Token != newest.String() {
			w.t.Errorf("task %s ended by token %s; it started with %v", a.id, info.Token, r.Tokens)
		}
		looked++
	}
	w.t.Logf("%d tasks started more than once; each ended by its newest push", looked)
	return looked
}

// nothingTwice counts the stored tasks of each tenant: as many as were accepted. It is for rows in which every submit was
// answered: no commit that nobody was told of, and no retry, has stored a second task.
func (w *world) nothingTwice() {
	w.t.Helper()
	want := map[string]int{}
	for _, a := range w.books() {
		want[a.tenant]++
	}
	for tenant, n := range want {
		stored := 0
		for _, err := range w.client(w.c.Nodes[0], tenant).ListAll(ledger.Within(w.t, time.Minute), client.ListOptions{PageSize: 1000}) {
			if err != nil {
				w.t.Fatal(err)
			}
			stored++
		}
		if stored != n {
			w.t.Errorf("tenant %s has %d tasks, and %d were accepted", tenant, stored, n)
		}
	}
}

// steady prints the longest time in which no executor started anything, and fails beyond a bound; 0: none.
func (w *world) steady(when string, runs map[string]*ledger.Runs, from, to time.Time, bound time.Duration) {
	w.t.Helper()
	at := []time.Time{from, to}
	for _, r := range runs {
		for _, start := range r.Times {
			if start.After(from) && start.Before(to) {
				at = append(at, start)
			}
		}
	}
	slices.SortFunc(at, time.Time.Compare)
	longest, since := time.Duration(0), time.Duration(0)
	for i := 1; i < len(at); i++ {
		if d := at[i].Sub(at[i-1]); d > longest {
			longest, since = d, at[i-1].Sub(from)
		}
	}
	w.t.Logf("%s: %d starts in %v; longest time without one %v, after %v", when, len(at)-2, to.Sub(from).Round(time.Second),
		longest.Round(time.Millisecond), since.Round(time.Millisecond))
	if bound > 0 && longest > bound {
		w.t.Errorf("%s: nothing was started for %v, want at most %v", when, longest, bound)
	}
}
