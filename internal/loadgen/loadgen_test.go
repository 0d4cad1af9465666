package loadgen

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headrace/headrace/internal/proctree"
	"github.com/headrace/headrace/task"
)

func config() Config {
	return Config{Tenant: "t", Tenants: 1, Tasks: 10, Batch: 1, Callers: 1, Payload: 200, Slots: 1}
}

func TestValidate(t *testing.T) {
	if err := config().Validate(); err != nil {
		t.Fatal(err)
	}
	for field, spoil := range map[string]func(*Config){
		"--tenants": func(c *Config) { c.Tenants = 0 },
		"--tasks":   func(c *Config) { c.Tasks = 0 },
		"--batch":   func(c *Config) { c.Batch = 1001 },
		"--callers": func(c *Config) { c.Callers = 0 },
		"--payload": func(c *Config) { c.Payload = 7 },
		"--backlog": func(c *Config) { c.Backlog = -1 },
		"--slots":   func(c *Config) { c.Slots = 0 },
		"--rate":    func(c *Config) { c.Rate = -1 },
	} {
		c := config()
		spoil(&c)
		var fe *task.FieldError
		if _, err := New(c); !errors.As(err, &fe) || fe.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// Portions add up to the total whatever the number of workers, and an error ends all.
func TestParallelPortions(t *testing.T) {
	var r Run
	for _, c := range []struct{ workers, total, portion int }{{1, 1, 1}, {4, 1000, 7}, {16, 5, 100}, {3, 999, 1}, {2, 0, 5}} {
		var sum, largest atomic.Int64
		err := r.parallel(c.workers, c.total, c.portion, func(_, n int) error {
			sum.Add(int64(n))
			largest.Store(max(largest.Load(), int64(n)))
			return nil
		})
		if err != nil || sum.Load() != int64(c.total) || largest.Load() > int64(c.portion) {
			t.Errorf("%+v: sum %d, largest %d, %v", c, sum.Load(), largest.Load(), err)
		}
	}
	boom, calls := errors.New("boom"), atomic.Int64{}
	err := r.parallel(4, 1<<40, 1, func(_, n int) error {
		if calls.Add(1) == 100 {
			return boom
		}
		return nil
	})
	if !errors.Is(err, boom) {
		t.Errorf("got %v", err)
	}
}

// What a payload says about its submit is read as it was written; a foreign payload does no harm.
func TestStamp(t *testing.T) {
	r, err := New(config())
	if err != nil {
		t.Fatal(err)
	}
	p := r.payload()
	sent := r.begin.Add(1234567 * time.Microsecond)
	r.stamp(p, sent)
	if d := r.sinceStamp(p, sent.Add(42*time.Microsecond)); d != 42*time.Microsecond {
		t.Errorf("read %v, want 42µs", d)
	}
	if len(p) != 200 {
		t.Errorf("%d bytes", len(p))
	}
	if d := r.sinceStamp(nil, sent); d != 0 {
		t.Errorf("no stamp: %v", d)
	}
}

// A sample is about a thousand, from the whole run.
func TestIDSample(t *testing.T) {
	for total, least := range map[int]int{1: 1, 999: 999, 1_000_000: 1000} {
		s := newIDSample(total)
		var wg sync.WaitGroup
		wg.Go(func() {
			for i := range total {
				s.add(fmt.Sprint(i))
			}
		})
		wg.Wait()
		if len(s.kept) < least || len(s.kept) > 2000 {
			t.Errorf("%d of %d kept", len(s.kept), total)
		}
	}
}

func TestTable(t *testing.T) {
	r, err := New(config())
	if err != nil {
		t.Fatal(err)
	}
	r.Accepted.Store(10)
	r.submits.Record(2 * time.Millisecond)
	before := glance{written: map[string]int64{"n": 0}}
	rep := r.report(before, glance{cpu: 150 * time.Microsecond, own: 50 * time.Microsecond, written: map[string]int64{"n": 4770}}, time.Second, 2*time.Second)
	if rep.Mode != "single" || rep.TasksPerS != 5 || rep.SubmitPerS != 10 || rep.CPUMicrosPerTask != 15 || rep.DiskBytesPerTask != 477 || rep.SubmitMillis.Max != 2 {
		t.Errorf("%+v", rep)
	}
	var out strings.Builder
	if err := rep.WriteTable(&out); err != nil || !strings.Contains(out.String(), "15.0 µs a task, 5.0 of them of the load itself") {
		t.Errorf("%v\n%s", err, out.String())
	}
}

// Of a cluster's nodes each tells of the databases that they share; what Postgres' processes used is added.
func TestReportOnPostgres(t *testing.T) {
	r, err := New(config())
	if err != nil {
		t.Fatal(err)
	}
	r.Accepted.Store(10)
	r.SetServer("", func() (proctree.Usage, error) { return proctree.Usage{}, nil })
	before := glance{postgres: true, written: map[string]int64{"a": 1000, "b": 0}, database: proctree.Usage{CPU: time.Second, Written: 1 << 20}}
	after := glance{postgres: true, written: map[string]int64{"a": 5000, "b": 3900, "new": 1 << 30},
		cpu: 150 * time.Microsecond, own: 50 * time.Microsecond, database: proctree.Usage{CPU: time.Second + 60*time.Microsecond, Written: 1<<20 + 7770}}
	rep := r.report(before, after, time.Second, 2*time.Second)
	if rep.WALBytesPerTask != 400 || rep.DiskBytesPerTask != 777 || rep.CPUMicrosPerTask != 21 || rep.PostgresMicros != 6 || len(rep.CPUOf) != 3 {
		t.Errorf("%+v", rep)
	}
	after.database.Written = -1
	if rep = r.report(before, after, time.Second, 2*time.Second); rep.DiskBytesPerTask != 400 {
		t.Errorf("%v bytes, want those of the log where no others are known", rep.DiskBytesPerTask)
	}
	var out strings.Builder
	if err := rep.WriteTable(&out); err != nil || !strings.Contains(out.String(), "6.0 of Postgres") {
		t.Errorf("%v\n%s", err, out.String())
	}
}
