package ledger

import (
	"bufio"
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/task"
)

// Runs are what a worker's file says of one task.
type Runs struct {
	Starts, Ends int
	First        time.Time   // of the first start
	Tokens       []string    // of the starts, in the order of the files
	Times        []time.Time // of the starts, beside Tokens
}

// Read reads the files of workers: what ran, by task id.
func Read(t testing.TB, ws ...*Worker) map[string]*Runs {
	t.Helper()
	out := map[string]*Runs{}
	for _, w := range ws {
		f, err := os.Open(w.File)
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		sc := bufio.NewScanner(f)
		for sc.Scan() {
			f := strings.Fields(sc.Text())
			if len(f) != 4 {
				continue // the line that a kill cut off
			}
			what, id, token := f[0], f[1], f[2]
			ns, err := strconv.ParseInt(f[3], 10, 64)
			if err != nil {
				continue
			}
			r := out[id]
			if r == nil {
				r = &Runs{}
				out[id] = r
			}
			switch what {
			case "start":
				r.Starts++
				at := time.Unix(0, ns)
				r.Tokens, r.Times = append(r.Tokens, token), append(r.Times, at)
				if r.First.IsZero() || at.Before(r.First) {
					r.First = at
				}
			case "end":
				r.Ends++
			}
		}
		f.Close()
	}
	return out
}

// Audit waits until every task has ended, and returns how many ended in each state. It fails for a task
// that the server doesn't know any more.
func Audit(t testing.TB, c *client.Client, ids []string, limit time.Duration) map[task.State]int {
	t.Helper()
	ctx := Within(t, limit)
	states := map[task.State]int{}
	open := map[string]bool{}
	for _, id := range ids {
		open[id] = true
	}
	if len(open) != len(ids) {
		t.Errorf("%d submits got %d different ids", len(ids), len(open))
	}
	for missed := false; len(open) > 0; {
		var waiting string
		for info, err := range c.ListAll(ctx, client.ListOptions{PageSize: 1000}) {
			if err != nil {
				t.Fatalf("list: %v (%d tasks still open, such as %s)", err, len(open), waiting)
			}
			if !open[info.ID] {
				continue
			}
			if info.State.Terminal() {
				states[info.State]++
				delete(open, info.ID)
			} else {
				waiting = info.ID
			}
		}
		// A list may miss what is moved while it is read: of the last outcomes that is so. Nothing moves in the next one.
		if waiting == "" && len(open) > 0 && !missed {
			missed = true
			continue
		}
		if waiting == "" && len(open) > 0 {
			missing := map[string]int{} // what they are when they are asked for by their ids
			for id := range open {
				if info, err := c.Get(ctx, client.ByID(id)); err != nil {
					missing[err.Error()]++
				} else {
					missing[info.State.String()]++
				}
			}
			t.Fatalf("%d accepted tasks are in no list, such as %v; asked by their ids they are: %v", len(open), slices.Sorted(maps.Keys(open))[0], missing)
		}
		if waiting != "" {
			if _, err := c.Wait(ctx, client.ByID(waiting)); err != nil {
				info, _ := c.Get(t.Context(), client.ByID(waiting))
				t.Fatalf("wait: %v (%d tasks still open; %s: %+v)", err, len(open), waiting, info)
			}
		}
	}
	return states
}

// Describe prints a ledger as a line.
func Describe(states map[task.State]int, l map[string]*Runs) string {
	var b strings.Builder
	for s := task.Scheduled; s <= task.Expired; s++ {
		if states[s] > 0 {
			fmt.Fprintf(&b, "%v %d, ", s, states[s])
		}
	}
	starts, again := 0, 0
	for _, r := range l {
		starts += r.Starts
		if r.Starts > 1 {
			again++
		}
	}
	fmt.Fprintf(&b, "%d starts, %d tasks started more than once", starts, again)
	return b.String()
}

// AtOnce returns how many tries the workers' files have at one time at most, and how many starts in all.
func AtOnce(t testing.TB, ws ...*Worker) (most, starts int) {
	t.Helper()
	type event struct {
		at int64
		by int
	}
	var events []event
	for _, w := range ws {
		data, err := os.ReadFile(w.File)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(data)) {
			f := strings.Fields(line)
			if len(f) != 4 {
				continue
			}
			at, err := strconv.ParseInt(f[3], 10, 64)
			if err != nil {
				continue
			}
			e := event{at, -1}
			if f[0] == "start" {
				e.by = 1
				starts++
			}
			events = append(events, e)
		}
	}
	slices.SortFunc(events, func(a, b event) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.by, b.by)) })
	n := 0
	for _, e := range events {
		n += e.by
		most = max(most, n)
	}
	return most, starts
}
