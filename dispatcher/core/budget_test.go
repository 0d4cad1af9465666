package core

import (
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"google.golang.org/protobuf/proto"

	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/store/memstore"
	"github.com/headrace/headrace/task"
)

// A downstream is down for ten minutes: it is called at most 1.2 times for each first try, and ten times a second beside
// those. No task is lost by that: each succeeds, or has had its four attempts.
func TestOutage(t *testing.T) {
	const (
		every  = 50 * time.Millisecond // a new task
		calm   = time.Minute
		outage = 10 * time.Minute
	)
	s := &script{t: t, store: memstore.New(), now: began, unchecked: true}
	down := false
	firsts, pushes, worst, submitted := 0, 0, 0, 0
	var ends []*headracev1.Outcome
	s.pushed = func(p *headracev1.Push) {
		o := &headracev1.Outcome{TaskId: p.TaskId, Token: proto.CloneOf(p.Token)}
		if down {
			pushes++
			if p.Attempt == 1 {
				firsts++
			}
			o.ErrorClass = headracev1.ErrorClass_ERROR_CLASS_RETRYABLE
		}
		ends = append(ends, o)
	}
	for _, line := range []string{"init", "acquire 1", "open x fn=f credit=100000"} {
		s.run(parse(t, line))
	}
	x := s.executor("x")
	step := func(d time.Duration) {
		s.advance(d)
		m := &headracev1.SessionRequest{Outcomes: ends}
		for _, o := range ends {
			m.Acks = append(m.Acks, &headracev1.Ack{TaskId: o.TaskId, Token: o.Token})
		}
		ends = nil
		s.must(s.core.Message(s.now, x.open, m))
		s.pump()
		worst = max(worst, s.core.function("a", "f").budget.n)
		s.out.Reset()
	}
	run := func(d time.Duration) {
		for end := s.now.Add(d); s.now.Before(end); {
			submitted++
			s.core.Submit(s.now, &Submit{Reply: ReplyID(submitted), Tenant: "a", Partition: 1, Tasks: []*store.Task{
				{Tenant: "a", Function: "f", Band: task.Normal, Priority: 5, DueAt: s.now, FirstDueAt: s.now}}})
			step(every)
		}
	}
	run(calm)
	down = true
	run(outage)
	down = false
	most := 1.2*float64(firsts) + 10*outage.Seconds()
	t.Logf("%d first tries, %d pushes, at most %.0f; at most %d retries waited in memory", firsts, pushes, most, worst)
	if float64(pushes) > most || float64(pushes) < 0.9*most {
		t.Errorf("%d pushes, want 90 to 100 %% of %.0f", pushes, most)
	}
	if worst != budgetTasks {
		t.Errorf("%d retries waited in memory at once, want the bound of %d", worst, budgetTasks)
	}
	s.must(s.core.Check())
	for end := s.now.Add(3 * time.Hour); s.now.Before(end) && s.core.Stats()[0].Backlog+s.core.Stats()[0].Scheduled > 0; {
		step(10 * every) // nothing is counted any more: the rest may take long steps
	}
	s.must(s.core.Check())
	all := 0
	for id := range s.bands {
		row, err := s.store.Get(background, id)
		s.must(err)
		if row.State != task.Succeeded && !(row.State == task.Failed && row.Attempt == task.DefaultMaxAttempts) {
			t.Fatalf("%s after %v", s.rowText(row), s.now.Sub(began))
		}
		all++
	}
	if all != submitted {
		t.Errorf("%d of %d tasks", all, submitted)
	}
}

// parse reads one command of a script.
func parse(t *testing.T, line string) *datadriven.TestData {
	t.Helper()
	cmd, args, err := datadriven.ParseLine(line)
	if err != nil {
		t.Fatal(err)
	}
	return &datadriven.TestData{Cmd: cmd, CmdArgs: args}
}
