package engine

import (
	"testing"
	"time"

	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

// BenchmarkTries runs tasks through the engine, 100,000 a second of its time in messages of 250: push, start, end, outcome,
// committed. So it remembers 100,000 tries that are done.
func BenchmarkTries(b *testing.B) {
	const batch, parts = 250, 8
	now := time.Unix(1e9, 0)
	e := New(Config{Slots: 4000, Functions: []*headracev1.FunctionDeclaration{{Tenant: "t", Name: "f"}}})
	s := e.Open(now, "n")
	e.Message(now, s)
	e.Sent(s)
	e.Receive(now, s, &headracev1.SessionResponse{Welcome: &headracev1.Welcome{NodeId: "n"}})
	started, random := 0, uint64(1)
	ids := make([]task.ID, batch)
	b.ReportAllocs()
	for n := uint64(0); n < uint64(b.N); n += batch {
		now = now.Add(2500 * time.Microsecond)
		e.Tick(now)
		if m := e.Message(now, s); m != nil {
			e.Recycle(m)
			e.Sent(s)
		}
		in, out := &headracev1.SessionResponse{}, &headracev1.SessionResponse{}
		for i := range uint64(batch) {
			random = random*6364136223846793005 + 1442695040888963407
			ids[i] = task.NewID(uint32(i%parts), n/batch*batch/parts+i/parts+1, random>>8)
			p := &headracev1.Push{TaskId: ids[i][:], Token: &headracev1.Token{Epoch: 1, Push: 1}, Tenant: "t", Function: "f", Beat: e.sessions[0].beat}
			in.Pushes = append(in.Pushes, p)
			out.Committed = append(out.Committed, &headracev1.Committed{TaskId: p.TaskId, Token: p.Token})
		}
		e.Receive(now, s, in)
		for fx := e.Take(); fx != nil; fx = e.Take() {
			for _, t := range fx.Start {
				started++
				e.Ended(now, t, Result{})
			}
		}
		e.Receive(now, s, out)
		ids = make([]task.ID, batch)
	}
	if started < b.N-batch {
		b.Errorf("%d of %d were started", started, b.N)
	}
}
